"""What a renamed file leaves under its old name: absent for us at once, removed at the origin as soon as possible."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import InterposedOrigin, interpose
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Busy, Denied
from tiercache.origins.posix import PosixOrigin

NO_TTL = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}
LATER = {"upload_delay_s": 60}


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})


async def is_absent(ground: Ground, names: Namespace, name: str) -> bool:
    listed = [entry for entry, _ in await names.list(ground.root)]
    try:
        await names.lookup(ground.key(name))
    except Absent:
        assert name.encode() not in listed
        return True
    assert name.encode() in listed
    return False


async def rename_dirty(ground: Ground, names: Namespace) -> InterposedOrigin:
    """``a``, which the origin has, is written and renamed to ``b``; the origin deletes nothing."""
    await write_file(names, ground.key("a"), b"new")
    origin = interpose(names)
    origin.fail("delete", *[Denied("not now")] * 100)
    await names.rename(ground.key("a"), ground.key("b"))
    return origin


def test_an_old_object_that_cannot_be_deleted_yet_is_absent_until_it_is(ground: Ground) -> None:
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            origin = await rename_dirty(ground, names)
            for _ in range(2):
                assert await is_absent(ground, names, "a")
                assert await read_file(names, ground.key("b")) == b"new"
                await drained(engine)
                assert ground.names() == ["a", "b"]
            origin.clear("delete")
            await drained(engine)
            assert ground.names() == ["b"]

    run(scenario)


def test_an_old_object_stays_absent_after_a_restart(posix_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground = posix_ground
    ground.put("a", b"old")

    def refused(self: PosixOrigin, key: bytes, etag: str = "") -> None:
        raise Denied("not now")

    async def rename() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (_, names):
            await rename_dirty(ground, names)

    async def look() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await drained(engine)
            assert ground.names() == ["a", "b"]
            assert await is_absent(ground, names, "a")
            assert await read_file(names, ground.key("b")) == b"new"

    async def end() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await drained(engine)
            assert ground.names() == ["b"]
            assert await is_absent(ground, names, "a")

    run(rename)
    with monkeypatch.context() as patch:
        patch.setattr(PosixOrigin, "delete", refused)
        run(look)
    run(end)


def test_a_rename_is_refused_when_the_origin_does_not_tell_what_it_has(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await names.root(ground.root)
            await write_file(names, ground.key("a"), b"new")
            origin = interpose(names)
            origin.fail("stat", *[Busy("503")] * 3)
            with pytest.raises(Busy):
                await names.rename(ground.key("a"), ground.key("b"), keep_directory=False)
            origin.clear("stat")
            assert await read_file(names, ground.key("a")) == b"new"
            assert await is_absent(ground, names, "b")
            await drained(engine)
            assert ground.names() == ["a"]

    run(scenario)


@pytest.mark.parametrize("sent", [False, True], ids=["while it waits", "while it goes"])
@pytest.mark.parametrize("how", ["mkdir", "create", "rename", "rename a directory"])
def test_a_name_that_was_renamed_away_can_be_used_at_once(ground: Ground, how: str, sent: bool) -> None:
    ground.put("a", b"old")
    ground.put("c", b"clean")
    ground.put("d/f", b"below")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await write_file(names, ground.key("a"), b"new")
            stop = interpose(names).stop("delete") if sent else None
            await names.rename(ground.key("a"), ground.key("b"))
            async with trio.open_nursery() as nursery:
                if stop is not None:
                    nursery.start_soon(engine.drain, 30)
                    await stop.reached()
                nursery.start_soon(use, names)
                if stop is not None:
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    stop.open()
            await drained(engine)
            wanted = {"b": b"new", "c": b"clean", "d/f": b"below"} | {
                "mkdir": {},
                "create": {"a": b"another"},
                "rename": {"a": b"clean"},
                "rename a directory": {"a/f": b"below"},
            }[how]
            wanted.pop({"rename": "c", "rename a directory": "d/f"}.get(how, ""), None)
            assert {name: ground.get(name) for name in ground.names()} == wanted

    async def use(names: Namespace) -> None:
        match how:
            case "mkdir":
                await names.mkdir(ground.key("a"), mode=0o755, uid=0, gid=0)
            case "create":
                _, handle = await names.create(ground.key("a"), mode=0o644, uid=0, gid=0, exclusive=True)
                await handle.write(0, b"another")
                await handle.flush()
                await handle.close()
            case "rename":
                await names.rename(ground.key("c"), ground.key("a"))
            case "rename a directory":
                await names.rename(ground.key("d"), ground.key("a"))

    run(scenario)


def test_a_dirty_copy_that_is_renamed_leaves_nothing_of_what_it_replaced(ground: Ground) -> None:
    ground.put("source", b"old")
    ground.put("a", b"replaced")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await write_file(names, ground.key("source"), b"new")
            await names.copy(ground.key("source"), ground.key("a"))
            await names.rename(ground.key("a"), ground.key("b"))
            assert await is_absent(ground, names, "a")
            await drained(engine)
            assert {name: ground.get(name) for name in ground.names()} == dict.fromkeys(["b", "source"], b"new")

    run(scenario)


def test_what_a_renamed_file_left_does_not_move_with_its_directory(ground: Ground) -> None:
    ground.put("d/a", b"old")
    ground.put("d/c", b"clean")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL, staging=LATER) as (engine, names):
            await write_file(names, ground.key("d/a"), b"new")
            origin = interpose(names)
            origin.fail("delete", *[Denied("not now")] * 100)
            await names.rename(ground.key("d/a"), ground.key("b"))
            await engine.drain(30)
            (left,) = engine.journal.retractions()
            assert left.last_error
            origin.clear("delete")
            await names.rename(ground.key("d"), ground.key("e"))
            assert await is_absent(ground, names, "e/a")
            await drained(engine)
            assert {name: ground.get(name) for name in ground.names()} == {"b": b"new", "e/c": b"clean"}

    run(scenario)


def test_what_a_cut_upload_left_in_a_directory_that_moved_does_not_move_it_again(posix_ground: Ground) -> None:
    """It may have been removed by then, and must not come back."""
    ground = posix_ground

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await names.root(ground.root)
            await names.mkdir(ground.key("d"), mode=0o755, uid=0, gid=0)
            origin = interpose(names)
            sending = origin.stop("write")
            await write_file(names, ground.key("d/a"), b"bytes")
            await sending.reached()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: names.rename(ground.key("d"), ground.key("e")))
                await trio.testing.wait_all_tasks_blocked(0.05)
                sending.open()
            await drained(engine)
            assert names.tree.trees_changed == 1
            await names.unlink(ground.key("e/a"))
            await names.rmdir(ground.key("e"))
            await drained(engine)
            assert await is_absent(ground, names, "e")

    run(scenario)
