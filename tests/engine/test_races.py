"""Changes that meet on one name: whatever the order, no byte is lost, and origin, journal and catalog agree at last."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent
from tiercache.model import Capability, Key

NO_TTL = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}


def moves(names: Namespace) -> str:
    """The origin's call that does the work of a rename."""
    return "rename" if names.tree.can(Capability.RENAME) else "copy"


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})


async def is_absent(names: Namespace, key: Key) -> bool:
    try:
        await names.lookup(key)
    except Absent:
        return True
    return False


@asynccontextmanager
async def beside() -> AsyncIterator[trio.Nursery]:
    """For the operation that is overtaken; a deadlock fails."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            yield nursery


@pytest.mark.parametrize("afterwards", [False, True])
def test_a_first_write_during_a_rename_goes_with_the_file(ground: Ground, afterwards: bool) -> None:
    """A log that is rotated while its writer goes on."""
    ground.put("log", b"old")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            handle = await names.open((await names.lookup(ground.key("log"))).inode, write=True, append=True)
            stop = interpose(names).stop(moves(names), afterwards=afterwards)
            async with beside() as nursery:
                nursery.start_soon(lambda: names.rename(ground.key("log"), ground.key("log.1")))
                await stop.reached()
                nursery.start_soon(handle.write, 0, b" and new")
                await trio.testing.wait_all_tasks_blocked(0.05)
                stop.open()
            await handle.flush()
            await handle.close()
            await drained(engine)
            assert ground.names() == ["log.1"]
            assert ground.get("log.1") == b"old and new"
            assert await read_file(names, ground.key("log.1")) == b"old and new"
            assert await is_absent(names, ground.key("log"))

    run(scenario)


def test_a_rename_during_a_first_write_takes_the_write_along(ground: Ground) -> None:
    ground.put("log", b"old")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            handle = await names.open((await names.lookup(ground.key("log"))).inode, write=True, append=True)
            stop = interpose(names).stop("read")
            async with beside() as nursery:
                nursery.start_soon(handle.write, 0, b" and new")
                await stop.reached()
                nursery.start_soon(lambda: names.rename(ground.key("log"), ground.key("log.1")))
                await trio.testing.wait_all_tasks_blocked(0.05)
                stop.open()
            await handle.flush()
            await handle.close()
            await drained(engine)
            assert ground.names() == ["log.1"]
            assert ground.get("log.1") == b"old and new"

    run(scenario)


@pytest.mark.parametrize("afterwards", [False, True])
def test_a_file_that_is_written_while_it_is_deleted_stays_deleted(ground: Ground, afterwards: bool) -> None:
    ground.put("d/f", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            handle = await names.open((await names.lookup(ground.key("d/f"))).inode, write=True)
            stop = interpose(names).stop("delete", afterwards=afterwards)
            async with beside() as nursery:
                nursery.start_soon(names.unlink, ground.key("d/f"))
                await stop.reached()
                nursery.start_soon(handle.write, 0, b"new")
                await trio.testing.wait_all_tasks_blocked(0.05)
                stop.open()
            await handle.flush()
            assert bytes(await handle.read(0, 10)) == b"new"
            await handle.close()
            await drained(engine)
            assert list(engine.journal.records()) == []
            assert ground.names() == []
            await names.rmdir(ground.key("d"))
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await drained(engine)
            assert ground.names() == []

    run(scenario)


@pytest.mark.parametrize("method", ["walk", "rename", "copy", "delete"])
@pytest.mark.parametrize("afterwards", [False, True])
def test_what_is_written_below_a_directory_that_moves_moves_with_it(
    ground: Ground, method: str, afterwards: bool
) -> None:
    """C03, with writers: a clean file written anew, a dirty one closed, a new one made."""
    ground.put("old/clean", b"clean")
    ground.put("old/sub/other", b"other")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            if (method == "rename") != names.tree.can(Capability.RENAME):
                return
            key = ground.key
            await names.list(key("old/sub"))
            clean = await names.open((await names.lookup(key("old/clean"))).inode, write=True, append=True)
            _, dirty = await names.create(key("old/dirty"), mode=0o644, uid=0, gid=0)
            await dirty.write(0, b"dirty")

            async def finish_dirty() -> None:
                await dirty.write(5, b" more")
                await dirty.flush()
                await dirty.close()

            async def finish_clean() -> None:
                await clean.write(0, b" more")
                await clean.flush()
                await clean.close()

            made = False

            async def make_new() -> None:
                nonlocal made
                try:
                    await write_file(names, key("old/sub/new"), b"new")
                except Absent:
                    return
                made = True

            stop = interpose(names).stop(method, afterwards=afterwards)
            async with beside() as nursery:
                nursery.start_soon(lambda: names.rename(key("old"), key("new")))
                await stop.reached()
                for task in (finish_dirty, finish_clean, make_new):
                    nursery.start_soon(task)
                await trio.testing.wait_all_tasks_blocked(0.1)
                stop.open()
            await drained(engine)
            wanted = {"new/clean": b"clean more", "new/dirty": b"dirty more", "new/sub/other": b"other"}
            if made:
                wanted["old/sub/new"] = b"new"
            assert {name: ground.get(name) for name in ground.names()} == wanted
            for name, data in wanted.items():
                assert await read_file(names, key(name)) == data
            assert await is_absent(names, key("old")) == (not made)
            for name in wanted:
                await names.unlink(key(name))
            await names.rmdir(key("new/sub"))
            await names.rmdir(key("new"))

    run(scenario)


def test_a_write_while_the_older_bytes_arrive_is_counted_with_its_directory(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await names.root(ground.root)
            await names.mkdir(ground.key("d"), mode=0o755, uid=0, gid=0)
            origin = interpose(names)
            stop = origin.stop("write")
            await write_file(names, ground.key("d/f"), b"first")
            await stop.reached()
            handle = await names.open((await names.lookup(ground.key("d/f"))).inode, write=True)
            clone = engine.staging.clone

            async def slow_clone(*args: object) -> None:
                await clone(*args)
                stop.open()
                while engine.journal.get(first) is not None:
                    await engine.writeback.changed()

            first = (await names.lookup(ground.key("d/f"))).staged
            engine.staging.clone = slow_clone
            await handle.write(0, b"SECOND")
            engine.staging.clone = clone
            assert names.tree.exists_here(ground.key("d"))
            assert await read_file(names, ground.key("d/f")) == b"SECOND"
            await handle.flush()
            await handle.close()
            await drained(engine)
            assert ground.get("d/f") == b"SECOND"
            assert not names.tree.exists_here(ground.key("d"))
            await names.unlink(ground.key("d/f"))
            await names.rmdir(ground.key("d"))

    run(scenario)


def test_attributes_set_while_the_bytes_arrive_are_kept(ground: Ground) -> None:
    """Nobody has the file open: its upload ends while the copy for the new attributes is made."""

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await names.root(ground.root)
            stop = interpose(names).stop("write")
            await write_file(names, ground.key("f"), b"bytes")
            await stop.reached()
            entry = await names.lookup(ground.key("f"))
            clone = engine.staging.clone

            async def slow_clone(*args: object) -> None:
                await clone(*args)
                stop.open()
                while engine.journal.get(entry.staged) is not None:
                    await engine.writeback.changed()

            engine.staging.clone = slow_clone
            await names.setattr(entry.inode, mode=0o600)
            engine.staging.clone = clone
            await drained(engine)
            assert list(engine.journal.records()) == []
            assert ground.get("f") == b"bytes"
            assert (await names.lookup(ground.key("f"))).mode == 0o600
            attributes = ground.direct.stat(ground.key("f")).attributes
            assert attributes is not None
            assert attributes.mode & 0o7777 == 0o600

    run(scenario)


def test_two_appenders_that_wait_for_room_do_not_overwrite_each_other(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine(staging={"capacity": "1MiB"}) as (engine, names):
            await names.root(ground.root)
            stop = interpose(names).stop("write")
            await write_file(names, ground.key("big"), b"b" * 900_000)
            await stop.reached()
            _, first = await names.create(ground.key("log"), mode=0o644, uid=0, gid=0, append=True)
            second = await names.open((await names.lookup(ground.key("log"))).inode, write=True, append=True)
            async with beside() as nursery:
                nursery.start_soon(first.write, 0, b"1" * 200_000)
                nursery.start_soon(second.write, 0, b"2" * 200_000)
                await trio.testing.wait_all_tasks_blocked()
                assert engine.staging.budget.waiting
                stop.open()
            for handle in (first, second):
                await handle.flush()
                await handle.close()
            await drained(engine)
            data = ground.get("log")
            assert (data.count(b"1"), data.count(b"2"), len(data)) == (200_000, 200_000, 400_000)
            assert engine.staging.used_bytes == 0

    run(scenario)


def test_after_a_restart_the_file_that_was_published_last_has_the_name(posix_ground: Ground) -> None:
    """Opened first, closed last."""
    ground = posix_ground

    async def publish_two() -> None:
        async with ground.engine(profiles=NO_TTL, staging={"upload_delay_s": 60}) as (_, names):
            await names.root(ground.root)
            await names.mkdir(ground.key("d"), mode=0o755, uid=0, gid=0)
            staged = []
            for data in (b"opened first", b"opened second"):
                staged_id, path, _ = await names.stage(ground.key("d/f"), exclusive=False, keep=False)
                await trio.Path(path).write_bytes(data)
                staged.append(staged_id)
            await names.publish(staged[1])
            await names.publish(staged[0])

    async def look() -> None:
        async with ground.engine(profiles=NO_TTL, staging={"upload_delay_s": 60}) as (engine, names):
            assert await read_file(names, ground.key("d/f")) == b"opened first"
            await drained(engine)
            assert ground.get("d/f") == b"opened first"
            assert await read_file(names, ground.key("d/f")) == b"opened first"
            await names.remove_tree(ground.key("d"))
            assert await is_absent(names, ground.key("d"))
            assert not names.tree.exists_here(ground.key("d"))

    run(publish_two)
    run(look)
