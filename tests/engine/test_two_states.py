"""A file that is written again while its earlier bytes are on their way has two staged files: whatever becomes of its
name is done to both, whenever the earlier one arrives."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import InterposedOrigin, Stop, interpose
from tiercache.engine.engine import Engine
from tiercache.engine.handle import Handle
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Busy, UploadFailed
from tiercache.model import Capability
from tiercache.origins.temporary import temporary_name

NO_TTL = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}
TTL = {"general": {"ttl_s": 60, "negative_ttl_s": 5}}
SLOW = {"retry_base_s": 60, "retry_cap_s": 60}


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})
    assert not list(engine.journal.records()), "left in the journal"


async def arrived(engine: Engine, staged_id: int) -> None:
    with trio.fail_after(20):
        while engine.journal.get(staged_id) is not None:
            await engine.writeback.changed()


async def fail(engine: Engine, sending: Stop, staged_id: int) -> None:
    sending.fail(Busy("not now"))
    while engine.writeback.error_of(staged_id) is None:
        await engine.writeback.changed()


class Twice:
    """``name``: its first bytes wait on their way to the origin, its second ones are being written."""

    def __init__(self, origin: InterposedOrigin, sending: Stop, first: int, handle: Handle) -> None:
        self.origin = origin
        self.sending = sending
        self.first = first
        self.handle = handle

    async def fail_first(self, engine: Engine) -> None:
        """The first bytes do not arrive; they wait for their next try."""
        await fail(engine, self.sending, self.first)

    async def close(self) -> None:
        await self.handle.flush()
        await self.handle.close()


@asynccontextmanager
async def written_twice(ground: Ground, names: Namespace, name: str, first: bytes = b"first") -> AsyncIterator[Twice]:
    await names.root(ground.root)
    if "/" in name:
        await names.mkdir(ground.key(os.path.dirname(name)), mode=0o755, uid=0, gid=0)
    origin = interpose(names)
    sending = origin.stop("write")
    await write_file(names, ground.key(name), first)
    await sending.reached()
    entry = await names.lookup(ground.key(name))
    handle = await names.open(entry.inode, write=True)
    await handle.write(0, b"SECOND")
    try:
        yield Twice(origin, sending, entry.staged, handle)
    finally:
        sending.open()


@asynccontextmanager
async def beside() -> AsyncIterator[trio.Nursery]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            yield nursery


async def is_absent(names: Namespace, key: bytes) -> bool:
    try:
        await names.lookup(key)
    except Absent:
        return True
    return False


def test_first_bytes_that_arrive_while_a_rename_asks_what_is_there_do_not_stay(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine(profiles=TTL) as (engine, names), written_twice(ground, names, "a") as file:
            assert await is_absent(names, ground.key("b"))
            asked = file.origin.stop("stat", afterwards=True)
            async with beside() as nursery:
                nursery.start_soon(lambda: names.rename(ground.key("a"), ground.key("b"), keep_directory=False))
                await asked.reached()
                file.sending.open()
                await arrived(engine, file.first)
                asked.open()
            await file.close()
            await drained(engine)
            assert {name: ground.get(name) for name in ground.names()} == {"b": b"SECOND"}

    run(scenario)


def test_first_bytes_that_arrive_while_the_file_is_removed_do_not_stay(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names), written_twice(ground, names, "a") as file:
            removed = file.origin.stop("delete", afterwards=True)
            async with beside() as nursery:
                nursery.start_soon(lambda: names.unlink(ground.key("a"), keep_directory=False))
                await removed.reached()
                file.sending.open()
                await arrived(engine, file.first)
                removed.open()
            await file.close()
            await drained(engine)
            assert ground.names() == []
            assert await is_absent(names, ground.key("a"))

    run(scenario)


def test_both_states_move_with_their_directory(ground: Ground) -> None:
    async def move() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names), written_twice(ground, names, "d/a") as file:
            async with beside() as nursery:
                nursery.start_soon(lambda: names.rename(ground.key("d"), ground.key("e")))
                await trio.testing.wait_all_tasks_blocked(0.05)
                file.sending.open()
            await file.close()
            await drained(engine)
            assert {name: ground.get(name) for name in ground.names()} == {"e/a": b"SECOND"}

    async def look() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await drained(engine)
            assert {name: ground.get(name) for name in ground.names()} == {"e/a": b"SECOND"}
            assert await read_file(names, ground.key("e/a")) == b"SECOND"

    run(move)
    run(look)


@pytest.mark.parametrize("change", ["rename", "unlink"])
def test_a_file_that_a_client_has_replaced_does_not_come_back_when_the_name_goes(ground: Ground, change: str) -> None:
    """Its bytes are on their way when another file takes the name, which goes at once."""

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await names.root(ground.root)
            sending = interpose(names).stop("write")
            await write_file(names, ground.key("a"), b"first")
            await sending.reached()
            staged_id, path, _ = await names.stage(ground.key("a"), exclusive=False, keep=False)
            await trio.Path(path).write_bytes(b"SECOND")
            await names.publish(staged_id)
            if change == "rename":
                await names.rename(ground.key("a"), ground.key("b"), keep_directory=False)
            else:
                await names.unlink(ground.key("a"), keep_directory=False)
            sending.open()
            await drained(engine)
            wanted = {"b": b"SECOND"} if change == "rename" else {}
            assert {name: ground.get(name) for name in ground.names()} == wanted

    run(scenario)


def test_a_file_that_is_renamed_over_both_states_keeps_the_name(ground: Ground) -> None:
    """The first state's next try comes while the origin moves the other file there."""
    ground.put("c", b"clean")

    async def scenario() -> None:
        async with (
            ground.engine(profiles=NO_TTL, upload=SLOW) as (engine, names),
            written_twice(ground, names, "a", b"") as file,
        ):
            await file.fail_first(engine)
            moving = file.origin.stop("rename" if names.tree.can(Capability.RENAME) else "copy")
            again = file.origin.stop("write")
            async with beside() as nursery:
                nursery.start_soon(lambda: names.rename(ground.key("c"), ground.key("a"), keep_directory=False))
                await moving.reached()
                nursery.start_soon(drained, engine)  # it tries everything at once
                await trio.testing.wait_all_tasks_blocked(0.1)
                moving.open()
                await trio.testing.wait_all_tasks_blocked(0.1)
                again.open()
            await file.close()
            await drained(engine)
            assert {name: ground.get(name) for name in ground.names()} == {"a": b"clean"}
            assert await read_file(names, ground.key("a")) == b"clean"

    run(scenario)


def leave_torn(ground: Ground, engine: Engine, staged_id: int) -> None:
    """What an engine leaves that is killed while it sends the bytes of ``a``."""
    record = engine.journal.get(staged_id)
    assert record is not None
    with open(os.path.join(ground.path(""), temporary_name(b"a", record.upload_id)), "wb") as torn:
        torn.write(b"fir")


def test_what_a_torn_upload_left_goes_when_a_second_state_goes_up(posix_ground: Ground) -> None:
    ground = posix_ground

    async def scenario() -> None:
        async with (
            ground.engine(profiles=NO_TTL, upload=SLOW) as (engine, names),
            written_twice(ground, names, "a") as file,
        ):
            leave_torn(ground, engine, file.first)
            await file.fail_first(engine)
            await file.close()
            await drained(engine)
            assert os.listdir(ground.path("")) == ["a"]
            assert ground.get("a") == b"SECOND"

    run(scenario)


def test_what_a_torn_upload_left_goes_when_the_same_file_goes_up_with_more(posix_ground: Ground) -> None:
    ground = posix_ground

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, upload=SLOW) as (engine, names):
            await names.root(ground.root)
            sending = interpose(names).stop("write")
            await write_file(names, ground.key("a"), b"first")
            await sending.reached()
            entry = await names.lookup(ground.key("a"))
            leave_torn(ground, engine, entry.staged)
            await fail(engine, sending, entry.staged)
            handle = await names.open(entry.inode, write=True)
            await handle.write(5, b" and more")
            assert (await names.lookup(ground.key("a"))).staged == entry.staged
            with pytest.raises(UploadFailed):
                await handle.flush()
            await handle.close()
            await drained(engine)
            assert os.listdir(ground.path("")) == ["a"]
            assert ground.get("a") == b"first and more"

    run(scenario)


@pytest.mark.parametrize("change", ["rename", "unlink"])
def test_second_bytes_whose_name_changes_while_the_first_give_way_go_with_it(ground: Ground, change: str) -> None:
    async def scenario() -> None:
        async with (
            ground.engine(profiles=NO_TTL, upload=SLOW) as (engine, names),
            written_twice(ground, names, "a") as file,
        ):
            await file.fail_first(engine)
            flush, giving_way, go_on = engine.journal.flush, trio.Event(), trio.Event()

            async def slow_flush() -> None:
                if engine.journal.get(file.first) is None and not giving_way.is_set():
                    giving_way.set()
                    await go_on.wait()
                await flush()

            engine.journal.flush = slow_flush
            await file.close()
            await giving_way.wait()
            if change == "rename":
                await names.rename(ground.key("a"), ground.key("b"), keep_directory=False)
            else:
                await names.unlink(ground.key("a"), keep_directory=False)
            go_on.set()
            await drained(engine)
            wanted = {"b": b"SECOND"} if change == "rename" else {}
            assert {name: ground.get(name) for name in ground.names()} == wanted

    run(scenario)


def test_an_open_file_whose_bytes_arrive_while_it_is_removed_is_read_on(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await names.root(ground.root)
            origin = interpose(names)
            sending = origin.stop("write")
            await write_file(names, ground.key("a"), b"bytes")
            await sending.reached()
            entry = await names.lookup(ground.key("a"))
            handle = await names.open(entry.inode, write=True)
            removed = origin.stop("delete")
            async with beside() as nursery:
                nursery.start_soon(lambda: names.unlink(ground.key("a"), keep_directory=False))
                await removed.reached()
                sending.open()
                await arrived(engine, entry.staged)
                removed.open()
            assert bytes(await handle.read(0, 10)) == b"bytes"
            await handle.close()
            await drained(engine)
            assert ground.names() == []

    run(scenario)
