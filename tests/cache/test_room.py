"""Capacity, eviction, pins and full disks, as readers see them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from rig.cache_rig import BS, Rig, Running, bytes_of, in_thread
from rig.small_disk import free_bytes, small_disk
from tiercache.cache import VersionRef
from tiercache.errors import NoSpace
from tiercache.model import Tier
from tiercache.units import MIB


async def fill(rig: Rig, run: Running, name: str, blocks: int = 1) -> VersionRef:
    version = rig.put(name, bytes_of(name, blocks * BS))
    assert await run.cache.read(version, 0, blocks * BS) == bytes_of(name, blocks * BS)
    return version


@trio_test
async def test_the_least_useful_version_goes_and_its_record_with_it(rig: Rig) -> None:
    """Reads keep a version; the victim leaves disk, catalog and account, and can be read again from the origin."""
    async with rig.start(nvme_bytes=3 * BS) as run:
        first, second, third = [await fill(rig, run, name) for name in ("1", "2", "3")]
        await run.cache.read(first, 0, 1)
        await fill(rig, run, "4")
        assert run.catalog.version(second.id) is None
        assert run.cache.locate(second) is None
        assert run.cache.locate(first) is not None
        assert run.cache.locate(third) is not None
        assert run.nvme.used_bytes == run.nvme.capacity_bytes
        assert run.figure("evictions_total", "nvme") == 1
        assert await run.cache.read(second, 0, BS) == bytes_of("2", BS)


@trio_test
async def test_a_reader_that_has_a_file_open_outlives_its_eviction(rig: Rig) -> None:
    """Whole files are unlinked and never punched: an open descriptor goes on giving the right bytes."""
    async with rig.start(nvme_bytes=2 * BS) as run:
        version = await fill(rig, run, "open")
        location = run.cache.locate(version)
        assert location is not None
        fd = os.open(location.path, os.O_RDONLY)
        try:
            for name in ("1", "2", "3"):
                await fill(rig, run, name)
            assert run.cache.locate(version) is None
            assert os.pread(fd, BS, 0) == bytes_of("open", BS)
        finally:
            os.close(fd)


@trio_test
async def test_a_pinned_version_stays(rig: Rig) -> None:
    """Others go instead; with everything pinned a new version is read right and not kept."""
    async with rig.start(nvme_bytes=2 * BS) as run:
        first, second = await fill(rig, run, "1"), await fill(rig, run, "2")
        with run.cache.pin(first.id):
            third = await fill(rig, run, "3")
            assert run.cache.locate(first) is not None
            assert run.cache.locate(second) is None
            with run.cache.pin(third.id):
                await fill(rig, run, "4")
                assert run.cache.locate(first) is not None
                assert run.cache.locate(third) is not None
        await fill(rig, run, "5")
        assert run.cache.locate(first) is None


@trio_test
async def test_used_never_exceeds_capacity_while_many_read(rig: Rig) -> None:
    """I3: fifty versions read by eight readers through room for ten blocks; the account and the disk stay below."""
    versions = [rig.put(str(number), bytes([number]) * BS) for number in range(50)]
    async with rig.start(nvme_bytes=10 * BS) as run:
        left = iter(enumerate(versions))

        async def reader() -> None:
            for number, version in left:
                data = await run.cache.read(version, 0, BS)
                assert data == bytes([number]) * BS
                assert run.nvme.used_bytes <= 10 * BS
                assert sum(found.identity.size_bytes for _, found in run.nvme.scan()) <= 10 * BS

        async with trio.open_nursery() as readers:
            for _ in range(8):
                readers.start_soon(reader)
        assert len(rig.origin.requests) == 50


@trio_test
async def test_room_of_fills_in_flight_is_taken(rig: Rig) -> None:
    """While two fetches hold all the room a third one is streamed; versions in flight are not evicted for it."""
    async with rig.start(nvme_bytes=2 * BS) as run:
        rig.origin.hold()
        versions = [rig.put(name, bytes_of(name, BS)) for name in ("1", "2", "3")]
        async with trio.open_nursery() as readers:
            for version in versions:
                readers.start_soon(run.cache.read, version, 0, BS)
            await in_thread(rig.origin.wait_for_requests, 3)
            await wait_all_tasks_blocked()
            assert run.nvme.used_bytes == 2 * BS
            rig.origin.release()
        assert sum(run.cache.locate(version) is not None for version in versions) == 2


@trio_test
async def test_hold_keeps_what_came_first(rig: Rig) -> None:
    """Under the hold policy a second epoch hits exactly what fitted in the first."""
    async with rig.start(nvme_bytes=5 * BS, policy="hold") as run:
        versions = [await fill(rig, run, str(number)) for number in range(10)]
        assert [run.cache.locate(version) is not None for version in versions] == [True] * 5 + [False] * 5


@trio_test
async def test_a_small_disk_reads_a_large_file(rig: Rig, tmp_path: Path) -> None:
    """C23: 64 MiB read through a cache on a disk of 8 MiB, then with the disk filled from outside, then freed."""
    data = bytes_of("large", 64 * MIB)
    version, small = rig.put("large", data), rig.put("small", bytes_of("small", MIB))
    with small_disk(tmp_path / "disk", 16) as disk:
        rig.directory = disk
        async with rig.start(nvme_bytes=6 * MIB, floor_bytes=MIB, share=0.5) as run:
            for offset in range(0, len(data), BS):
                assert await run.cache.read(version, offset, BS) == data[offset : offset + BS]
            other = disk / "other"
            other.write_bytes(bytes(free_bytes(disk)))
            for _ in range(3):
                assert await run.cache.read(small, 0, MIB) == bytes_of("small", MIB)
            assert run.cache.locate(small) is None
            other.unlink()
            run.cache.drop(small.id)
            assert await run.cache.read(small, 0, MIB) == bytes_of("small", MIB)
            assert run.cache.locate(small) is not None


@trio_test
async def test_a_disk_that_takes_no_byte_is_a_miss(rig: Rig) -> None:
    """A fill that the disk refuses is counted; the reader gets its bytes all the same, and no record is made."""
    version = rig.put("f", b"x" * 1000)
    async with rig.start() as run:
        (rig.directory / "nvme" / version.id.hex()[:2]).write_text("in the way")
        assert await run.cache.read(version, 0, 1000) == b"x" * 1000
        assert run.figure("tier_errors_total", "nvme") >= 1
        assert run.nvme.used_bytes == 0
        assert run.catalog.version(version.id) is None


def test_the_trimmer_gives_room_back_when_others_fill_the_disk(rig: Rig, tmp_path: Path) -> None:
    """C23: within a second, without any read, the free-space floor is restored."""

    async def run_it(disk: Path) -> None:
        rig.directory = disk
        async with rig.start(nvme_bytes=12 * MIB, floor_bytes=2 * MIB) as run:
            await fill(rig, run, "1")
            await fill(rig, run, "2")
            (disk / "other").write_bytes(bytes(free_bytes(disk)))
            run.nursery.start_soon(run.cache.run_trimmer)
            await trio.sleep(1.5)
            assert free_bytes(disk) >= 2 * MIB

    with small_disk(tmp_path / "disk", 16) as disk:
        trio.run(run_it, disk, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_small_files_go_to_both_tiers_and_are_located_in_ram(rig: Rig) -> None:
    """A fill writes each tier that takes the version; the faster one is named first."""
    version = rig.put("f", b"r" * 5000)
    async with rig.start(ram_bytes=4 * BS) as run:
        await run.cache.read(version, 0, 5000)
        location = run.cache.locate(version)
        assert location is not None
        assert location.tier is Tier.RAM
        for path in (location.path, run.nvme.path(version.id)):
            assert await trio.Path(path).read_bytes() == b"r" * 5000
        assert await run.cache.read(version, 1, 3) == b"rrr"
        assert run.figure("hits_total", "ram") == 1


@trio_test
async def test_a_version_evicted_from_ram_is_still_on_nvme(rig: Rig) -> None:
    """Each tier evicts for itself; the version stays complete in the other."""
    async with rig.start(ram_bytes=BS) as run:
        first = await fill(rig, run, "1")
        second = await fill(rig, run, "2")
        locations = [run.cache.locate(version) for version in (first, second)]
        assert [location.tier for location in locations if location] == [Tier.NVME, Tier.RAM]
        fetched = len(rig.origin.requests)
        assert await run.cache.read(first, 0, BS) == bytes_of("1", BS)
        assert len(rig.origin.requests) == fetched


@trio_test
async def test_a_large_version_is_promoted_when_it_is_read_again(rig: Rig) -> None:
    """It came in parts, so only its complete NVMe copy is copied into RAM, at a hit, checked in passing."""
    data = bytes_of("promoted", 5 * BS + 1)
    version = rig.put("f", data)
    async with rig.start(ram_bytes=16 * BS) as run:
        await run.cache.read(version, 0, len(data))
        located = run.cache.locate(version)
        assert located is not None
        assert located.tier is Tier.NVME
        await run.cache.read(version, 0, 1)
        await until_in_ram(run, version)
        located = run.cache.locate(version)
        assert located is not None
        assert located.tier is Tier.RAM
        assert await trio.Path(located.path).read_bytes() == data
        assert run.ram is not None
        assert run.ram.used_bytes == 5 * BS + 4096


@trio_test
async def test_one_pass_does_not_churn_a_full_ram_tier(rig: Rig) -> None:
    """With RAM full, the first hit of a version promotes nothing; a second hit does, a hit told by a client too."""
    async with rig.start(ram_bytes=BS) as run:
        first, second = await fill(rig, run, "1"), await fill(rig, run, "2")
        await run.cache.read(first, 0, 1)
        await wait_all_tasks_blocked()
        assert run.ram is not None
        assert second.id in run.ram
        run.cache.touched([first.id])
        await until_in_ram(run, first)
        assert second.id not in run.ram


@trio_test
async def test_a_version_that_leaves_before_its_promotion_is_no_fault_of_the_ram_tier(rig: Rig) -> None:
    async with rig.start(ram_bytes=BS) as run:
        first, _ = await fill(rig, run, "1"), await fill(rig, run, "2")
        await run.cache.read(first, 0, 1)
        run.cache.touched([first.id])
        assert run.ram is not None
        assert first.id in run.ram, "a promotion runs"
        run.cache.drop(first.id)
        while run.ram.used_bytes:
            await trio.lowlevel.checkpoint()
        assert run.figure("tier_errors_total", "ram") == 0


async def until_in_ram(run: Running, version: VersionRef) -> None:
    """A promotion ends when its thread does: let that happen."""
    while (location := run.cache.locate(version)) is None or location.tier is not Tier.RAM:
        assert run.ram is not None
        assert version.id in run.ram, "a promotion runs"
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("blocks", [1, 2])
@trio_test
async def test_what_a_failed_transaction_was_to_record_takes_no_room(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """The reader has its bytes all the same, no file is left, and the next read keeps one that is charged once."""
    async with rig.start(nvme_bytes=8 * BS) as run:
        batch, fails = run.catalog.batch, True

        @contextmanager
        def failing_batch() -> Iterator[None]:
            with batch():
                yield
                if fails:
                    raise NoSpace("the catalog is full")

        monkeypatch.setattr(run.catalog, "batch", failing_batch)
        version = await fill(rig, run, "f", blocks)
        await wait_all_tasks_blocked()
        assert run.catalog.version(version.id) is None
        assert (run.nvme.used_bytes, list(run.nvme.scan())) == (0, [])
        fails = False
        run.cache.drop(version.id)  # what stays in memory for a moment
        assert await run.cache.read(version, 0, blocks * BS) == bytes_of("f", blocks * BS)
        assert [found for found, _ in run.nvme.scan()] == [version.id]
        assert run.nvme.used_bytes == blocks * BS
