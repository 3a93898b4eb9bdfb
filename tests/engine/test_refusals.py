"""What the origin refuses has not happened: no staged byte goes with it, and no error turns into an absence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Broken, Busy, Denied, TierCacheError
from tiercache.model import Capability

NO_TTL = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}
LATER = {"upload_delay_s": 60}


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})


def test_a_refused_unlink_keeps_the_written_bytes(ground: Ground) -> None:
    ground.put("f", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await write_file(names, ground.key("f"), b"new")
            interpose(names).fail("delete", Denied("no"))
            with pytest.raises(Denied):
                await names.unlink(ground.key("f"))
            assert await read_file(names, ground.key("f")) == b"new"
            await drained(engine)
            assert ground.get("f") == b"new"

    run(scenario)


@pytest.mark.parametrize("operation", ["rename", "copy"])
def test_what_a_refused_rename_or_copy_would_have_replaced_keeps_its_written_bytes(
    ground: Ground, operation: str
) -> None:
    ground.put("source", b"source")
    ground.put("target", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await write_file(names, ground.key("target"), b"new")
            method = "rename" if operation == "rename" and names.tree.can(Capability.RENAME) else "copy"
            interpose(names).fail(method, Broken("500"))
            change: Callable[..., Awaitable[object]] = names.rename if operation == "rename" else names.copy
            with pytest.raises(Broken):
                await change(ground.key("source"), ground.key("target"))
            assert await read_file(names, ground.key("target")) == b"new"
            assert await read_file(names, ground.key("source")) == b"source"
            await drained(engine)
            assert (ground.get("source"), ground.get("target")) == (b"source", b"new")

    run(scenario)


def test_a_directory_that_cannot_be_moved_keeps_its_written_files_where_they_are(ground: Ground) -> None:
    """C19."""
    ground.put("old/clean", b"clean")
    ground.put("old/dirty", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await write_file(names, ground.key("old/dirty"), b"new")
            await write_file(names, ground.key("old/made"), b"made")
            method = "rename" if names.tree.can(Capability.RENAME) else "copy"
            interpose(names).fail(method, Busy("503"))
            with pytest.raises(Busy):
                await names.rename(ground.key("old"), ground.key("new"))
            wanted = {"old/clean": b"clean", "old/dirty": b"new", "old/made": b"made"}
            for name, data in wanted.items():
                assert await read_file(names, ground.key(name)) == data
            await drained(engine)
            assert {name: ground.get(name) for name in ground.names()} == wanted

    run(scenario)


@pytest.mark.parametrize("error", [Denied("403"), Busy("timeout"), Broken("500")])
@pytest.mark.parametrize("asked", ["lookup", "list", "walk", "rmdir", "unlink", "rename", "remove_tree"])
def test_an_error_of_the_origin_is_never_an_absence(posix_ground: Ground, asked: str, error: TierCacheError) -> None:
    """C11; retries are not part of it."""
    ground = posix_ground
    ground.put("d/f", b"1")

    async def ask(names: Namespace) -> None:
        match asked:
            case "lookup":
                await names.lookup(ground.key("d/f"))
            case "list":
                await names.list(ground.key("d"))
            case "walk":
                await names.walk(ground.key("d"))
            case "rmdir":
                await names.rmdir(ground.key("d"))
            case "unlink":
                await names.unlink(ground.key("d/f"))
            case "rename":
                await names.rename(ground.key("d/f"), ground.key("d/g"))
            case "remove_tree":
                await names.remove_tree(ground.key("d"))

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (_, names):
            origin = interpose(names)
            for method in ("stat", "list", "walk"):
                origin.fail(method, error)
            with pytest.raises(type(error)):
                await ask(names)
            for method in ("stat", "list", "walk"):
                origin.clear(method)
            assert await read_file(names, ground.key("d/f")) == b"1"

    run(scenario)


def test_a_bucket_that_is_gone_is_not_an_empty_tree(posix_ground: Ground) -> None:
    async def scenario() -> None:
        async with posix_ground.engine() as (_, names):
            interpose(names).fail("walk", Absent("no such bucket"))
            with pytest.raises(Absent):
                await names.walk(b"")

    run(scenario)


def test_a_directory_made_while_it_was_listed_as_absent_is_there(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (_, names):
            await names.root(ground.root)
            stop = interpose(names).stop("list", afterwards=True)

            async def look() -> None:
                await names.list(ground.key("d"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(look)
                await stop.reached()
                await names.mkdir(ground.key("d"), mode=0o755, uid=0, gid=0)
                stop.open()
            await names.lookup(ground.key("d"))

    run(scenario)
