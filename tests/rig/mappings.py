"""A shared mapping that outlives its descriptor, as by mmap(2): Python's ``mmap`` keeps a descriptor of its own."""

from __future__ import annotations

import ctypes
import mmap
import os
from types import TracebackType

_MS_SYNC = 4
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class SharedMapping:
    """The first ``length`` bytes of an open file, to be read and written."""

    def __init__(self, fd: int, length: int) -> None:
        address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        self._address = address
        self._length = length

    def write(self, offset: int, data: bytes) -> None:
        assert 0 <= offset <= self._length - len(data)
        ctypes.memmove(self._address + offset, data, len(data))

    def sync(self) -> None:
        """msync(2)."""
        if _libc.msync(ctypes.c_void_p(self._address), ctypes.c_size_t(self._length), _MS_SYNC):
            raise OSError(ctypes.get_errno(), "msync")

    def close(self) -> None:
        if self._address:
            _libc.munmap(self._address, self._length)
            self._address = 0

    def __enter__(self) -> SharedMapping:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def mapped_and_closed(path: os.PathLike[str], flags: int = 0, *, data: bytes = b"", length: int) -> SharedMapping:
    """A mapping of a file that was opened, written and closed."""
    fd = os.open(path, os.O_RDWR | flags, 0o644)
    try:
        if data:
            os.write(fd, data)
        return SharedMapping(fd, length)
    finally:
        os.close(fd)
