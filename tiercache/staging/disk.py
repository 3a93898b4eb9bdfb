"""The system calls by which staging changes the disk, in one place, so that tests can count, fail and lose them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tiercache import durable
from tiercache.errors import Broken, DiskFull, TierCacheError, TooLarge
from tiercache.staging import writers

_libc = ctypes.CDLL(None, use_errno=True)
FALLOC_KEEP_SIZE = 0x01
FALLOC_PUNCH_HOLE = 0x02
_FICLONE = 0x40049409
_COPY_BYTES = 64 * 1024 * 1024
_BUFFER_BYTES = 4 * 1024 * 1024
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})


class Disk:
    """The real one. Every method may raise OSError; callers wrap them in ``told``."""

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: str) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # what is staged there can be read and sent all the same

    def has_writer(self, path: str) -> bool:
        """See ``writers.has_writer``."""
        return writers.has_writer(path)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            done = os.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def allocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        """fallocate(2), with the kernel's flags."""
        if _libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def copy_range(self, source_fd: int, target_fd: int, source: int, target: int, length: int) -> int:
        """Copy within the kernel, by shared extents where the filesystem can. How much: 0 at the source's end."""
        try:
            return os.copy_file_range(source_fd, target_fd, length, source, target)
        except OSError as error:
            if error.errno not in _CANNOT_CLONE:
                raise
        data = os.pread(source_fd, min(length, _BUFFER_BYTES), source)
        return os.pwrite(target_fd, data, target)

    def sync_data(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_directory(self, path: str) -> None:
        durable.sync_directory(path)

    def make_directory(self, path: Path) -> None:
        """With those above it; durably."""
        durable.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def clone(self, source_fd: int, target_fd: int) -> None:
        """Replace the target's bytes by the source's: shared extents where the filesystem can, a copy elsewhere."""
        try:
            fcntl.ioctl(target_fd, _FICLONE, source_fd)
            return
        except OSError as error:
            if error.errno not in _CANNOT_CLONE:
                raise
        size_bytes = os.fstat(source_fd).st_size
        os.ftruncate(target_fd, 0)
        os.ftruncate(target_fd, size_bytes)
        for start, end in _extents(source_fd, size_bytes):
            _copy(self, source_fd, target_fd, start, end)


def _extents(fd: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """The parts of a sparse file that are not holes."""
    offset = 0
    while offset < size_bytes:
        try:
            start = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        offset = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, offset


def _copy(disk: Disk, source_fd: int, target_fd: int, start: int, end: int) -> None:
    while start < end:
        done = disk.copy_range(source_fd, target_fd, start, start, min(_COPY_BYTES, end - start))
        if not done:
            return  # the source shrank meanwhile
        start += done


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Turn an OSError of staging into a domain error: DiskFull, TooLarge, or Broken."""
    try:
        yield
    except OSError as error:
        raise disk_error(what, error) from error


def disk_error(what: str, error: OSError) -> TierCacheError:
    """DiskFull, TooLarge for what no file may be here, Broken for the rest."""
    if error.errno in _NO_ROOM:
        return DiskFull(f"{what}: the disk of the staging directory is full")
    if error.errno == errno.EFBIG:
        return TooLarge(f"{what}: larger than a file may be on the disk of the staging directory")
    return Broken(f"{what}: {os.strerror(error.errno or errno.EIO)}")
