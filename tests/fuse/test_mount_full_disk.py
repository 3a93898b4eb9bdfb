"""A mount and fsspec over a cache on a very small disk, which others fill and free again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rig.cache_rig import bytes_of
from rig.mounts import EngineProcess, Source, mounted_for
from rig.small_disk import free_bytes, small_disk
from tiercache.filesystem import TierCacheFileSystem
from tiercache.units import MIB

Write = Callable[[str, bytes], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 8) as path:
        yield path


@pytest.fixture
def small_engine(tmp_path: Path, disk: Path) -> Iterator[EngineProcess]:
    engine = EngineProcess(
        disk / "cache",
        **{
            "ram.capacity": "0",
            "ram.directory": str(tmp_path / "ram"),
            "nvme.capacity": "80%",
            "nvme.free_space_floor": "512KiB",
            "staging.capacity": "4MiB",
            "staging.wait_max_s": 1,
        },
    )
    yield engine
    engine.stop()


def fill(disk: Path) -> None:
    """Take all that is free; others than we do it."""
    with (disk / "other").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(max(4096, free_bytes(disk))))


def write_synced(path: Path, data: bytes) -> None:
    """Write, fsync and close: what returns is acknowledged, and any of the three may tell."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def play(engine: EngineProcess, source: Source, disk: Path, write: Write) -> None:
    """64 MiB with the disk to ourselves, then with others on it, then again alone."""
    acknowledged: dict[str, bytes] = {}
    told: list[int | None] = []

    def written(name: str) -> bool:
        data = bytes_of(name, MIB)
        try:
            write(name, data)
        except OSError as error:
            told.append(error.errno)
            return False
        acknowledged[name] = data
        return True

    assert all(written(f"first{number}") for number in range(64))
    for number in range(12):
        fill(disk)
        written(f"full{number}")
    # Others take what the cache gives up; but a file may find the room that the one before left when it had gone up.
    assert set(told) <= {errno.ENOSPC}
    (disk / "other").unlink()
    assert all(written(f"again{number}") for number in range(8))
    engine.drain()
    assert {name: source.get(name) for name in acknowledged} == acknowledged


def filesystem_of(engine: EngineProcess, source: Source) -> tuple[Any, str]:
    engine.client.status()  # starts it, with these settings
    cache_dir = str(engine.config.cache_dir)
    fs = TierCacheFileSystem(target_protocol="file", cache_dir=cache_dir, profile="general", skip_instance_cache=True)
    return fs, str(source.directory)


@pytest.mark.timeout(240)
def test_a_mount_on_a_small_disk_writes_waits_or_tells(
    small_engine: EngineProcess, posix: Source, disk: Path, driver: str, mountpoint: Path
) -> None:
    """C23: 64 MiB through 8 MiB; with the disk filled from outside an error is told, never a byte lost silently."""
    for _ in mounted_for(small_engine, posix, mountpoint, driver):
        play(small_engine, posix, disk, lambda name, data: write_synced(mountpoint / name, data))
        for name in ("first0", "again7"):
            assert (mountpoint / name).read_bytes() == bytes_of(name, MIB)


@pytest.mark.timeout(240)
def test_fsspec_on_a_small_disk_writes_waits_or_tells(small_engine: EngineProcess, posix: Source, disk: Path) -> None:
    """C23, written by this process itself into the engine's staging directory."""
    fs, path = filesystem_of(small_engine, posix)

    def write(name: str, data: bytes) -> None:
        with fs.open(f"{path}/{name}", "wb") as file:
            file.write(data)

    play(small_engine, posix, disk, write)
    for name in ("first0", "again7"):
        assert fs.cat_file(f"{path}/{name}") == bytes_of(name, MIB)


def test_the_cache_makes_way_for_what_a_client_writes(small_engine: EngineProcess, posix: Source, disk: Path) -> None:
    """C23: this process finds the disk full, and the engine makes room for it."""
    fs, path = filesystem_of(small_engine, posix)
    for name in ("one", "two"):
        fs.pipe_file(f"{path}/{name}", bytes_of(name, MIB))
    small_engine.drain()  # now they are cached
    fill(disk)
    with fs.open(f"{path}/three", "wb", block_size=MIB // 4) as file:
        file.write(bytes_of("three", MIB))
    small_engine.drain()
    assert posix.get("three") == bytes_of("three", MIB)
