"""The VFS without a kernel: what a driver is answered, over a real engine."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import lmdb
import pytest

from rig.engine_ground import Ground, make_ground, run
from tiercache.errors import Absent, InvalidArgument, InvalidName, NameTooLong, NoAttribute, ReadOnly
from tiercache.fuse.attributes import Caller
from tiercache.fuse.nodes import ROOT_NODE
from tiercache.fuse.notices import Change
from tiercache.fuse.options import LONGEST_TIMEOUT_S, MountOptions
from tiercache.fuse.vfs import Vfs

ME = Caller(1000, 1001, 1)

Scenario = Callable[[Vfs, Ground], Awaitable[None]]


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return make_ground("posix", request, tmp_path)


def on(ground: Ground, scenario: Scenario, options: MountOptions | None = None) -> None:
    """Run a scenario on the VFS of an origin."""

    async def body() -> None:
        async with ground.engine() as (_, namespace):
            root = await namespace.root(ground.root)
            vfs = Vfs(namespace, ground.root, root_inode=root.inode, options=options or MountOptions())
            namespace.on_change.append(vfs.note_change)
            await scenario(vfs, ground)

    run(body)


def test_the_root_is_node_1_and_its_own_parent(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        root = await vfs.getattr(ROOT_NODE)
        assert root.node == ROOT_NODE
        assert stat.S_ISDIR(root.mode)
        for name in (b".", b".."):
            assert (await vfs.lookup(ROOT_NODE, name)).attr.node == ROOT_NODE
        directory = await vfs.mkdir(ROOT_NODE, b"dir", 0o755, ME)
        assert directory.attr.node != ROOT_NODE
        assert (await vfs.lookup(directory.attr.node, b"..")).attr.node == ROOT_NODE
        assert (await vfs.lookup(directory.attr.node, b".")).attr.node == directory.attr.node
        assert (directory.attr.uid, directory.attr.gid) == (ME.uid, ME.gid)

    on(ground, scenario)


def test_a_file_is_made_written_and_read_by_handle(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        entry, opened = await vfs.files.create(ROOT_NODE, b"file", 0o640, os.O_RDWR | os.O_CREAT, ME)
        assert await vfs.files.write(opened.handle, 0, b"0123456789") == 10
        assert bytes(await vfs.files.read(opened.handle, 3, 4)) == b"3456"
        assert (await vfs.getattr(entry.attr.node)).size_bytes == 10
        await vfs.files.flush(opened.handle)
        await vfs.files.release(opened.handle)
        with pytest.raises(InvalidArgument):
            await vfs.files.read(opened.handle, 0, 1)
        again = await vfs.files.open(entry.attr.node, os.O_RDONLY, ME)
        assert again.keep_cache
        assert again.handle != opened.handle
        await vfs.files.release(again.handle)

    on(ground, scenario)


def test_an_fsync_of_a_directory_makes_the_names_in_it_durable(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file is only noted, and its record not durable before its first sync."""
    monkeypatch.setattr("tiercache.engine.engine.JOURNAL_FLUSH_S", 3600)

    async def scenario(vfs: Vfs, ground: Ground) -> None:
        root = await vfs.opendir(ROOT_NODE)
        _, opened = await vfs.files.create(ROOT_NODE, b"file", 0o640, os.O_RDWR | os.O_CREAT, ME)
        assert committed(ground.cache_dir) == 0
        await vfs.fsyncdir(root)
        assert committed(ground.cache_dir) == 1
        await vfs.files.release(opened.handle)
        await vfs.releasedir(root)

    on(ground, scenario)


def committed(cache_dir: Path) -> int:
    """How many rows the journal has on disk. Of a copy: LMDB opens a file only once in a process."""
    copy = shutil.copy(cache_dir / "journal" / "data.mdb", cache_dir / "copy.mdb")
    with lmdb.open(str(copy), subdir=False, readonly=True, lock=False, max_dbs=2) as env:
        rows = env.open_db(b"rows", create=False)
        with env.begin(db=rows) as transaction:
            return int(transaction.stat(rows)["entries"])


def test_names_that_no_origin_holds(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        with pytest.raises(Absent):
            await vfs.lookup(ROOT_NODE, b"\n")
        with pytest.raises(InvalidName):
            await vfs.mkdir(ROOT_NODE, b"\n", 0o755, ME)
        for call in (vfs.lookup(ROOT_NODE, b"x" * 256), vfs.mkdir(ROOT_NODE, b"x" * 256, 0o755, ME)):
            with pytest.raises(NameTooLong):
                await call

    on(ground, scenario)


def test_unknown_rename_flags_are_refused(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        with pytest.raises(InvalidArgument):
            await vfs.rename(ROOT_NODE, b"a", ROOT_NODE, b"b", 4)

    on(ground, scenario)


def test_attributes_outside_user_never_reach_the_origin(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        with pytest.raises(NoAttribute):
            await vfs.getxattr(12345, b"security.capability")  # not even the node is looked at

    on(ground, scenario)


def test_timeouts_follow_the_options(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        ground.put("file", b"x")
        entry = await vfs.lookup(ROOT_NODE, b"file")
        assert entry.timeout_s == entry.attr.timeout_s == LONGEST_TIMEOUT_S
        assert vfs.options.negative_timeout_s == 5.0

    on(ground, scenario, MountOptions(ttl_s=float("inf"), negative_ttl_s=60.0))


def test_a_read_only_mount_refuses_before_it_asks(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        for call in (
            vfs.mkdir(ROOT_NODE, b"d", 0o755, ME),
            vfs.unlink(ROOT_NODE, b"missing"),
            vfs.setattr(ROOT_NODE, mode=0o700),
            vfs.files.open(ROOT_NODE, os.O_WRONLY, ME),
            vfs.files.open(ROOT_NODE, os.O_RDONLY | os.O_TRUNC, ME),
        ):
            with pytest.raises(ReadOnly):
                await call

    on(ground, scenario, MountOptions(read_only=True))


def test_only_changes_by_others_are_noticed(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        changes: list[Change] = []
        vfs.notices.send = changes.append
        entry, opened = await vfs.files.create(ROOT_NODE, b"mine", 0o640, os.O_RDWR | os.O_CREAT, ME)
        await vfs.files.write(opened.handle, 0, b"x")
        await vfs.files.flush(opened.handle)
        await vfs.files.release(opened.handle)
        await vfs.rename(ROOT_NODE, b"mine", ROOT_NODE, b"renamed")
        assert changes == []
        vfs.note_change(ground.key("renamed"), entry.attr.node)
        assert [(change.parent, change.name, change.node, change.in_use) for change in changes] == [
            (ROOT_NODE, b"renamed", entry.attr.node, False)
        ]
        vfs.note_change(b"elsewhere/on/the/disk", 0)
        assert len(changes) == 1, "what lies outside the mount concerns nobody here"

    on(ground, scenario)


def test_the_first_write_to_a_clean_file_is_no_change_by_others(ground: Ground) -> None:
    """A further open while the writer is there goes through the same pages: mmap needs them."""

    async def scenario(vfs: Vfs, ground: Ground) -> None:
        ground.put("clean", b"0123456789")
        changes: list[Change] = []
        vfs.notices.send = changes.append
        node = (await vfs.lookup(ROOT_NODE, b"clean")).attr.node
        writer = await vfs.files.open(node, os.O_RDWR, ME)
        await vfs.files.write(writer.handle, 0, b"x")
        reader = await vfs.files.open(node, os.O_RDONLY, ME)
        assert (reader.keep_cache, reader.direct_io) == (True, False)
        assert changes == []
        for opened in (writer, reader):
            await vfs.files.flush(opened.handle)
            await vfs.files.release(opened.handle)

    on(ground, scenario)


def test_what_is_still_open_when_the_mount_ends_is_closed_and_kept(ground: Ground) -> None:
    async def scenario(vfs: Vfs, ground: Ground) -> None:
        _, opened = await vfs.files.create(ROOT_NODE, b"file", 0o640, os.O_RDWR | os.O_CREAT, ME)
        await vfs.files.write(opened.handle, 0, b"written")
        await vfs.files.close()
        with pytest.raises(InvalidArgument):
            await vfs.files.write(opened.handle, 7, b" late")
        again = await vfs.files.open((await vfs.lookup(ROOT_NODE, b"file")).attr.node, os.O_RDONLY, ME)
        assert bytes(await vfs.files.read(again.handle, 0, 100)) == b"written"
        await vfs.files.release(again.handle)

    on(ground, scenario)
