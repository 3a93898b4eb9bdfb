"""Reading through a mount when the store has a bad day: right bytes or an error, never silence."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rig.failing_disk import failing_disk
from rig.faultproxy import FaultProxy
from rig.mounts import EngineProcess, Mounted, Source, mounted_for, refused, wait_for
from tiercache.model import BLOCK_SIZE_BYTES

DATA = random.Random(11).randbytes(BLOCK_SIZE_BYTES * 5 // 2)

READ_IN_A_PROCESS = "import hashlib,sys; print(hashlib.file_digest(open(sys.argv[1],'rb'),'sha256').hexdigest())"


@pytest.fixture
def faulty(engine: EngineProcess, s3: Source, s3_proxy: FaultProxy, driver: str, mountpoint: Path) -> Iterator[Mounted]:
    """A mount that reaches its store through the fault proxy only."""
    yield from mounted_for(engine, s3._replace(options=s3_proxy.options()), mountpoint, driver)


@pytest.fixture
def key(s3: Source) -> bytes:
    s3.put("object", DATA)
    return f"{s3.prefix}/object".encode()


def test_many_readers_of_a_cold_object_cause_one_fetch_per_block(
    faulty: Mounted, s3_proxy: FaultProxy, key: bytes
) -> None:
    """C06."""
    s3_proxy.delay(1.0, operation="GetObject")
    path = faulty.path / "object"
    processes = [
        subprocess.Popen([sys.executable, "-c", READ_IN_A_PROCESS, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    digests: list[str] = []

    def read() -> None:
        digests.append(hashlib.sha256(path.read_bytes()).hexdigest())

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    digests.extend(process.communicate(timeout=30)[0].strip() for process in processes)
    assert digests == [hashlib.sha256(DATA).hexdigest()] * 20
    ranges = [logged.range for logged in s3_proxy.log if logged.operation == "GetObject" and logged.key == key]
    assert len(ranges) == len(set(ranges)) <= 3


def test_a_cut_answer_is_fetched_again(faulty: Mounted, s3_proxy: FaultProxy, key: bytes) -> None:
    """C10, once."""
    s3_proxy.cut(BLOCK_SIZE_BYTES // 2, operation="GetObject", key=key, times=1)
    assert (faulty.path / "object").read_bytes() == DATA


@pytest.mark.parametrize("fault", ["cut", "short", "lying"])
def test_answers_that_are_always_cut_are_an_error_and_never_cached(
    faulty: Mounted, s3_proxy: FaultProxy, key: bytes, fault: str
) -> None:
    """C10, every time."""
    match fault:
        case "cut":
            s3_proxy.cut(1000, operation="GetObject", key=key)
        case "short":
            s3_proxy.short_range(key=key)
        case "lying":
            s3_proxy.short_range(honest=False, key=key)
    with refused(errno.EIO):
        (faulty.path / "object").read_bytes()
    s3_proxy.clear()
    assert (faulty.path / "object").read_bytes() == DATA


@pytest.mark.parametrize(("status", "code"), [(403, errno.EACCES), (500, errno.EIO), (503, errno.EIO)])
def test_a_store_that_refuses_is_an_error_and_never_an_absence(
    faulty: Mounted, s3_proxy: FaultProxy, key: bytes, status: int, code: int
) -> None:
    """C11."""
    s3_proxy.answer(status)
    with refused(code):
        os.stat(faulty.path / "object")
    with refused(code):
        os.listdir(faulty.path)
    s3_proxy.clear()
    assert (faulty.path / "object").read_bytes() == DATA
    assert not (faulty.path / "missing").exists()


def test_an_object_replaced_under_an_open_file_is_old_or_stale_and_never_mixed(
    faulty: Mounted, s3_proxy: FaultProxy, key: bytes
) -> None:
    """C05, the reader's part."""
    path = faulty.path / "object"
    new = bytes(len(DATA))
    with open(path, "rb", buffering=0) as file:
        head = os.pread(file.fileno(), 1000, 0)
        assert head == DATA[:1000]
        faulty.source.put("object", new)
        assert old_or_stale(file.fileno(), 2 * BLOCK_SIZE_BYTES)
        seen: list[bytes] = []

        def changed() -> bool:
            seen.append(path.read_bytes())
            return seen[-1] != DATA

        wait_for(changed)
        assert seen[-1] == new, "old or new, never a mix"
        assert old_or_stale(file.fileno(), 0)


def old_or_stale(descriptor: int, offset: int) -> bool:
    try:
        return os.pread(descriptor, 1000, offset) == DATA[offset:][:1000]
    except OSError as error:
        return error.errno == errno.ESTALE


def test_a_store_that_hangs_does_not_stop_other_files(faulty: Mounted, s3_proxy: FaultProxy, key: bytes) -> None:
    faulty.source.put("other", b"x" * 1000)
    gate = s3_proxy.pause(operation="GetObject", key=key)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((faulty.path / "object").read_bytes()))
    reader.start()
    gate.wait_reached()
    assert (faulty.path / "other").read_bytes() == b"x" * 1000
    (faulty.path / "written").write_bytes(b"y")
    assert sorted(os.listdir(faulty.path)) == ["object", "other", "written"]
    gate.open()
    reader.join()
    assert found == [DATA]


def test_new_opens_go_past_a_cache_disk_that_fails_under_the_kernel(
    tmp_path: Path, posix: Source, driver: str, mountpoint: Path
) -> None:
    """Programs get errors from it until that is noticed, and not from then on."""
    data = {name: random.Random(name).randbytes(1_000_000) for name in "abcd"}
    for name, content in data.items():
        posix.put(name, content)
    (tmp_path / "cache").mkdir()
    with failing_disk(tmp_path / "cache" / "nvme", 64) as disk:
        engine = EngineProcess(tmp_path / "cache", **{"ram.capacity": 0, "staging.capacity": "16MiB"})
        for mounted in mounted_for(engine, posix, mountpoint, driver):
            for _ in range(2):
                assert {name: (mounted.path / name).read_bytes() for name in data} == data
            disk.fail()
            Path("/proc/sys/vm/drop_caches").write_text("1")
            wait_for(lambda: found(mountpoint, data) == data, deadline_s=20)
            assert found(mountpoint, data) == data
            disk.heal()
        engine.stop()


def found(directory: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Those that can be read, and never other bytes."""
    whole = {}
    for name in names:
        with suppress(OSError):
            whole[name] = (directory / name).read_bytes()
    return whole
