"""Cases from CASES.md that need a mount, an origin that others change, and many files at once."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rig.faultproxy import FaultProxy
from rig.mounts import EngineProcess, Mounted, Source, umount_when_free, wait_for
from tiercache.filesystem import TierCacheFileSystem
from tiercache.model import BLOCK_SIZE_BYTES
from tiercache.units import MIB

OLD = b"twelve bytes"
STAGED_FILES = 1000
IDLE_HANDLES = 500
IDLE_FILE_BYTES = 256 * 1024


def read_whole(path: Path) -> bytes:
    """The file's bytes; size and length agree at every look."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.readall()
        assert len(data) == size == os.fstat(file.fileno()).st_size
    return data


@pytest.mark.parametrize("new", [b"fourteen bytes", b"new", b"TWELVE BYTES"])
def test_a_foreign_change_shows_the_whole_old_or_the_whole_new(mounted: Mounted, root: Path, new: bytes) -> None:
    """C04: an object that was looked at and is then replaced is read whole, at once and after the time to live."""
    source = mounted.source
    source.put("object", OLD)
    assert (root / "object").stat().st_size == len(OLD)
    source.put("object", new)
    assert read_whole(root / "object") in (OLD, new)
    wait_for(lambda: read_whole(root / "object") == new)
    assert (root / "object").stat().st_size == len(new)
    source.put("object", OLD + OLD)
    wait_for(lambda: read_whole(root / "object") == OLD + OLD)


def test_the_kernel_looks_again_at_a_name_that_others_have_replaced(mounted: Mounted, root: Path) -> None:
    """Within the time to live: what is changed or removed is what has the name by then."""
    source = mounted.source
    for name in ("object", "removed"):
        source.put(name, OLD)
        assert (root / name).stat().st_size == len(OLD)
        source.put(name, b"theirs")
    os.chmod(root / "object", 0o600)
    assert read_whole(root / "object") == source.get("object") == b"theirs"
    os.unlink(root / "removed")
    assert "removed" not in os.listdir(root)
    assert "removed" not in source.names()


def test_fsspec_tells_that_others_have_replaced_what_is_to_be_removed(mounted: Mounted) -> None:
    source = mounted.source
    fs, path = filesystem_of(mounted)
    source.put("object", OLD)
    assert fs.info(f"{path}/object")["size"] == len(OLD)
    source.put("object", b"theirs")
    with pytest.raises(OSError, match="no longer the version") as told:
        fs.rm_file(f"{path}/object")
    assert told.value.errno == errno.ESTALE
    assert fs.cat_file(f"{path}/object") == source.get("object") == b"theirs"
    fs.rm_file(f"{path}/object")
    assert "object" not in source.names()


@pytest.mark.parametrize("new", [b"fourteen bytes", b"new"])
def test_what_fsspec_tells_of_a_foreign_change_agrees_with_what_it_reads(mounted: Mounted, new: bytes) -> None:
    """C04, through fsspec and the same engine: the length of ``info`` is that of ``cat``."""
    source = mounted.source
    fs, path = filesystem_of(mounted)
    source.put("object", OLD)
    assert fs.info(f"{path}/object")["size"] == len(OLD)
    source.put("object", new)

    def seen() -> bytes:
        data = bytes(fs.cat_file(f"{path}/object"))
        assert data in (OLD, new)
        assert fs.info(f"{path}/object")["size"] == len(data)
        return data

    wait_for(lambda: seen() == new)


def filesystem_of(mounted: Mounted) -> tuple[Any, str]:
    protocol, _, path = mounted.source.url.partition("://")
    fs = TierCacheFileSystem(
        target_protocol=protocol,
        target_options=mounted.source.options,
        cache_dir=str(mounted.engine.config.cache_dir),
        profile="general",
        skip_instance_cache=True,
    )
    return fs, path


def test_an_object_replaced_under_an_open_file_is_never_mixed(mounted: Mounted, root: Path) -> None:
    """C05: two blocks by one handle, another object of the same size, the rest by that handle, and a new handle."""
    data, new = (random.Random(seed).randbytes(8 * BLOCK_SIZE_BYTES) for seed in (5, 6))
    mounted.source.put("object", data)
    with open(root / "object", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 2 * BLOCK_SIZE_BYTES, 0) == data[: 2 * BLOCK_SIZE_BYTES]
        mounted.source.put("object", new)
        check_old_or_stale(file.fileno(), data)
        seen: list[bytes] = []

        def changed() -> bool:
            with or_stale():
                seen.append(read_whole(root / "object"))
            return bool(seen) and seen[-1] != data

        wait_for(changed)
        assert seen[-1] == new
        check_old_or_stale(file.fileno(), data)
    assert os.listdir(root) == ["object"], "the mount is alive"


def check_old_or_stale(descriptor: int, data: bytes) -> None:
    """Every part is as it was or cannot be read. (A read that comes upon the change is short.)"""
    for offset in range(0, len(data), MIB):
        with or_stale():
            found = os.pread(descriptor, MIB, offset)
            assert found
            assert found == data[offset : offset + len(found)]


@contextmanager
def or_stale() -> Iterator[None]:
    """The block succeeds, or the rest of the old object is no longer to be had."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise


def test_what_is_told_of_an_open_file_stays_when_its_object_goes(mounted: Mounted, root: Path) -> None:
    """C05: fstat of a file that others replaced or removed tells of what its descriptor reads."""
    mounted.source.put("replaced", OLD)
    mounted.source.put("removed", OLD)
    with open(root / "replaced", "rb") as replaced, open(root / "removed", "rb") as removed:
        mounted.source.put("replaced", OLD + OLD)
        mounted.source.delete("removed")
        wait_for(lambda: read_whole(root / "replaced") == OLD + OLD and not (root / "removed").exists())
        for file in (replaced, removed):
            found = os.fstat(file.fileno())
            assert (found.st_size, found.st_nlink) == (len(OLD), 0)
            assert file.read() == OLD


@pytest.fixture
def behind_proxy(tmp_path: Path, s3: Source, s3_proxy: FaultProxy, driver: str, mountpoint: Path) -> Iterator[Mounted]:
    """A mount whose engine the test may kill, and whose store it may stop."""
    engine = EngineProcess(tmp_path / "own-cache", **{"engine.stop_drain_s": 0})
    source = s3._replace(options=s3_proxy.options())
    # This profile believes a listing for a minute: making a thousand names then asks the store of none of them.
    mounted = Mounted(engine, source, mountpoint, {"profile": "weights", "mount_options": {"driver": driver}})
    mounted.mount()
    yield mounted
    engine.umount(mountpoint, deadline_s=0, lazy=True)
    engine.stop()


def test_staged_files_do_not_delay_a_start(behind_proxy: Mounted, s3_proxy: FaultProxy) -> None:
    """C27: a thousand files wait for a store that hangs; the next engine's mount shows them before any has gone up."""
    path = behind_proxy.path
    gate = s3_proxy.pause(operation="PutObject")
    assert os.listdir(path) == []
    for number in range(STAGED_FILES):
        (path / f"{number:04}").write_bytes(b"%d" % number)
    behind_proxy.engine.kill()
    wait_for(lambda: stands_or_is_gone(path))
    if not os.path.ismount(path):
        behind_proxy.mount()
    assert sorted(os.listdir(path)) == [f"{number:04}" for number in range(STAGED_FILES)]
    for number in range(0, STAGED_FILES, 97):
        assert (path / f"{number:04}").read_bytes() == b"%d" % number
    assert behind_proxy.engine.client.status()["dirty"]["files"] == STAGED_FILES
    assert not s3_proxy.count("PutObject"), "all of that while the store hung"
    gate.open()
    wait_for(lambda: len(behind_proxy.source.names()) > 0)


def stands_or_is_gone(path: Path) -> bool:
    """Whether a supervisor has put a new engine under the mount, or the mount is known to be dead."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return True


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_idle_handles_cost_little(engine: EngineProcess, posix: Source, driver: str, mountpoint: Path) -> None:
    """C27: 500 open readers and writers keep neither their files nor a read-ahead window each in memory."""
    data = random.Random(27).randbytes(IDLE_FILE_BYTES)
    half = range(IDLE_HANDLES // 2)
    for number in half:
        posix.put(f"old{number}", data)
    engine.mount(posix, mountpoint, mount_options={"driver": driver})
    (mountpoint / "old0").read_bytes()
    before = resident_bytes(engine.pid)
    with ExitStack() as stack:
        readers = [stack.enter_context(open(mountpoint / f"old{number}", "rb", buffering=0)) for number in half]
        writers = [stack.enter_context(open(mountpoint / f"new{number}", "wb", buffering=0)) for number in half]
        for reader, writer in zip(readers, writers, strict=True):
            assert reader.read(1) == data[:1]
            writer.write(data[:1])
        assert resident_bytes(engine.pid) - before < IDLE_HANDLES * IDLE_FILE_BYTES // 4
        assert len(os.listdir(mountpoint)) == IDLE_HANDLES, "and the mount answers"
        for reader in readers[::10]:
            assert reader.read() == data[1:]
    assert (mountpoint / "new7").read_bytes() == data[:1]
    umount_when_free(engine, mountpoint)
