"""One staged file, open for as long as somebody reads or writes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tiercache.errors import Lost
from tiercache.staging.disk import Disk, disk_error, told


class StagedFile:
    """Plain blocking calls on one descriptor. Made by ``Staging``, shared by all users of the same id in the engine."""

    def __init__(self, staged_id: int, path: str, fd: int, disk: Disk) -> None:
        self.id = staged_id
        self.path = path
        self.fd = fd
        self.suspect = False
        """An fsync failed: the kernel forgot that bytes are unwritten, so a later success means nothing."""
        self.new = True
        """Whether its name in the directory is not durable yet."""
        self._disk = disk
        self._holders = 0
        self._closing = False

    @property
    def size_bytes(self) -> int:
        """The size now, whoever wrote it."""
        return os.fstat(self.fd).st_size

    @property
    def allocated_bytes(self) -> int:
        """What it takes on the disk: a hole costs nothing."""
        status = os.fstat(self.fd)
        return min(status.st_size, status.st_blocks * 512)

    @property
    def inode(self) -> int:
        return os.fstat(self.fd).st_ino

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write all of ``data`` at ``offset``. NoSpace, Broken."""
        with told("writing a staged file"):
            self._disk.write(self.fd, data, offset)
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, short only at the end."""
        with told("reading a staged file"):
            return os.pread(self.fd, size, offset)

    def truncate(self, size_bytes: int) -> None:
        """Set the size. NoSpace, Broken."""
        with told("resizing a staged file"):
            self._disk.truncate(self.fd, size_bytes)

    def fsync(self) -> None:
        """Make the bytes durable. Lost when that fails, now and at every later call."""
        if self.suspect:
            raise self.distrust()
        try:
            self._disk.sync_data(self.fd)
        except OSError as error:
            self.suspect = True
            raise self.distrust() from disk_error("fsync", error)

    def distrust(self) -> Lost:
        """The error that tells of a failed fsync."""
        return Lost(f"{self.path}: an earlier fsync failed, so written bytes may be missing; write the file anew")

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """The descriptor for a worker thread: it stays open until the block ends, whatever becomes of the file."""
        self._holders += 1
        try:
            yield self.fd
        finally:
            self._holders -= 1
            if self._closing and not self._holders:
                self._close()

    def close(self) -> None:
        """Close the descriptor, as soon as no worker thread uses it. Idempotent."""
        self._closing = True
        if not self._holders:
            self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
