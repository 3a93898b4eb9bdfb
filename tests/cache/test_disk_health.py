"""A cache disk that fails or is slow is taken out of use, and comes back: readers notice nothing but the time."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from rig.cache_rig import Rig, Running, bytes_of
from rig.engine_ground import Ground, posix_ground, read_file, run, write_file
from rig.failing_disk import FailingDisk, failing_disk
from rig.refusing_disk import RefusingDisk, refusing_disk
from rig.small_disk import small_disk
from tiercache.cache import VersionRef
from tiercache.catalog import Catalog
from tiercache.errors import Broken
from tiercache.model import Entry, Kind, Tier
from tiercache.tier import DiskState
from tiercache.tier.health import (
    FAILURES_BEFORE_OUT,
    FIRST_PAUSE_S,
    FORGOTTEN_AFTER_S,
    LONGEST_PAUSE_S,
    RELIABLE_AFTER_S,
    WINDOW,
    Health,
)
from tiercache.units import MIB

__all__ = ["posix_ground"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.step_s = 0.0
        """How much time passes with each look at it."""

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


# -- the machine ----------------------------------------------------------------------------------------------------


def test_three_failures_in_a_minute_take_a_disk_out_whatever_works_in_between() -> None:
    clock = Clock()
    health = Health(clock)
    for _ in range(10):
        assert not health.failed(errno.EIO)
        assert health.state is DiskState.SUSPECT
        assert health.usable
        clock.now_s += FORGOTTEN_AFTER_S / 2 + 1
        health.worked()
        assert health.state is DiskState.SUSPECT
    clock.now_s += FORGOTTEN_AFTER_S
    health.worked()
    assert health.state is DiskState.HEALTHY
    outcomes = []
    for _ in range(FAILURES_BEFORE_OUT):
        outcomes.append(health.failed(errno.EIO))
        health.worked()
    assert outcomes == [False, False, True]
    assert health.state is DiskState.OUT


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ENOTCONN])
def test_what_no_second_try_makes_better_takes_a_disk_out_at_once(code: int) -> None:
    health = Health(Clock())
    assert health.failed(code)
    assert health.state is DiskState.OUT
    assert not health.failed(code)  # told once


def test_the_pause_before_a_probe_doubles_up_to_a_cap_and_begins_anew_after_a_long_good_time() -> None:
    clock = Clock()
    health = Health(clock)

    def pause_s() -> float:
        began_s = clock.now_s
        while not health.probe_is_due:
            clock.now_s += 0.5
        health.begin_probe()
        assert not health.probe_is_due
        return clock.now_s - began_s

    health.failed(errno.EROFS)
    pauses = []
    for _ in range(9):
        pauses.append(pause_s())
        health.probed(None)
    assert pauses == [min(FIRST_PAUSE_S * 2**n, LONGEST_PAUSE_S) for n in range(9)]
    pause_s()
    assert health.probed(0.0)
    health.failed(errno.EROFS)
    assert pause_s() == LONGEST_PAUSE_S  # it did not work for long
    assert health.probed(0.0)
    clock.now_s += RELIABLE_AFTER_S + 1
    health.failed(errno.EROFS)
    assert pause_s() == FIRST_PAUSE_S


def test_the_median_of_a_window_tells_that_a_disk_is_slow() -> None:
    clock = Clock()
    health = Health(clock, slow_s=1.0)
    for number in range(10 * WINDOW):
        assert not health.took(30.0 if number % 3 == 0 else 0.001)  # single ones do not count
    outcomes = [health.took(1.5) for _ in range(WINDOW)]
    assert outcomes.count(True) == 1
    assert health.state is DiskState.OUT
    clock.now_s += FIRST_PAUSE_S
    health.begin_probe()
    assert not health.probed(2.0)  # a slow probe is no good one
    assert health.state is DiskState.OUT
    assert health.probed(0.01)


# -- the cache ------------------------------------------------------------------------------------------------------


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own under the NVMe tier."""
    with small_disk(tmp_path / Tier.NVME.label, 64) as path:
        yield path


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


async def read_all(running: Running, versions: dict[str, VersionRef]) -> None:
    for name, version in versions.items():
        assert await running.cache.read(version, 0, version.size_bytes) == bytes_of(name, MIB)


def put_all(rig: Rig, *names: str) -> dict[str, VersionRef]:
    return {name: rig.put(name, bytes_of(name, MIB)) for name in names}


def spoil(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"another")


async def come_back(running: Running, clock: Clock) -> None:
    clock.now_s += LONGEST_PAUSE_S
    running.cache.probe()
    # Not by checkpoints: a loop that spins keeps the probe's thread from running.
    while running.figure("tier_state", "nvme") == DiskState.PROBING:  # noqa: ASYNC110 - it tells nobody
        await trio.sleep(0.001)


def test_a_disk_that_is_read_only_is_left_alone_until_it_can_be_written(rig: Rig, disk: Path) -> None:
    clock = Clock()
    old, new, newest = put_all(rig, "a", "b"), put_all(rig, "c", "d"), put_all(rig, "e")

    async def play() -> None:
        async with rig.start(clock=clock) as running:
            await read_all(running, old)
            remount(disk, "ro")
            await read_all(running, new)  # the first fill that fails tells
            assert running.figure("tier_state", "nvme") == DiskState.OUT
            assert not running.nvme.works
            hits = running.figure("hits_total", "nvme")
            await read_all(running, old | new)
            assert running.figure("hits_total", "nvme") == hits
            assert all(running.cache.locate(version) is None for version in old.values())

            await come_back(running, clock)  # in vain
            assert running.figure("tier_state", "nvme") == DiskState.OUT
            remount(disk, "rw")
            await come_back(running, clock)
            assert running.figure("tier_state", "nvme") == DiskState.HEALTHY
            # What it had is there, and verified before it is used.
            assert all(running.cache.locate(version) is None for version in old.values())
            asked = len(rig.origin.requests)
            await read_all(running, old)
            assert len(rig.origin.requests) == asked
            assert all(running.cache.locate(version) is not None for version in old.values())
            await read_all(running, new | newest)
            assert all(version.id in running.nvme for version in newest.values())

    run(play)
    assert ".probe" not in os.listdir(disk)


def test_copies_that_changed_while_their_disk_was_out_are_not_read(rig: Rig, disk: Path) -> None:
    clock = Clock()
    versions = put_all(rig, "a", "b")

    async def play() -> None:
        async with rig.start(clock=clock) as running:
            await read_all(running, versions)
            running.nvme.failed(OSError(errno.ENODEV, "gone"), "a test")
            spoil(Path(running.nvme.path(versions["a"].id)))
            await come_back(running, clock)
            await read_all(running, versions)
            assert running.figure("damaged_total", "nvme") == 1

    run(play)


def test_a_disk_that_fails_under_its_readers_is_no_error_to_them(rig: Rig, tmp_path: Path) -> None:
    clock = Clock()
    versions = put_all(rig, *map(str, range(8)))

    async def play(disk: FailingDisk) -> None:
        async with rig.start(clock=clock) as running:
            await read_all(running, versions)
            disk.fail()
            await read_all(running, versions)
            assert running.figure("tier_state", "nvme") == DiskState.OUT
            assert running.figure("tier_errors_total", "nvme") >= FAILURES_BEFORE_OUT
            await come_back(running, clock)  # in vain
            assert running.figure("tier_state", "nvme") == DiskState.OUT
            disk.heal()
            await come_back(running, clock)
            asked = len(rig.origin.requests)
            await read_all(running, versions)
            # Those that were read in vain before the disk was out are gone, and no others.
            assert len(rig.origin.requests) - asked < FAILURES_BEFORE_OUT
            assert running.figure("tier_state", "nvme") == DiskState.HEALTHY

    with failing_disk(tmp_path / Tier.NVME.label, 64) as disk:
        run(lambda: play(disk))


def test_a_disk_that_fails_is_noticed_although_the_kernel_alone_reads_it(rig: Rig, tmp_path: Path) -> None:
    versions = put_all(rig, *map(str, range(FAILURES_BEFORE_OUT)))

    async def play(disk: FailingDisk) -> None:
        async with rig.start() as running:
            await read_all(running, versions)
            disk.fail()
            for version in versions.values():
                if not running.nvme.works:
                    break
                assert running.cache.open_local(version) is not None  # which the kernel reads from then on
                errors = running.figure("tier_errors_total", "nvme")
                running.cache.probe()
                while running.figure("tier_errors_total", "nvme") == errors:
                    await trio.lowlevel.checkpoint()
            assert running.figure("tier_state", "nvme") == DiskState.OUT
            assert all(running.cache.open_local(version) is None for version in versions.values())
            await read_all(running, versions)

    with failing_disk(tmp_path / Tier.NVME.label, 64) as disk:
        run(lambda: play(disk))


def test_a_slow_disk_is_read_past(rig: Rig) -> None:
    clock = Clock()
    versions = put_all(rig, "a")

    async def play() -> None:
        async with rig.start(clock=clock, slow_s=1.0) as running:
            await read_all(running, versions)
            clock.step_s = 3.0
            for _ in range(WINDOW):
                assert running.figure("tier_state", "nvme") == DiskState.HEALTHY
                await read_all(running, versions)
            assert running.figure("tier_state", "nvme") == DiskState.OUT
            await read_all(running, versions)
            await come_back(running, clock)
            assert running.figure("tier_state", "nvme") == DiskState.OUT
            clock.step_s = 0.0
            await come_back(running, clock)
            assert running.figure("tier_state", "nvme") == DiskState.HEALTHY
            await read_all(running, versions)

    run(play)


# -- a whole engine -------------------------------------------------------------------------------------------------


def test_an_open_file_of_a_mount_goes_on_when_the_disk_fails(posix_ground: Ground) -> None:
    ground = posix_ground
    ground.cache_dir.mkdir()
    ground.put("a", bytes_of("a", MIB))

    async def play(disk: FailingDisk) -> None:
        async with ground.engine(ram={"capacity": 0}, staging={"capacity": "1MiB"}) as (_, names):
            assert await read_file(names, ground.key("a")) == bytes_of("a", MIB)
            handle = await names.open((await names.lookup(ground.key("a"))).inode)
            assert handle.read_now(0, 10) == bytes_of("a", MIB)[:10]
            disk.fail()
            assert handle.read_now(MIB // 2, MIB // 2) is None
            assert await handle.read(MIB // 2, MIB // 2) == bytes_of("a", MIB)[MIB // 2 :]
            await handle.close()

    with failing_disk(ground.cache_dir / "nvme", 64) as disk:
        run(lambda: play(disk))


def test_an_engine_goes_on_when_its_catalog_does_not_get_to_the_disk(
    posix_ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalog can be rebuilt: what fails of it is no reason to end mounts and uploads."""
    ground = posix_ground
    ground.cache_dir.mkdir()
    monkeypatch.setattr("tiercache.engine.engine.CATALOG_SYNC_S", 0.02)

    async def play(disk: RefusingDisk) -> None:
        async with ground.engine() as (engine, names):
            disk.refuse()
            for number in range(100):
                engine.catalog.put_entry(names.origin_id, b"%d" % number * 100, Entry(Kind.FILE, 5))
            with trio.fail_after(30):
                while "begins with an empty catalog" not in caplog.text:
                    await trio.lowlevel.checkpoint()
            await write_file(names, ground.key("a"), b"a")
            assert await read_file(names, ground.key("a")) == b"a"
            assert not (await engine.drain(30)).left
        assert ground.get("a") == b"a"

    Catalog(ground.scratch / "catalog").close()
    with refusing_disk(ground.cache_dir / "catalog") as disk:
        shutil.copytree(ground.scratch / "catalog", disk.path, dirs_exist_ok=True)
        run(lambda: play(disk))


def test_written_bytes_that_cannot_be_staged_are_refused_and_those_that_are_staged_stay(
    posix_ground: Ground, tmp_path: Path
) -> None:
    """Staging lies on the disk as well: what it holds is neither dropped nor called durable."""
    ground = posix_ground
    cache_dir = ground.cache_dir
    cache_dir.mkdir()

    async def play() -> None:
        with small_disk(cache_dir / "staging", 64) as staging:
            async with ground.engine(staging={"capacity": "16MiB", "upload_delay_s": 3600}) as (engine, names):
                await write_file(names, ground.key("before"), b"before")
                remount(staging, "ro")
                with pytest.raises(Broken, match="Read-only file system"):
                    await write_file(names, ground.key("after"), b"after")
                assert await read_file(names, ground.key("before")) == b"before"
                assert engine.status()["dirty"]["files"] == 1
                remount(staging, "rw")
                await write_file(names, ground.key("after"), b"after")
                result = await engine.drain(30)
                assert (result.left, result.errors) == ([], {})
        assert ground.get("before") == b"before"
        assert ground.get("after") == b"after"

    run(play)
