"""Hard links, on an origin that has them: what is written to a file is written to all its names."""

from __future__ import annotations

import pytest

from rig.engine_ground import Ground, read_file, run, write_file
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
