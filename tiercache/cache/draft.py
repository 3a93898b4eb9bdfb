"""A draft: the file of a small object, written by the worker that fetched it, before there is room or a name for it.

So a cold file costs one trip to a worker thread instead of two. A draft has no name until it gets that of its version:
a crash leaves nothing of it.
"""

from __future__ import annotations

import errno
import os

from tiercache.checksum import block_checksums
from tiercache.tier import FileIdentity


class Draft:
    """An open file with all bytes of an object; a context manager, which closes it, named or not."""

    def __init__(self, fd: int, checksums: bytes) -> None:
        self._fd = fd
        self.checksums = checksums

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def write(cls, directory: str, data: memoryview) -> Draft | None:
        """Write an unnamed file on the disk of ``directory``. Blocking. None when that cannot be done (some filesystems
        know no unnamed files): the usual way then meets what is wrong, and tells it."""
        try:
            fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            offset = 0
            while offset < len(data):
                offset += os.pwrite(fd, data[offset:], offset)
        except OSError:
            os.close(fd)
            return None
        return cls(fd, block_checksums(data))

    def name(self, path: str) -> FileIdentity:
        """Put the file at ``path``, in place of whatever has no record there. OSError if that fails."""
        try:
            self._link(path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            self._link(path)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            os.unlink(path)
            self._link(path)
        return FileIdentity.of(os.fstat(self._fd))

    def _link(self, path: str) -> None:
        # A directory descriptor, which an absolute path does not need, makes Python follow the link in /proc.
        os.link(f"/proc/self/fd/{self._fd}", path, src_dir_fd=self._fd, follow_symlinks=True)

    def close(self) -> None:
        os.close(self._fd)
