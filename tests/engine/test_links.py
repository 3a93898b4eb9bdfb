"""Hard links, on an origin that has them: what is written to a file is written to all its names."""

from __future__ import annotations

import os

import pytest
import trio
import trio.testing

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent

NO_TTL = {"general": {"ttl_s": 0, "negative_ttl_s": 0}}


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})


def test_new_attributes_are_those_of_every_name(posix_ground: Ground) -> None:
    ground = posix_ground
    ground.put("a", b"bytes")

    async def scenario() -> None:
        async with ground.engine("dataset", profiles={"dataset": {"read_only": False}}) as (_, names):
            inode = (await names.lookup(ground.key("a"))).inode
            await names.link(inode, ground.key("b"))
            await names.setattr(inode, mode=0o201, uid=7, mtime_ns=10**18)
            for name in ("a", "b"):
                found = await names.lookup(ground.key(name))
                assert (found.inode, found.mode, found.uid, found.mtime_ns) == (inode, 0o201, 7, 10**18)
                assert await read_file(names, ground.key(name)) == b"bytes"
            await names.unlink(ground.key("a"))
            left = await names.lookup(ground.key("b"))
            assert (left.mode, left.uid, left.link_count) == (0o201, 7, 1)

    run(scenario)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("how", ["unlink", "replace", "rename"])
def test_a_name_that_goes_takes_no_written_bytes_from_the_other(posix_ground: Ground, how: str, restart: bool) -> None:
    ground = posix_ground
    ground.put("a", b"old")

    async def link_and_write() -> None:
        async with ground.engine(profiles=NO_TTL, staging={"upload_delay_s": 60}) as (_, names):
            await names.link((await names.lookup(ground.key("a"))).inode, ground.key("b"))
            if not restart:
                await write_and_part(names)
            else:
                await write_file(names, ground.key("a"), b"new bytes")

    async def write_and_part(names: Namespace) -> None:
        await write_file(names, ground.key("a"), b"new bytes")
        assert (await names.lookup(ground.key("b"))).size_bytes == 9
        await part(names)

    async def part(names: Namespace) -> None:
        match how:
            case "unlink":
                await names.unlink(ground.key("a"))
            case "replace":
                await write_file(names, ground.key("c"), b"another")
                await names.rename(ground.key("c"), ground.key("a"))
            case "rename":
                await names.rename(ground.key("a"), ground.key("c"))
        assert await read_file(names, ground.key("b")) == b"new bytes"

    async def go_on() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            if restart:
                await part(names)
            await drained(engine)
            wanted = {"b": b"new bytes"}
            if how != "unlink":
                wanted["c" if how == "rename" else "a"] = b"new bytes" if how == "rename" else b"another"
            assert {name: ground.get(name) for name in ground.names()} == wanted
            for name, data in wanted.items():
                assert await read_file(names, ground.key(name)) == data

    run(link_and_write)
    run(go_on)


@pytest.mark.parametrize("edited", [False, True])
def test_a_file_saved_over_a_name_leaves_its_backup_alone(posix_ground: Ground, edited: bool) -> None:
    """ln t t.bak; write t.tmp; mv t.tmp t: as editors do."""
    ground = posix_ground
    ground.put("t", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}) as (engine, names):
            await names.link((await names.lookup(ground.key("t"))).inode, ground.key("t.bak"))
            if edited:
                await write_file(names, ground.key("t"), b"old")
                await drained(engine)
            await write_file(names, ground.key("t.tmp"), b"new")
            await names.rename(ground.key("t.tmp"), ground.key("t"))
            await drained(engine)
            assert (ground.get("t"), ground.get("t.bak")) == (b"new", b"old")
            assert await read_file(names, ground.key("t.bak")) == b"old"
            with pytest.raises(Absent):
                await names.lookup(ground.key("t.tmp"))

    run(scenario)


def test_the_other_name_shows_the_new_bytes_once_they_are_at_the_origin(posix_ground: Ground) -> None:
    ground = posix_ground
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}) as (engine, names):
            await names.link((await names.lookup(ground.key("a"))).inode, ground.key("b"))
            await write_file(names, ground.key("a"), b"new bytes")
            assert await read_file(names, ground.key("b")) == b"new bytes"
            await drained(engine)
            assert await read_file(names, ground.key("b")) == b"new bytes"
            assert (await names.lookup(ground.key("b"))).size_bytes == 9

    run(scenario)


async def linked(ground: Ground, names: Namespace) -> None:
    """``a`` and ``b`` are one file."""
    await names.link((await names.lookup(ground.key("a"))).inode, ground.key("b"))


async def publish(ground: Ground, names: Namespace, name: str, data: bytes, *, keep: bool = False) -> None:
    """As a client does it."""
    staged, path, _ = await names.stage(ground.key(name), exclusive=False, keep=keep)
    async with await trio.open_file(path, "ab") as file:
        await file.write(data)
    await names.publish(staged)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("dirty", [False, True])
@pytest.mark.parametrize("how", ["publish", "append", "copy", "copy dirty", "rename", "rename dirty"])
def test_what_replaces_a_name_leaves_the_other_names_alone(
    posix_ground: Ground, how: str, dirty: bool, restart: bool
) -> None:
    ground = posix_ground
    ground.put("a", b"old")
    ground.put("c", b"clean")
    wanted = {"publish": b"new", "append": b"old and new", "copy": b"clean", "rename": b"clean"}.get(how, b"dirty")

    async def replace() -> None:
        async with ground.engine(profiles=NO_TTL, staging={"upload_delay_s": 60}) as (engine, names):
            await linked(ground, names)
            if dirty:
                await write_file(names, ground.key("b"), b"old")
            match how.split():
                case ["publish"]:
                    await publish(ground, names, "a", b"new")
                case ["append"]:
                    await publish(ground, names, "a", b" and new", keep=True)
                case [operation, *more]:
                    if more:
                        await write_file(names, ground.key("c"), b"dirty")
                    await getattr(names, operation)(ground.key("c"), ground.key("a"))
            assert await read_file(names, ground.key("a")) == wanted
            assert await read_file(names, ground.key("b")) == b"old"
            if not restart:
                await check(engine, names)

    async def check(engine: Engine, names: Namespace) -> None:
        await drained(engine)
        assert (ground.get("a"), ground.get("b")) == (wanted, b"old")
        assert await read_file(names, ground.key("a")) == wanted
        assert await read_file(names, ground.key("b")) == b"old"
        assert [(await names.lookup(ground.key(name))).link_count for name in "ab"] == [1, 1]

    async def look() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await check(engine, names)

    run(replace)
    if restart:
        run(look)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("how", ["truncate", "write"])
def test_what_is_written_through_an_open_file_is_written_to_all_its_names(
    posix_ground: Ground, how: str, restart: bool
) -> None:
    ground = posix_ground
    ground.put("a", b"old")
    wanted = b"new" if how == "truncate" else b"oldnew"

    async def write() -> None:
        async with ground.engine(profiles=NO_TTL, staging={"upload_delay_s": 60}) as (engine, names):
            await linked(ground, names)
            inode = ground.direct.stat(ground.key("a")).file_id
            if how == "truncate":
                await write_file(names, ground.key("a"), b"new")
            else:
                handle = await names.open((await names.lookup(ground.key("b"))).inode, write=True, append=True)
                await handle.write(0, b"new")
                await handle.flush()
                await handle.close()
            if not restart:
                await check(engine, names)
                assert ground.direct.stat(ground.key("b")).file_id == inode

    async def check(engine: Engine, names: Namespace) -> None:
        for _ in range(2):
            for name in "ab":
                assert await read_file(names, ground.key(name)) == wanted
                assert (await names.lookup(ground.key(name))).link_count == 2
            await drained(engine)
            assert (ground.get("a"), ground.get("b")) == (wanted, wanted)

    async def look() -> None:
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await check(engine, names)

    run(write)
    if restart:
        run(look)


def test_a_catalog_tells_all_names_of_a_file_that_it_is_written(posix_ground: Ground) -> None:
    """Clients read the catalog themselves."""
    ground = posix_ground
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}, staging={"upload_delay_s": 60}) as (_, names):
            await linked(ground, names)
            await write_file(names, ground.key("a"), b"new bytes")
            first, second = (names.tree.entry(ground.key(name)) for name in "ab")
            assert first is not None
            assert second is not None
            assert (second.staged, second.size_bytes) == (first.staged, 9)
            os.link(ground.path("a"), ground.path("c"))
            await names.lookup(ground.key("c"))
            third = names.tree.entry(ground.key("c"))
            assert third is not None
            assert (third.inode, third.staged) == (first.inode, first.staged)

    run(scenario)


def test_new_attributes_are_those_of_all_names(posix_ground: Ground) -> None:
    ground = posix_ground
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}) as (engine, names):
            await linked(ground, names)
            await names.setattr((await names.lookup(ground.key("b"))).inode, mode=0o600, mtime_ns=1_000_000_000)
            entry = await names.lookup(ground.key("a"))
            assert (entry.mode, entry.mtime_ns) == (0o600, 1_000_000_000)
            assert await read_file(names, ground.key("a")) == b"old"
            handle = await names.open(entry.inode, write=True, append=True)
            await handle.write(0, b" and new")
            await handle.flush()
            await handle.close()
            await drained(engine)
            assert (ground.get("a"), ground.get("b")) == (b"old and new", b"old and new")

    run(scenario)


def test_a_writer_waits_while_another_name_of_its_file_is_moved(posix_ground: Ground) -> None:
    ground = posix_ground
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}) as (engine, names):
            await linked(ground, names)
            handle = await names.open((await names.lookup(ground.key("a"))).inode, write=True, append=True)
            stop = interpose(names).stop("rename", afterwards=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: names.rename(ground.key("b"), ground.key("c")))
                await stop.reached()
                nursery.start_soon(handle.write, 0, b" and new")
                await trio.testing.wait_all_tasks_blocked(0.05)
                stop.open()
            for closed in (False, True):
                if closed:
                    await handle.close()
                    await drained(engine)
                for name in "ac":
                    assert await read_file(names, ground.key(name)) == b"old and new"
                    entry = names.tree.entry(ground.key(name))
                    assert entry is not None
                    assert bool(entry.staged) != closed
            assert {name: ground.get(name) for name in ground.names()} == dict.fromkeys("ac", b"old and new")

    run(scenario)


def test_a_name_that_others_replaced_leaves_the_file_its_other_names(posix_ground: Ground) -> None:
    ground = posix_ground
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (_, names):
            await linked(ground, names)
            inode = (await names.lookup(ground.key("a"))).inode
            # Whole in the cache, whichever name the handle goes by: else it may be told that its version is gone.
            assert [await read_file(names, ground.key(name)) for name in "ab"] == [b"old", b"old"]
            handle = await names.open(inode)
            ground.put("a", b"another")
            os.link(ground.path("a"), ground.path("c"))
            assert (await names.lookup(ground.key("a"))).inode != inode
            assert (await names.lookup(ground.key("c"))).inode == (await names.lookup(ground.key("a"))).inode
            assert (await names.lookup(ground.key("b"))).inode == inode
            assert [await read_file(names, ground.key(name)) for name in "abc"] == [b"another", b"old", b"another"]
            assert bytes(await handle.read(0, 10)) == b"old"
            await handle.close()

    run(scenario)


@pytest.mark.parametrize("how", ["stat", "chmod", "open", "truncate", "link"])
def test_a_file_is_found_by_the_name_that_others_left_it(posix_ground: Ground, how: str) -> None:
    ground = posix_ground
    ground.put("a", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles=NO_TTL) as (_, names):
            await linked(ground, names)
            inode = (await names.lookup(ground.key("a"))).inode
            assert (await names.lookup(ground.key("b"))).inode == inode
            gone = os.fsdecode(names.key_of(inode)).rpartition("/")[2]
            ground.direct.delete(ground.key(gone))
            left = "b" if gone == "a" else "a"
            match how:
                case "stat":
                    assert (await names.getattr(inode)).size_bytes == 3
                case "chmod":
                    assert (await names.setattr(inode, mode=0o600)).mode == 0o600
                case "open":
                    handle = await names.open(inode)
                    assert bytes(await handle.read(0, 10)) == b"old"
                    await handle.close()
                case "truncate":
                    assert (await names.setattr(inode, size=1)).size_bytes == 1
                case "link":
                    assert (await names.link(inode, ground.key("c"))).link_count == 2
            assert (await names.lookup(ground.key(left))).inode == inode

    run(scenario)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("how", ["unlink", "rename", "rename over", "publish"])
def test_written_bytes_stay_with_the_other_name_while_the_origin_takes_none(
    posix_ground: Ground, how: str, restart: bool
) -> None:
    """Whichever of the names they were written under."""
    ground = posix_ground
    ground.put("a", b"old")
    ground.put("c", b"another")
    profiles = {"general": {**NO_TTL["general"], "upload": False}}

    async def part() -> None:
        async with ground.engine(profiles=profiles) as (_, names):
            await linked(ground, names)
            for gone, stays in (("a", "b"), ("b", "a")):
                await write_file(names, ground.key(gone), b"new bytes")
                match how:
                    case "unlink":
                        await names.unlink(ground.key(gone))
                    case "rename":
                        await names.rename(ground.key(gone), ground.key("d"))
                        assert await read_file(names, ground.key("d")) == b"new bytes"
                    case "rename over":
                        await names.copy(ground.key("c"), ground.key("e"))
                        await names.rename(ground.key("e"), ground.key(gone))
                        assert await read_file(names, ground.key(gone)) == b"another"
                    case "publish":
                        await publish(ground, names, gone, b"published")
                        assert await read_file(names, ground.key(gone)) == b"published"
                assert await read_file(names, ground.key(stays)) == b"new bytes"
                if how != "rename":
                    break
                await names.rename(ground.key("d"), ground.key(gone))
            if not restart:
                await check(names)

    async def check(names: Namespace) -> None:
        assert await read_file(names, ground.key("b")) == b"new bytes"
        entries = [entry for name, entry in await names.list(ground.root) if name == b"b"]
        assert [entry.size_bytes for entry in entries] == [9]

    async def look() -> None:
        async with ground.engine(profiles=profiles) as (_, names):
            await check(names)
        async with ground.engine(profiles=NO_TTL) as (engine, names):
            await drained(engine)
            assert ground.get("b") == b"new bytes"
            assert await read_file(names, ground.key("b")) == b"new bytes"

    run(part)
    if restart:
        run(look)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_tree_that_is_removed_takes_no_written_bytes_from_a_name_elsewhere(
    posix_ground: Ground, elsewhere: bool
) -> None:
    ground = posix_ground
    ground.put("d/a", b"old")

    async def scenario() -> None:
        async with ground.engine(profiles={"general": {"ttl_s": "inf"}}, staging={"upload_delay_s": 60}) as (
            engine,
            names,
        ):
            inode = (await names.lookup(ground.key("d/a"))).inode
            for name in ("d/b", "e" if elsewhere else "d/e"):
                await names.link(inode, ground.key(name))
            await write_file(names, ground.key("d/a"), b"new bytes")
            await names.remove_tree(ground.key("d"))
            await drained(engine)
            assert {name: ground.get(name) for name in ground.names()} == ({"e": b"new bytes"} if elsewhere else {})
            if elsewhere:
                assert await read_file(names, ground.key("e")) == b"new bytes"

    run(scenario)


@pytest.mark.parametrize("how", ["list", "walk"])
@pytest.mark.parametrize("known", [False, True])
def test_names_that_one_listing_tells_of_a_linked_file_are_one_file(
    posix_ground: Ground, how: str, known: bool
) -> None:
    """Made by others, and first seen together; or one of them was known before."""
    ground = posix_ground
    ground.put("b", b"old")

    async def scenario() -> None:
        async with ground.engine("dataset", profiles={"dataset": {"read_only": False}}) as (engine, names):
            before = (await names.lookup(ground.key("b"))).inode if known else 0
            os.link(ground.path("b"), ground.path("a"))
            os.link(ground.path("b"), ground.path("c"))
            await (names.list(ground.root) if how == "list" else names.walk(ground.root))
            inodes = {(await names.lookup(ground.key(name))).inode for name in "abc"}
            assert len(inodes) == 1
            assert not known or inodes == {before}
            await write_file(names, ground.key("a"), b"written")
            assert {await read_file(names, ground.key(name)) for name in "abc"} == {b"written"}
            await drained(engine)
        assert {ground.get(name) for name in "abc"} == {b"written"}

    run(scenario)
