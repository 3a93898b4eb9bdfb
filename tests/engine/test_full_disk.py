"""A disk with less room than the capacities say, or filled from outside: cached bytes make way for written ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from rig.cache_rig import bytes_of
from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from rig.small_disk import free_bytes, small_disk
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, DiskFull, NoSpace
from tiercache.model import BLOCK_SIZE_BYTES as BS
from tiercache.model import Key, Tier
from tiercache.units import MIB

STAGING_MIB = 8
SETTINGS = {
    "ram": {"capacity": 0},
    "nvme": {"capacity": "1GiB", "free_space_floor": "1MiB"},
    "staging": {"capacity": f"{STAGING_MIB}MiB"},
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 24) as path:
        yield path


@pytest.fixture
def small(posix_ground: Ground, disk: Path) -> Ground:
    """The cache directory lies on a disk of 24 MiB."""
    return replace(posix_ground, cache_dir=disk / "cache", settings=SETTINGS)


def put_clean(ground: Ground, count: int, size_bytes: int = MIB) -> list[str]:
    clean = [f"clean{number}" for number in range(count)]
    for name in clean:
        ground.put(name, bytes_of(name, size_bytes))
    return clean


async def churn(ground: Ground, names: Namespace, clean: list[str]) -> None:
    for name in clean:
        data = await read_file(names, ground.key(name))
        assert data == bytes_of(name, len(data))
        assert data


def fill(disk: Path) -> Path:
    """Take all that is free; others than we do it."""
    other = disk / "other"
    with other.open("ab") as file:
        while free := free_bytes(disk):
            file.write(bytes(free))
            file.flush()
    return other


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})


def evictions(engine: Engine) -> float:
    found = engine.metrics.snapshot()["evictions_total"]
    assert isinstance(found, dict)
    return found.get(Tier.NVME.label, 0.0)


def waits(engine: Engine) -> float:
    count = engine.metrics.snapshot()["disk_full_waits_total"]
    assert isinstance(count, float)
    return count


def test_what_staging_may_still_take_is_free_however_much_is_read(small: Ground, disk: Path) -> None:
    """C23: the room of the budget is real: a whole budget is written without anything being evicted for it."""

    clean = put_clean(small, 24)

    async def play() -> None:
        async with small.engine(staging={"capacity": "8MiB", "upload_delay_s": 3600}) as (engine, names):
            await churn(small, names, clean)
            assert evictions(engine) > 0
            assert free_bytes(disk) >= (STAGING_MIB + 1) * MIB
            before = evictions(engine)
            await write_file(names, small.key("dirty"), bytes_of("dirty", STAGING_MIB * MIB))
            assert evictions(engine) == before
            await churn(small, names, clean)
            assert free_bytes(disk) >= MIB
            assert await read_file(names, small.key("dirty")) == bytes_of("dirty", STAGING_MIB * MIB)

    run(play)


@pytest.mark.parametrize("how", ["write", "append", "allocate", "copy"])
def test_cached_versions_make_way_for_written_bytes(small: Ground, disk: Path, how: str) -> None:
    """C23: the disk is filled from outside while the budget has room."""
    data = bytes_of("dirty", 3 * MIB)

    async def change(names: Namespace, key: Key) -> bytes:
        inode = (await names.lookup(key)).inode
        handle = await names.open(inode, write=True, append=how == "append")
        try:
            if how == "write":
                await handle.write(0, data)
                wanted = data
            elif how == "append":
                await handle.write(0, data)
                wanted = b"begun" + data
            elif how == "allocate":
                await handle.allocate(0, 0, len(data))
                wanted = b"begun" + bytes(len(data) - 5)
            else:
                source = await names.open((await names.lookup(small.key("source"))).inode)
                copied = 0
                while copied < len(data):  # copy_file_range(2) may copy less, where the disk was full for a moment
                    copied += await handle.copy_from(source, copied, copied, len(data) - copied)
                await source.close()
                wanted = data
            await handle.flush()
        finally:
            await handle.close()
        return wanted

    small.put("source", data)
    clean = put_clean(small, 8)

    async def play() -> None:
        async with small.engine() as (engine, names):
            await write_file(names, small.key("dirty"), b"begun")
            await drained(engine)
            await churn(small, names, clean)
            assert await read_file(names, small.key("source")) == data
            fill(disk)
            wanted = await change(names, small.key("dirty"))
            assert evictions(engine) > 0
            assert waits(engine) == 0
            await drained(engine)
            assert small.get("dirty") == wanted
            await churn(small, names, clean)

    run(play)


def test_a_writer_waits_for_uploads_when_the_cache_has_nothing_to_give(small: Ground, disk: Path) -> None:
    """C23: an append that found room for a part of its bytes; when the upload lands, all of them are there, once."""
    data, more = bytes_of("first", 2 * MIB), bytes_of("more", 2 * MIB + 1)

    async def play() -> None:
        async with small.engine() as (engine, names):
            _, handle = await names.create(small.key("second"), mode=0o600, uid=os.getuid(), gid=os.getgid())
            await handle.write(0, b"begun")
            await handle.fsync()
            stop = interpose(names).stop("write")
            await write_file(names, small.key("first"), data)
            await stop.reached()
            other = fill(disk)
            os.truncate(other, other.stat().st_size - MIB)  # a part fits
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handle.write, 5, more)
                while not waits(engine):  # noqa: ASYNC110 - a figure has no event
                    await trio.sleep(0.01)
                assert handle.entry.size_bytes == 5
                stop.open()
            await handle.close()
            await drained(engine)
            assert small.get("first") == data
            assert small.get("second") == b"begun" + more
            assert engine.staging.used_bytes == 0

    run(play)


@pytest.mark.parametrize("uploading", [False, True])
def test_a_full_disk_is_told_when_nothing_else_is_possible(small: Ground, disk: Path, uploading: bool) -> None:
    """C23: at once where nothing goes up, else after ``wait_max_s``; what was acknowledged before stays, and once the
    disk is free again the writer goes on."""

    async def play() -> None:
        async with small.engine(staging={"capacity": "8MiB", "wait_max_s": 0.5}) as (engine, names):
            _, handle = await names.create(small.key("file"), mode=0o600, uid=os.getuid(), gid=os.getgid())
            await handle.write(0, b"acknowledged")
            await handle.fsync()
            stop = interpose(names).stop("write")
            if uploading:
                await write_file(names, small.key("other"), b"on its way")
                await stop.reached()
            other = fill(disk)
            with pytest.raises(DiskFull):
                await handle.write(12, bytes(MIB))
            assert waits(engine) == uploading
            assert engine.staging.used_bytes <= 12 + 10
            other.unlink()
            await handle.write(12, b" and more")
            await handle.flush()
            await handle.close()
            stop.open()
            await drained(engine)
            assert small.get("file") == b"acknowledged and more"

    run(play)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_file_that_the_catalog_has_no_room_for_leaves_nothing(posix_ground: Ground, at_once: bool) -> None:
    """C23: its record would stay open for ever, and keep the engine from draining."""

    async def play() -> None:
        async with posix_ground.engine() as (engine, names):
            key = posix_ground.key("file")
            await names.lookup(posix_ground.root)
            with pytest.raises(Absent):
                await names.lookup(key)
            put = names.tree.put

            def refuse(*arguments: Any) -> None:
                names.tree.put = put  # type: ignore[method-assign]
                raise NoSpace("the catalog is full")

            names.tree.put = refuse  # type: ignore[method-assign]
            who = {"mode": 0o600, "uid": os.getuid(), "gid": os.getgid()}

            async def create() -> None:
                if at_once:
                    names.create_now(key, **who)
                else:
                    await names.create(key, **who)

            with pytest.raises(NoSpace):
                await create()
            assert list(engine.journal.records()) == []
            assert engine.staging.scan() == {}
            await write_file(names, key, b"again")
            await drained(engine)
            assert posix_ground.get("file") == b"again"

    run(play)


def test_staged_bytes_survive_a_churn_of_clean_blocks(posix_ground: Ground, tmp_path: Path) -> None:
    """C13: 8 dirty blocks under a paused PUT, 50 clean blocks through a cache of 10, on a disk with room for 16."""
    clean = put_clean(posix_ground, 10, 5 * BS)
    dirty = [f"dirty{number}" for number in range(8)]
    capacities = {"nvme": {"capacity": 10 * BS, "free_space_floor": 0}, "staging": {"capacity": 8 * BS}}

    async def play(ground: Ground) -> None:
        async with ground.engine(**capacities) as (engine, names):
            origin = interpose(names)
            stops = [origin.stop("write") for _ in dirty]
            for name in dirty:
                await write_file(names, ground.key(name), bytes_of(name, BS))
            await stops[0].reached()
            await churn(ground, names, clean)
            for name in dirty:
                assert await read_file(names, ground.key(name)) == bytes_of(name, BS)
            used = engine.metrics.snapshot()["used_bytes"]
            assert isinstance(used, dict)
            assert used[Tier.NVME.label] <= 10 * BS
            assert engine.staging.used_bytes == 8 * BS
            for stop in stops:
                stop.open()
            await drained(engine)
            assert all(ground.get(name) == bytes_of(name, BS) for name in dirty)

    with small_disk(tmp_path / "disk", 16 * BS // MIB) as disk:
        run(lambda: play(replace(posix_ground, cache_dir=disk / "cache", settings={"ram": {"capacity": 0}})))
