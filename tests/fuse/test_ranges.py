"""Ranges of files: allocated, punched, copied and searched for holes, as the kernel asks our own session."""

from __future__ import annotations

import ctypes
import errno
import os
import random
from pathlib import Path

import pytest

from rig.mounts import Mounted, refused
from tiercache.model import BLOCK_SIZE_BYTES

KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE = 1, 2, 8, 16
RANDOM = random.Random(13)
DATA = RANDOM.randbytes(100_000)

_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def driver() -> str:
    return "kernel"


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    if _libc.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


def test_room_is_allocated_with_and_without_a_new_size(mounted: Mounted, root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as file:
        file.write(b"start")
        fallocate(file.fileno(), KEEP_SIZE, 0, 50_000)
        assert os.fstat(file.fileno()).st_size == 5
        os.posix_fallocate(file.fileno(), 0, 10_000)
        assert os.fstat(file.fileno()).st_size == 10_000
        assert os.pread(file.fileno(), 20_000, 0) == b"start" + bytes(9_995)
    mounted.drain()
    assert mounted.source.get("file") == b"start" + bytes(9_995)


def test_holes_are_punched_and_ranges_zeroed(mounted: Mounted, root: Path) -> None:
    mounted.source.put("file", DATA)
    expected = bytearray(DATA)
    with open(root / "file", "r+b", buffering=0) as file:
        fallocate(file.fileno(), PUNCH_HOLE | KEEP_SIZE, 4096, 8192)
        expected[4096 : 4096 + 8192] = bytes(8192)
        fallocate(file.fileno(), ZERO_RANGE, 50_000, 1000)
        expected[50_000:51_000] = bytes(1000)
        fallocate(file.fileno(), ZERO_RANGE, 99_000, 2000)
        expected[99_000:] = bytes(2000)
        assert os.pread(file.fileno(), 200_000, 0) == expected
        with refused(errno.EOPNOTSUPP):
            fallocate(file.fileno(), COLLAPSE_RANGE, 0, 4096)
    mounted.drain()
    assert mounted.source.get("file") == expected


def test_data_and_holes_are_found(mounted: Mounted, root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"x" * 4096, 1 << 20)
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 1 << 20
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 0
        assert os.lseek(file.fileno(), 1 << 20, os.SEEK_HOLE) == (1 << 20) + 4096
        with refused(errno.ENXIO):
            os.lseek(file.fileno(), 2 << 20, os.SEEK_DATA)


def test_a_file_that_is_not_here_has_no_hole_but_its_end(mounted: Mounted, root: Path) -> None:
    size = 2 * BLOCK_SIZE_BYTES
    mounted.source.put("big", bytes(size))
    with open(root / "big", "rb", buffering=0) as file:
        assert os.lseek(file.fileno(), 7, os.SEEK_DATA) == 7
        assert os.lseek(file.fileno(), 7, os.SEEK_HOLE) == size
        with refused(errno.ENXIO):
            os.lseek(file.fileno(), size, os.SEEK_DATA)


@pytest.mark.parametrize("read_before", [True, False], ids=["cached", "cold"])
def test_ranges_are_copied_between_files(mounted: Mounted, root: Path, read_before: bool) -> None:
    mounted.source.put("source", DATA)
    if read_before:
        assert (root / "source").read_bytes() == DATA
    with open(root / "source", "rb") as source, open(root / "target", "w+b", buffering=0) as target:
        target.write(b"before")
        copied, wanted = 0, 60_000
        while copied < wanted:
            done = os.copy_file_range(source.fileno(), target.fileno(), wanted - copied, 1000 + copied, 3 + copied)
            assert done > 0
            copied += done
        assert os.copy_file_range(source.fileno(), target.fileno(), 10, len(DATA), 0) == 0
    expected = b"bef" + DATA[1000:61_000]
    assert (root / "target").read_bytes() == expected
    mounted.drain()
    assert mounted.source.get("target") == expected
    assert mounted.source.get("source") == DATA


@pytest.mark.parametrize("driver", ["pyfuse3"])
def test_pyfuse3_refuses_to_allocate_and_knows_no_holes(mounted: Mounted, root: Path) -> None:
    with open(root / "file", "w+b", buffering=0) as file, open(root / "copy", "w+b", buffering=0) as copy:
        os.pwrite(file.fileno(), DATA, 1_000_000)
        for mode in (0, KEEP_SIZE | PUNCH_HOLE):
            with refused(errno.ENOTSUP):
                fallocate(file.fileno(), mode, 0, 10)
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 1_000_000 + len(DATA)
        assert os.copy_file_range(file.fileno(), copy.fileno(), len(DATA), 1_000_000) == len(DATA)
        assert os.pread(copy.fileno(), len(DATA) + 1, 0) == DATA
