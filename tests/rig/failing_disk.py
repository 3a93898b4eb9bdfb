"""A disk that fails when a test says so: ext4 on a loop device, whose end moves away from under it."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LOOP_SET_STATUS64 = 0x4C04
_LOOP_GET_STATUS64 = 0x4C05
_INFO_BYTES = 232
_SIZE_LIMIT_AT = 32


class FailingDisk:
    """Mounted at ``path``."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self._device = device

    def fail(self) -> None:
        """From now on whatever reaches the disk is EIO. What the kernel has of files is forgotten, so that it does."""
        self.forget_pages()
        self._limit(512)

    def heal(self) -> None:
        self._limit(0)

    def forget_pages(self) -> None:
        """Let files be read from the disk again."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _limit(self, size_bytes: int) -> None:
        with open(self._device, "rb") as device:
            info = bytearray(_INFO_BYTES)
            fcntl.ioctl(device, _LOOP_GET_STATUS64, info)
            struct.pack_into("=Q", info, _SIZE_LIMIT_AT, size_bytes)
            fcntl.ioctl(device, _LOOP_SET_STATUS64, info)


@contextmanager
def failing_disk(path: Path, size_mib: int) -> Iterator[FailingDisk]:
    """Make one and mount it; skips the test where that is not allowed."""
    image = path.with_name(f"{path.name}.image")
    image.touch()
    os.truncate(image, size_mib << 20)
    path.mkdir(exist_ok=True)
    try:
        # Without a journal, whose end would make the disk read-only for good.
        _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
        _run("mount", "-o", "loop,errors=continue", str(image), str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a disk on a loop device needs CAP_SYS_ADMIN and mkfs.ext4: {error}")
    disk = FailingDisk(path, _run("findmnt", "-n", "-o", "SOURCE", str(path)).strip())
    try:
        yield disk
    finally:
        disk.heal()
        _run("umount", "-l", str(path))  # which lets go of the loop device too
        image.unlink()


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
