"""The ceiling of the engine's memory, over a real mount and a real S3 server."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rig.faultproxy import FaultProxy
from rig.mounts import EngineProcess, Mounted, Source, clean_up, wait_for
from tiercache.errors import ConfigError
from tiercache.units import MIB

CEILING = 192 * MIB
READERS = 64
FILE_BYTES = 5 * MIB
STEP_BYTES = 128 * 1024
WRITERS = 8
HELD_BACK = 32
STAGING_BYTES = 64 * MIB


@pytest.fixture
def small_engine(tmp_path: Path) -> Iterator[EngineProcess]:
    """An engine with little memory, and a disk that does not hold what is read."""
    engine = EngineProcess(
        tmp_path / "small-cache",
        **{"memory_max": str(CEILING), "nvme.capacity": "128MiB", "ram.capacity": "0", "upload.concurrency": WRITERS},
        **{"staging.capacity": str(STAGING_BYTES), "fetch.timeout_s": 60},
    )
    yield engine
    engine.stop()


@pytest.fixture
def small(small_engine: EngineProcess, s3: Source, mountpoint: Path) -> Iterator[Mounted]:
    mounted = Mounted(small_engine, s3, mountpoint, {"mount_options": {"driver": "kernel"}})
    mounted.mount()
    yield mounted
    clean_up(mountpoint)


def bytes_of(number: int, size_bytes: int) -> bytes:
    return random.Random(number).randbytes(size_bytes)


def most_resident_bytes(pid: int) -> int:
    """The most physical memory that the process ever had, file-backed pages included: the kernel's own high-water mark,
    which no observer can miss."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def at_once(number: int, work: Callable[[int], Any]) -> list[Any]:
    """Run in so many threads that start together; raises what the first of them raises."""
    barrier = threading.Barrier(number)

    def one(place: int) -> Any:
        barrier.wait()
        return work(place)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


def test_64_parallel_readers_stay_below_the_ceiling(small: Mounted) -> None:
    """More than memory and disk hold is read at once: every byte is right, everybody gets to the end, and read-ahead is
    what was left out."""

    def put(number: int) -> bytes:
        data = bytes_of(number, FILE_BYTES)
        small.source.put(f"f{number}", data)
        return hashlib.blake2b(data).digest()

    with ThreadPoolExecutor(WRITERS) as pool:
        digests = list(pool.map(put, range(READERS)))

    with contextlib.ExitStack() as closing:
        files = [closing.enter_context(open(small.path / f"f{n}", "rb", buffering=0)) for n in range(READERS)]

        def read(number: int) -> bytes:
            digest = hashlib.blake2b()
            while data := files[number].read(STEP_BYTES):
                digest.update(data)
            return digest.digest()

        assert at_once(READERS, read) == digests
    figures = small.engine.client.status()["metrics"]
    assert figures["memory_shed_total"]["readahead"] > 0
    assert figures["memory_waits_total"]["fetch"] > 0
    assert sum(figures["memory_bytes"].values()) == figures["memory_bytes"]["overflow"], "all is given back"
    assert most_resident_bytes(small.engine.pid) <= CEILING


def test_uploads_stay_below_the_ceiling(small: Mounted) -> None:
    """Eight files at once whose parts alone would fill the memory: they go up in smaller parts, and fewer at a time."""
    contents = [bytes_of(number, 8 * MIB) for number in range(WRITERS)]
    at_once(WRITERS, lambda number: (small.path / f"w{number}").write_bytes(contents[number]))
    small.drain()
    for number, data in enumerate(contents):
        assert small.source.get(f"w{number}") == data
    assert small.engine.client.status()["metrics"]["memory_waits_total"]["upload"] > 0
    assert most_resident_bytes(small.engine.pid) <= CEILING


def test_writes_that_wait_for_room_stay_below_the_ceiling(
    small_engine: EngineProcess, s3: Source, s3_proxy: FaultProxy, mountpoint: Path
) -> None:
    """While the store takes nothing and staging is full, not all that 32 writers hold out is taken: the rest waits in
    the kernel. When the store is back everything arrives."""
    gate = s3_proxy.pause(operation="CreateMultipartUpload")
    small = Mounted(small_engine, s3._replace(options=s3_proxy.options()), mountpoint, {})
    small.mount()
    try:
        first = bytes_of(HELD_BACK, STAGING_BYTES - MIB)
        (small.path / "first").write_bytes(first)
        gate.wait_reached()
        contents = [bytes_of(number, MIB) for number in range(HELD_BACK)]
        with contextlib.ExitStack() as closing, ThreadPoolExecutor(1) as pool:
            # Opened while staging is nearly full: their writes come to the engine.
            files = [closing.enter_context(open(small.path / f"w{n}", "wb", buffering=0)) for n in range(HELD_BACK)]
            writers = pool.submit(at_once, HELD_BACK, lambda n: files[n].write(contents[n]))
            wait_for(lambda: small_engine.client.status()["metrics"]["memory_waits_total"]["write"] > 0)
            gate.open()
            assert writers.result() == [MIB] * HELD_BACK
        small.drain()
        assert small.source.get("first") == first
        assert [small.source.get(f"w{number}") for number in range(HELD_BACK)] == contents
        assert most_resident_bytes(small_engine.pid) <= CEILING
    finally:
        gate.open()
        clean_up(mountpoint)


def test_a_ceiling_that_is_too_low_is_one_line(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path / "cache", **{"memory_max": "50MiB"})
    with pytest.raises(ConfigError, match=r"^memory_max: 50 MiB is too little .* at least \d+ MiB$"):
        engine.client.status()
    assert not (tmp_path / "cache" / "engine.sock").exists()
