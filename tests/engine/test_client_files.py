"""Files that clients write themselves: invisible until published, gone when discarded."""

from __future__ import annotations

import pytest
import trio

from rig.engine_ground import Ground, read_file, run, write_file
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Exists
from tiercache.model import Key


async def stage(names: Namespace, key: Key, data: bytes, *, exclusive: bool = False, keep: bool = False) -> int:
    staged, path, _ = await names.stage(key, exclusive=exclusive, keep=keep)
    target = trio.Path(path)
    async with await target.open("ab") as file:
        await file.write(data)
    return staged


def test_a_file_shows_itself_only_when_it_is_published(ground: Ground) -> None:
    ground.put("k", b"old")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            staged = await stage(names, ground.key("k"), b"new bytes")
            assert await read_file(names, ground.key("k")) == b"old"
            await names.publish(staged)
            assert await read_file(names, ground.key("k")) == b"new bytes"
            assert (await engine.drain(30)).left == []
            assert ground.get("k") == b"new bytes"

    run(scenario)


def test_a_discarded_file_was_never_there(ground: Ground) -> None:
    """C16."""
    ground.put("k", b"v1")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            staged = await stage(names, ground.key("k"), b"v2")
            other = await stage(names, ground.key("never"), b"x")
            await names.discard(staged)
            await names.discard(other)
            assert (await engine.drain(30)).left == []
            assert ground.get("k") == b"v1"
            assert ground.names() == ["k"]
            with pytest.raises(Absent):
                await names.lookup(ground.key("never"))

    run(scenario)
    assert list((ground.cache_dir / "staging").glob("[0-9]*")) == []


def test_what_is_published_over_synced_bytes_is_synced_before_they_go(ground: Ground) -> None:
    """The older file is still open on a mount, so that it is given up at once; close itself syncs nothing here."""

    async def scenario() -> None:
        async with ground.engine(staging={"capacity": "16MiB", "upload_delay_s": 3600}) as (engine, names):
            await names.root(ground.root)
            _, handle = await names.create(ground.key("k"), mode=0o644, uid=0, gid=0, truncate=True)
            await handle.write(0, b"synced")
            await handle.fsync()
            staged = await stage(names, ground.key("k"), b"newer")
            await names.publish(staged)
            record = engine.journal.get(staged)
            assert record is not None
            assert record.synced_bytes == len(b"newer")
            await handle.close()
            assert (await engine.drain(30)).left == []
            assert ground.get("k") == b"newer"

    run(scenario)


def test_the_newest_of_many_quick_versions_is_the_one_that_stays(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            for number in range(20):
                await names.publish(await stage(names, ground.key("k"), b"%d" % number))
                assert await read_file(names, ground.key("k")) == b"%d" % number
            assert (await engine.drain(30)).left == []
            assert ground.get("k") == b"19"
            assert await read_file(names, ground.key("k")) == b"19"

    run(scenario)


def test_appending_builds_on_the_newest_bytes_dirty_or_clean(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            await names.publish(await stage(names, ground.key("k"), b"a"))
            for letter in (b"b", b"c", b"d"):
                await names.publish(await stage(names, ground.key("k"), letter, keep=True))
            assert (await engine.drain(30)).left == []
            assert ground.get("k") == b"abcd"
            await names.publish(await stage(names, ground.key("k"), b"e", keep=True))
            assert (await engine.drain(30)).left == []
            assert ground.get("k") == b"abcde"

    run(scenario)


def test_an_exclusive_file_refuses_a_taken_name(ground: Ground) -> None:
    ground.put("k", b"1")

    async def scenario() -> None:
        async with ground.engine() as (_, names):
            with pytest.raises(Exists):
                await stage(names, ground.key("k"), b"2", exclusive=True)
            first = await stage(names, ground.key("new"), b"first", exclusive=True)
            second = await stage(names, ground.key("new"), b"second", exclusive=True)
            await names.publish(first)
            with pytest.raises(Exists):
                await names.publish(second)
            await names.discard(second)
            assert await read_file(names, ground.key("new")) == b"first"

    run(scenario)


def test_a_mount_s_open_handle_keeps_the_old_file_when_a_client_replaces_it(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            await write_file(names, ground.key("k"), b"old bytes")
            handle = await names.open((await names.lookup(ground.key("k"))).inode)
            await names.publish(await stage(names, ground.key("k"), b"new"))
            assert bytes(await handle.read(0, 100)) == b"old bytes"
            await engine.drain(30)
            assert bytes(await handle.read(0, 100)) == b"old bytes"
            await handle.close()
            assert await read_file(names, ground.key("k")) == b"new"
            assert ground.get("k") == b"new"

    run(scenario)


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_file_that_is_being_written_keeps_its_conditions_when_its_directory_moves(
    ground: Ground, exclusive: bool
) -> None:
    ground.put("old/f", b"base")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": 0, "negative_ttl_s": 0}}) as (engine, names):
            name = "g" if exclusive else "f"
            staged, path, _ = await names.stage(ground.key(f"old/{name}"), exclusive=exclusive, keep=not exclusive)
            await trio.Path(path).write_bytes(b"mine")
            await names.rename(ground.key("old"), ground.key("new"))
            ground.put(f"new/{name}", b"foreign")
            if exclusive:
                with pytest.raises(Exists):
                    await names.publish(staged)
            else:
                await names.publish(staged)
                assert "somebody else changed it" in (await engine.drain(30)).errors[staged]
            assert ground.get(f"new/{name}") == b"foreign"

    run(scenario)


@pytest.mark.parametrize("first", ["mount", "client"])
def test_a_dirty_file_keeps_its_name_when_its_directory_moves_while_a_client_writes_it_anew(
    ground: Ground, first: str
) -> None:
    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": 0, "negative_ttl_s": 0}}) as (engine, names):
            await names.root(ground.root)
            await names.mkdir(ground.key("old"), mode=0o755, uid=0, gid=0)
            staged = await stage(names, ground.key("old/f"), b"anew") if first == "client" else 0
            _, handle = await names.create(ground.key("old/f"), mode=0o644, uid=0, gid=0)
            await handle.write(0, b"dirty")
            staged = staged or await stage(names, ground.key("old/f"), b"anew")
            await names.rename(ground.key("old"), ground.key("new"))
            assert await read_file(names, ground.key("new/f")) == b"dirty"
            await handle.flush()
            await handle.close()
            await names.publish(staged)
            assert await read_file(names, ground.key("new/f")) == b"anew"
            assert (await engine.drain(30)).left == []
            assert (ground.names(), ground.get("new/f")) == (["new/f"], b"anew")

    run(scenario)


@pytest.mark.parametrize("sync", [False, True])
def test_a_published_file_that_stays_on_this_node_outlives_the_engine(ground: Ground, sync: bool) -> None:
    async def write() -> None:
        async with ground.engine("scratch", profiles={"scratch": {"ack": "local"}}) as (_, names):
            for data in (b"older", b"bytes"):
                await names.publish(await stage(names, ground.key("k"), data), sync=sync)

    async def read() -> None:
        async with ground.engine("scratch") as (_, names):
            assert await read_file(names, ground.key("k")) == b"bytes"

    run(write)
    run(read)
