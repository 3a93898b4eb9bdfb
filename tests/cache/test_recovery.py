"""What a crash leaves, at any point: records and files agree again, and no wrong byte is ever read."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, bytes_of
from tiercache.model import Tier
from tiercache.origins.posix import PosixOrigin

CHILD = Path(__file__).parent.parent / "rig" / "crashing_cache.py"


@pytest.mark.parametrize("call", [*range(1, 5), 12, 16, *range(24, 33)])
@trio_test
async def test_kill_9_before_or_after_any_step_of_a_fill(rig: Rig, tmp_path: Path, call: int) -> None:
    """A process is killed at its n-th step (write, record, evict, unlink) of filling the cache, n = 1, 2, 3 …

    Afterwards every object reads right, the account is what the disk holds, and no file is without a record.
    """
    objects = {f"o{number}": bytes_of(str(number), size) for number, size in enumerate((3 * BS, 1000, BS + 1, 2 * BS))}
    for name, data in objects.items():
        (tmp_path / name).write_bytes(data)
    command = [sys.executable, str(CHILD), str(tmp_path), str(call), *objects]
    assert (await trio.run_process(command, check=False)).returncode == -signal.SIGKILL
    origin = PosixOrigin()
    async with rig.start(nvme_bytes=5 * BS) as run:
        files = dict(run.nvme.scan())
        records = dict(run.catalog.versions())
        assert files.keys() == records.keys()
        assert sum(run.nvme.charged_bytes(version) for version in files) == run.nvme.used_bytes
        for name, data in objects.items():
            stat = origin.stat(str(tmp_path / name).encode().lstrip(b"/"))
            assert await run.cache.read(rig.ref(origin, stat), 0, len(data)) == data
            assert run.nvme.used_bytes <= run.nvme.capacity_bytes
        assert run.figure("damaged_total", "nvme") == 0


@trio_test
async def test_resident_blocks_survive_a_crash(rig: Rig) -> None:
    """What was recorded is used again after a check; only the rest is fetched."""
    data = bytes_of("resumed", 4 * BS)
    version = rig.put("f", data)
    async with rig.start() as run:
        await run.cache.read(version, BS, 2 * BS)
    async with rig.start() as run:
        assert run.nvme.used_bytes == 2 * BS
        assert await run.cache.read(version, 0, len(data)) == data
        assert sorted(request.offset for request in rig.origin.requests) == [0, BS, 3 * BS]
        assert run.cache.locate(version) is not None


@trio_test
async def test_a_block_written_but_not_recorded_is_fetched_again(rig: Rig) -> None:
    """Bytes in the file that no record tells of are not trusted, whatever they are."""
    data = bytes_of("unrecorded", 2 * BS)
    version = rig.put("f", data)
    async with rig.start() as run:
        await run.cache.read(version, 0, 1)
        path = run.nvme.path(version.id)
    with open(path, "r+b") as file:  # noqa: ASYNC230
        file.seek(BS)
        file.write(b"half a block that the crash cut")
    async with rig.start() as run:
        assert await run.cache.read(version, 0, len(data)) == data
        assert [request.offset for request in rig.origin.requests] == [0, BS]
        assert run.figure("damaged_total", "nvme") == 0


@trio_test
async def test_garbage_is_deleted_and_strangers_are_left_alone(rig: Rig) -> None:
    """A file without record goes at start; files with names that are not ours stay."""
    garbage = rig.directory / "nvme" / "ab" / ("ab" * 16)
    stranger = rig.directory / "nvme" / "ab" / "notes.txt"
    garbage.parent.mkdir(parents=True)
    garbage.write_bytes(bytes(1000))
    stranger.write_bytes(b"keep")
    async with rig.start() as run:
        assert not garbage.exists()
        assert stranger.exists()
        assert run.nvme.used_bytes == 0


@trio_test
async def test_the_ram_tier_starts_empty(rig: Rig) -> None:
    """Files that a dead engine left in RAM are removed and its records name them no more."""
    version, other = rig.put("f", b"r" * 100), rig.put("g", b"g" * 100)
    async with rig.start(ram_bytes=4 * BS) as run:
        await run.cache.read(version, 0, 1)
        await run.cache.read(other, 0, 1)
        run.cache._copies.drop_copy(other.id, Tier.NVME)
    async with rig.start(ram_bytes=4 * BS) as run:
        assert run.ram is not None
        assert list(run.ram.scan()) == []
        assert run.ram.used_bytes == 0
        record = run.catalog.version(version.id)
        assert record is not None
        assert [copy.tier for copy in record.copies] == [Tier.NVME]
        assert run.catalog.version(other.id) is None


@trio_test
async def test_a_smaller_capacity_is_kept_from_the_first_moment(rig: Rig) -> None:
    """What an earlier run left beyond it is evicted at start."""
    async with rig.start(nvme_bytes=8 * BS) as run:
        for number in range(8):
            await run.cache.read(rig.put(str(number), bytes(BS)), 0, BS)
    async with rig.start(nvme_bytes=3 * BS) as run:
        assert run.nvme.used_bytes == 3 * BS
        assert len(list(run.nvme.scan())) == len(list(run.catalog.versions())) == 3
