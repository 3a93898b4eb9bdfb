"""Whether anybody can still write to a file: who has it open for writing, or mapped from such an open.

A mapping outlives its descriptor, and of the last munmap nobody is told. But the kernel counts the writers of an inode,
and gives no read lease (fcntl(2), F_SETLEASE) while there are any: so we ask for one, and let it go at once.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
from contextlib import suppress

_PROBE_NAME = "mapping-probe"
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def has_writer(path: str) -> bool:
    """Whether somebody, we ourselves included, can write to the file. Never blocks. OSError where it is gone, or its
    filesystem knows no leases."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Whoever opens it for writing before it is closed here waits for that, and we are sent a signal: not SIGIO,
        # which would end us.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)  # the lease ends with it
    return False


def tells_of_mappings(directory: str) -> bool:
    """Whether ``has_writer`` tells of a mapping without a descriptor, for files in this directory. It does not on
    stacked filesystems (overlayfs), which map another file than the one that was opened. Makes a file and removes it.
    """
    path = os.path.join(directory, _PROBE_NAME)
    try:
        try:
            return _is_noticed(path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
    except OSError:
        return False


def _is_noticed(path: str) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        # Not Python's ``mmap``, which keeps a descriptor.
        address = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    if address == _MAP_FAILED:
        return False
    try:
        noticed = has_writer(path)
    finally:
        _libc.munmap(address, mmap.PAGESIZE)
    return noticed and not has_writer(path)
