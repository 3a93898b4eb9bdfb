"""Files made and closed without waiting: what is answered at once, and what has to wait its turn."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rig.engine_ground import Ground, make_ground, run
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, ReadOnly
from tiercache.fuse.attributes import Caller
from tiercache.fuse.nodes import ROOT_NODE
from tiercache.fuse.options import MountOptions
from tiercache.fuse.vfs import Vfs
from tiercache.model import StagedState

ME = Caller(1000, 1001, 1)
NEW = os.O_WRONLY | os.O_CREAT


class Mount(NamedTuple):
    """A VFS without a kernel, and what is under it."""

    vfs: Vfs
    engine: Engine
    namespace: Namespace


Scenario = Callable[[Mount], Awaitable[None]]


@pytest.fixture(params=["general", "scratch"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return make_ground("posix", request, tmp_path)


def on(ground: Ground, scenario: Scenario, profile: str = "general", options: MountOptions | None = None) -> None:
    async def body() -> None:
        async with ground.engine(profile) as (engine, namespace):
            root = await namespace.root(ground.root)
            vfs = Vfs(namespace, ground.root, root_inode=root.inode, options=options or MountOptions())
            namespace.on_change.append(vfs.note_change)
            await scenario(Mount(vfs, engine, namespace))

    run(body)


async def is_absent(vfs: Vfs, name: bytes) -> bool:
    """As the kernel asks before a create."""
    try:
        await vfs.lookup(ROOT_NODE, name)
    except Absent:
        return True
    return False


def test_a_file_that_is_known_to_be_absent_is_made_written_and_closed_at_once(ground: Ground, profile: str) -> None:
    async def scenario(mount: Mount) -> None:
        vfs = mount.vfs
        assert await is_absent(vfs, b"new")
        made = vfs.files.create_now(ROOT_NODE, b"new", 0o640, NEW, ME)
        assert made is not None
        entry, opened = made
        assert (entry.attr.uid, entry.attr.gid, entry.attr.mode & 0o7777) == (ME.uid, ME.gid, 0o640)
        assert await vfs.files.write(opened.handle, 0, b"bytes") == 5
        assert vfs.files.release_now(opened.handle)
        assert (await vfs.getattr(entry.attr.node)).size_bytes == 5
        again = vfs.files.open_now(entry.attr.node, ME)
        assert again is not None
        assert bytes(await vfs.files.read(again.handle, 0, 9)) == b"bytes"
        assert vfs.files.release_now(again.handle)

    on(ground, scenario, profile)


def test_what_was_closed_at_once_goes_up(ground: Ground) -> None:
    async def scenario(mount: Mount) -> None:
        vfs = mount.vfs
        assert await is_absent(vfs, b"new")
        made = vfs.files.create_now(ROOT_NODE, b"new", 0o600, NEW, ME)
        assert made is not None
        await vfs.files.write(made[1].handle, 0, b"bytes")
        assert vfs.files.release_now(made[1].handle)
        assert [record.state for record in mount.engine.journal.records()] == [StagedState.SEALED]
        assert not (await mount.engine.writeback.drain(30)).left

    on(ground, scenario)
    assert Path(ground.path("new")).read_bytes() == b"bytes"
    assert Path(ground.path("new")).stat().st_mode & 0o7777 == 0o600


def test_a_name_that_is_unknown_or_there_has_to_wait(ground: Ground) -> None:
    ground.put("there", b"x")

    async def scenario(mount: Mount) -> None:
        vfs = mount.vfs
        assert vfs.files.create_now(ROOT_NODE, b"unknown", 0o600, NEW, ME) is None
        await vfs.lookup(ROOT_NODE, b"there")
        assert vfs.files.create_now(ROOT_NODE, b"there", 0o600, NEW, ME) is None
        assert vfs.files.create_now(ROOT_NODE, b"there", 0o600, NEW | os.O_EXCL, ME) is None
        assert not await is_absent(vfs, b"there")

    on(ground, scenario)


def test_whoever_holds_the_name_is_waited_for(ground: Ground) -> None:
    async def scenario(mount: Mount) -> None:
        vfs = mount.vfs
        assert await is_absent(vfs, b"new")
        async with mount.namespace.tree.hold(ground.key("new")):
            assert vfs.files.create_now(ROOT_NODE, b"new", 0o600, NEW, ME) is None
        made = vfs.files.create_now(ROOT_NODE, b"new", 0o600, NEW, ME)
        assert made is not None
        async with mount.namespace.tree.hold(ground.root):
            assert not vfs.files.release_now(made[1].handle)
        # It is open as before.
        assert await vfs.files.write(made[1].handle, 0, b"more") == 4
        assert vfs.files.release_now(made[1].handle)
        assert not (await mount.engine.writeback.drain(30)).left

    on(ground, scenario)
    assert Path(ground.path("new")).read_bytes() == b"more"


def test_a_file_without_a_name_is_closed_at_once_and_leaves_nothing(ground: Ground) -> None:
    async def scenario(mount: Mount) -> None:
        vfs = mount.vfs
        assert await is_absent(vfs, b"new")
        made = vfs.files.create_now(ROOT_NODE, b"new", 0o600, NEW, ME)
        assert made is not None
        await vfs.files.write(made[1].handle, 0, b"bytes")
        await vfs.unlink(ROOT_NODE, b"new")
        assert vfs.files.release_now(made[1].handle)
        assert mount.engine.staging.used_bytes == 0

    on(ground, scenario)
    assert not Path(ground.path("new")).exists()


def test_a_file_of_two_writers_is_sealed_by_the_last(ground: Ground) -> None:
    async def scenario(mount: Mount) -> None:
        vfs = mount.vfs
        assert await is_absent(vfs, b"new")
        made = vfs.files.create_now(ROOT_NODE, b"new", 0o600, NEW, ME)
        assert made is not None
        second = await vfs.files.open(made[0].attr.node, os.O_WRONLY, ME)
        await vfs.files.write(made[1].handle, 0, b"one")
        assert vfs.files.release_now(made[1].handle)
        assert [record.state for record in mount.engine.journal.records()] == [StagedState.STAGED]
        await vfs.files.write(second.handle, 3, b"two")
        assert vfs.files.release_now(second.handle)
        assert [record.state for record in mount.engine.journal.records()] == [StagedState.SEALED]

    on(ground, scenario)


def test_a_read_only_mount_makes_nothing(ground: Ground) -> None:
    async def scenario(mount: Mount) -> None:
        vfs = mount.vfs
        assert await is_absent(vfs, b"new")
        with pytest.raises(ReadOnly):
            vfs.files.create_now(ROOT_NODE, b"new", 0o600, NEW, ME)

    on(ground, scenario, options=MountOptions(read_only=True))
