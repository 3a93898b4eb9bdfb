"""Reads through the cache, against the bytes of the origin."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, bytes_of, in_thread
from rig.memory_origin import Request
from tiercache.cache import Cache, Location, VersionRef
from tiercache.config import FetchConfig
from tiercache.errors import Absent, IsDirectory
from tiercache.memory import SMALLEST_BYTES, Purpose
from tiercache.model import Tier
from tiercache.origins.posix import PosixOrigin
from tiercache.units import KIB, MIB


def file_bytes(location: Location) -> bytes:
    """What a client reads that was told this location."""
    path = Path(location.path)
    assert path.stat().st_ino == location.inode
    return path.read_bytes()


async def read_whole(cache: Cache, version: VersionRef, expected: bytes) -> None:
    assert await cache.read(version, 0, len(expected)) == expected


@pytest.mark.parametrize("size_bytes", [0, 1, BS - 1, BS, BS + 1])
@trio_test
async def test_reads_around_the_end_slice_like_python(rig: Rig, size_bytes: int) -> None:
    """C08: reads at, over and past the end give what a slice gives, cold and warm, and never an error."""
    data = bytes_of("ends", size_bytes)
    version = rig.put("f", data)
    async with rig.start() as run:
        for _ in ("cold", "warm"):
            for offset in (0, 1, BS - 1, BS, BS + 1, size_bytes - 1, size_bytes, size_bytes + 1):
                for length in (0, 1, 100, BS, 2 * BS):
                    if offset >= 0:
                        read = await run.cache.read(version, offset, length)
                        assert bytes(read) == data[offset : offset + length], (offset, length)


@trio_test
async def test_random_reads_equal_the_object(rig: Rig) -> None:
    """C09: a thousand reads at random places of 7.3 blocks, near the end and after a large read's end too."""
    data = bytes_of("seven", int(7.3 * BS))
    version = rig.put("f", data)
    rng = random.Random(9)
    end_of_last = 0
    async with rig.start() as run:
        for number in range(1000):
            match number % 4:
                case 0:
                    offset = rng.randrange(len(data))
                case 1:
                    offset = len(data) - rng.randrange(1, 3000)
                case _:
                    offset = min(end_of_last, len(data))
            length = rng.choice([1, 100, 4096, 100_000, 5 * MIB if number % 50 == 0 else 7])
            assert await run.cache.read(version, offset, length) == data[offset : offset + length]
            end_of_last = offset + length
        assert len(rig.origin.requests) <= 8, "each block was fetched once"


@trio_test
async def test_an_object_up_to_a_block_is_one_request(rig: Rig) -> None:
    """Any read of a small object fetches it whole, and nothing later asks the origin again."""
    data = bytes_of("small", 100_000)
    version = rig.put("f", data)
    async with rig.start() as run:
        assert await run.cache.read(version, 70_000, 10) == data[70_000:70_010]
        assert await run.cache.read(version, 0, 100_000) == data
        assert rig.origin.requests == [Request("read", b"f", 0, 100_000)]
        assert run.figure("misses_total") == 1
        assert run.figure("hits_total", "nvme") == 1


@trio_test
async def test_neighbours_are_one_request_and_large_reads_several_in_parallel(rig: Rig) -> None:
    """Adjacent missing blocks are asked for together, up to the part size; parts of one read run at the same time."""
    data = bytes_of("large", 8 * BS)
    version = rig.put("f", data)
    async with rig.start(fetch=FetchConfig(part_size=3 * BS)) as run:
        await run.cache.read(version, 4 * BS, 1)
        rig.origin.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_whole, run.cache, version, data)
            await in_thread(rig.origin.wait_for_requests, 4)
            rig.origin.release()
        assert sorted(rig.origin.requests[1:]) == [
            Request("read", b"f", 0, 3 * BS),
            Request("read", b"f", 3 * BS, BS),
            Request("read", b"f", 5 * BS, 3 * BS),
        ]


@trio_test
async def test_a_complete_version_is_one_file_with_the_objects_bytes(rig: Rig) -> None:
    """Once every block is in, ``locate`` names a file that equals the object, and the catalog calls it complete."""
    data = bytes_of("file", 2 * BS + 5)
    version = rig.put("f", data)
    async with rig.start() as run:
        await run.cache.read(version, BS, 10)
        assert run.cache.locate(version) is None
        await run.cache.read(version, 0, len(data))
        location = run.cache.locate(version)
        assert location is not None
        assert location.tier is Tier.NVME
        assert file_bytes(location) == data
        record = run.catalog.version(version.id)
        assert record is not None
        assert (record.complete, record.blocks, len(record.checksums)) == (True, b"", 3 * 8)


@trio_test
async def test_ensure_makes_a_range_readable_in_a_file(rig: Rig) -> None:
    """``ensure`` names the file in which the wanted blocks lie at the object's own offsets, other blocks or not."""
    data = bytes_of("range", 6 * BS)
    version = rig.put("f", data)
    async with rig.start() as run:
        location = await run.cache.ensure(version, 2 * BS + 7, 100)
        assert location is not None
        assert file_bytes(location)[2 * BS + 7 :][:100] == data[2 * BS + 7 :][:100]
        assert rig.origin.requests == [Request("read", b"f", 2 * BS, BS)]


@trio_test
async def test_an_unknown_small_file_is_opened_in_one_round_trip(rig: Rig) -> None:
    """``ensure_small`` describes, returns and keeps a file with one request; a larger one is only described."""
    small = rig.put("small", b"x" * 1000)
    large = rig.put("large", bytes(2000))
    async with rig.start() as run:
        stat, version, data = await run.cache.ensure_small(rig.origin, small.origin_id, b"small", 1500)
        assert (stat.size_bytes, version, data) == (1000, small, b"x" * 1000)
        assert run.cache.locate(version) is not None
        stat, version, data = await run.cache.ensure_small(rig.origin, large.origin_id, b"large", 1500)
        assert (stat.size_bytes, version, data) == (2000, large, None)
        assert [request.op for request in rig.origin.requests] == ["read_whole", "read_whole"]


@pytest.mark.parametrize("nvme_bytes", [BS, 4096])
@trio_test
async def test_a_file_that_is_opened_and_read_is_one_miss(rig: Rig, nvme_bytes: int) -> None:
    """Whether a tier keeps it or not: a client opens it, asks where it is, and reads what is nowhere."""
    data = bytes_of("f", 5000)
    version = rig.put("f", data)
    async with rig.start(nvme_bytes=nvme_bytes) as run:
        await run.cache.ensure_small(rig.origin, version.origin_id, b"f", BS)
        if await run.cache.locate_verified(version) is None and await run.cache.ensure(version, 0, 5000) is None:
            assert await run.cache.read(version, 0, 5000) == data
        assert run.figure("misses_total") == 1
        assert run.figure("read_bytes_total", "origin") == 5000
        assert len(rig.origin.requests) == 1


@trio_test
async def test_an_empty_object_is_kept_as_an_empty_file(rig: Rig) -> None:
    """An empty object is complete at once: it has a location, costs one unit of room, and is charged once."""
    version = rig.put("empty", b"")
    async with rig.start() as run:
        for _ in range(2):
            opened = await run.cache.ensure_small(rig.origin, version.origin_id, b"empty", BS)
            assert opened[2] == b""
            location = await run.cache.ensure(version, 0, 0)
            assert location is not None
            assert file_bytes(location) == b""
            assert run.nvme.used_bytes == 4096


@trio_test
async def test_opening_tells_what_the_origin_says_and_remembers_nothing(rig: Rig) -> None:
    """Absent and directory reach the opener; the name is asked for again the next time."""
    async with rig.start() as run:
        with pytest.raises(Absent):
            await run.cache.ensure_small(rig.origin, rig.put("d/f", b"1").origin_id, b"f", BS)
        with pytest.raises(IsDirectory):
            await run.cache.ensure_small(rig.origin, rig.put("d/f", b"1").origin_id, b"d", BS)
        new = rig.put("f", b"now")
        assert (await run.cache.ensure_small(rig.origin, new.origin_id, b"f", BS))[2] == b"now"


@trio_test
async def test_an_object_too_large_for_the_tier_is_streamed(rig: Rig) -> None:
    """It is read right, in small steps too, each block asked for once, and nothing of it is kept on disk."""
    data = bytes_of("huge", 5 * BS)
    version = rig.put("f", data)
    async with rig.start(nvme_bytes=8 * BS, share=0.5) as run:
        step = BS // 8
        read = [await run.cache.read(version, offset, step) for offset in range(0, len(data), step)]
        assert b"".join(read) == data
        assert len(rig.origin.requests) == 5
        assert await run.cache.ensure(version, 0, BS) is None
        assert run.nvme.used_bytes == 0
        assert list(run.nvme.scan()) == []


@trio_test
async def test_a_file_tree_is_an_origin_too(rig: Rig, tmp_path: Path) -> None:
    """The same over the real POSIX origin: bytes, and one file per version."""
    data = bytes_of("posix", BS + 1000)
    path = tmp_path / "object"
    path.write_bytes(data)
    origin = PosixOrigin()
    version = rig.ref(origin, origin.stat(os.fsencode(path).lstrip(b"/")))
    async with rig.start() as run:
        assert await run.cache.read(version, 10, BS) == data[10 : BS + 10]
        assert run.cache.locate(version) is not None


@trio_test
async def test_many_streaming_readers_do_not_fetch_for_each_other(rig: Rig) -> None:
    """Objects that no tier takes, read in small steps by more readers than there is memory for blocks: who has none
    reads just its bytes. So the origin is asked for little more than is read, and not for a block at each step."""
    readers, step = 12, 256 * KIB
    contents = [bytes_of(str(number), 2 * BS) for number in range(readers)]
    versions = [rig.put(str(number), data) for number, data in enumerate(contents)]
    async with rig.start(nvme_bytes=BS, memory_bytes=SMALLEST_BYTES) as run:
        for offset in range(0, 2 * BS, step):
            for version, data in zip(versions, contents, strict=True):
                assert await run.cache.read(version, offset, step) == data[offset : offset + step]
        asked_bytes = sum(request.length for request in rig.origin.requests)
        assert asked_bytes <= 2 * sum(map(len, contents))
        assert run.memory.used_bytes() == run.memory.used_bytes(Purpose.OVERFLOW) <= SMALLEST_BYTES // 4
