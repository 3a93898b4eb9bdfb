"""What the page cache tells of a file: whether somebody may have asked for its bytes to be on the disk."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Final

_CACHESTAT: Final = 451
"""Its number is the same on every architecture. Linux 6.5 and later."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Statistics(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def may_be_synced(descriptor: int) -> bool:
    """Whether an fsync since the file was made is possible: False only if all of its pages wait to be written. Also
    True where the kernel does not tell, and where it began to write by itself."""
    statistics = _Statistics()
    whole = _Range(0, 0)
    if _libc().syscall(_CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(statistics), 0) != 0:
        return True
    pages = -(-os.fstat(descriptor).st_size // mmap.PAGESIZE)
    return pages == 0 or statistics.dirty + statistics.writeback < pages


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
