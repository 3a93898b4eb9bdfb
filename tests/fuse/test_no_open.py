"""Read-only mounts whose kernel asks for no open: right bytes, right listings, and no request for what it has."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rig.mounts import EngineProcess, Mounted, Source, mounted_for, wait_for
from tiercache.model import BLOCK_SIZE_BYTES

RANDOM = random.Random(12)
FILES = {f"f{number}": RANDOM.randbytes(1000 * number) for number in range(30)}


@pytest.fixture(params=["dataset", "general"])
def still(engine: EngineProcess, source: Source, mountpoint: Path, request: pytest.FixtureRequest) -> Iterator[Mounted]:
    for name, data in FILES.items():
        source.put(f"dir/{name}", data)
    yield from mounted_for(engine, source, mountpoint, "kernel", profile=request.param, read_only=True)


def requests(mounted: Mounted) -> float:
    """How many requests of the kernel the engine has answered."""
    figures = mounted.engine.client.status()["metrics"]["mount_requests_total"]
    return float(sum(figures.values()))


def test_every_file_is_read_right(still: Mounted) -> None:
    for _ in range(2):
        for name, data in FILES.items():
            assert (still.path / "dir" / name).read_bytes() == data


def epoch(directory: Path) -> None:
    for name, data in FILES.items():
        # Unbuffered: else Python asks whether the file is a terminal, which no cache can answer.
        with open(directory / name, "rb", buffering=0) as file:
            assert file.read() == data
        assert (directory / name).stat().st_size == len(data)  # the kernel asks for the atime after a READ
    assert sorted(os.listdir(directory)) == sorted(FILES)


def asks_nothing(mounted: Mounted) -> bool:
    before = requests(mounted)
    epoch(mounted.path)
    return requests(mounted) == before


def test_after_the_first_epoch_nothing_is_asked(engine: EngineProcess, source: Source, mountpoint: Path) -> None:
    for name, data in FILES.items():
        source.put(name, data)
    for mounted in mounted_for(engine, source, mountpoint, "kernel", profile="dataset", read_only=True):
        epoch(mountpoint)
        wait_for(partial(asks_nothing, mounted))  # others on the machine may drop the kernel's caches at any time


def test_a_large_cold_file_is_read_right(engine: EngineProcess, source: Source, mountpoint: Path) -> None:
    data = RANDOM.randbytes(3 * BLOCK_SIZE_BYTES + 17)
    source.put("big", data)
    for _ in mounted_for(engine, source, mountpoint, "kernel", profile="dataset", read_only=True):
        assert (mountpoint / "big").read_bytes() == data
        Path("/proc/sys/vm/drop_caches").write_text("1")
        with open(mountpoint / "big", "rb", buffering=0) as file:
            for _ in range(100):
                offset, length = RANDOM.randrange(len(data)), RANDOM.randrange(100_000)
                assert os.pread(file.fileno(), length, offset) == data[offset : offset + length]


def test_what_others_replace_is_seen_after_the_ttl(engine: EngineProcess, source: Source, mountpoint: Path) -> None:
    source.put("file", b"old")
    for _ in mounted_for(engine, source, mountpoint, "kernel", profile="general", read_only=True):
        assert (mountpoint / "file").read_bytes() == b"old"
        source.put("file", b"newer")
        wait_for(lambda: (mountpoint / "file").read_bytes() == b"newer")
        source.put("another", b"x")
        wait_for(lambda: sorted(os.listdir(mountpoint)) == ["another", "file"])


def test_what_this_node_writes_is_seen_at_once(
    engine: EngineProcess, source: Source, mountpoint: Path, tmp_path: Path
) -> None:
    source.put("file", b"old")
    writable = tmp_path / "writable"
    writable.mkdir()
    for _ in mounted_for(engine, source, mountpoint, "kernel", profile="general", read_only=True):
        for _ in mounted_for(engine, source, writable, "kernel"):
            assert (mountpoint / "file").read_bytes() == b"old"
            (writable / "file").write_bytes(b"in place and longer")
            wait_for(lambda: (mountpoint / "file").read_bytes() == b"in place and longer", deadline_s=5)
            (writable / "new").write_bytes(b"new")
            wait_for(lambda: (mountpoint / "new").exists(), deadline_s=5)


def test_listings_of_many_readers_tell_each_name_once(still: Mounted) -> None:
    with os.scandir(still.path / "dir") as one, os.scandir(still.path / "dir") as two:
        first = [next(one).name for _ in range(5)]
        assert {entry.name for entry in two} == set(FILES)
        first += [entry.name for entry in one]
    assert sorted(first) == sorted(FILES)


def test_files_and_directories_can_be_synced_though_nothing_was_written(still: Mounted) -> None:
    for path in (still.path / "dir" / "f1", still.path / "dir"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.fdatasync(descriptor)
        os.close(descriptor)


def test_nothing_can_be_written(still: Mounted) -> None:
    for attempt in (
        lambda: (still.path / "dir" / "f1").write_bytes(b"x"),
        lambda: (still.path / "new").touch(),
        lambda: (still.path / "dir" / "f1").unlink(),
    ):
        with pytest.raises(OSError, match="Read-only"):
            attempt()
    assert (still.path / "dir" / "f1").read_bytes() == FILES["f1"]
