"""Emptying the page cache, and proving that it is empty."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

DROP_CACHES = Path("/proc/sys/vm/drop_caches")

ATTEMPTS = 50
_PAUSE_S = 0.01

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_MAP_FAILED = ctypes.c_void_p(-1).value


class PageCache:
    """How this process can empty the page cache: all of it as root, else the pages of files it may open.

    ``everything=False`` leaves the pages of others alone in any case.
    """

    def __init__(self, *, everything: bool = True, pause: Callable[[], object] = lambda: time.sleep(_PAUSE_S)) -> None:
        """``pause`` is called between attempts to drop what somebody held."""
        self.drops_all = everything and os.geteuid() == 0 and _can_write(DROP_CACHES)
        self._everything = everything
        self._pause = pause

    @property
    def how(self) -> str:
        """One sentence for the report."""
        if self.drops_all:
            return (
                "The whole page cache was written back and dropped (/proc/sys/vm/drop_caches) "
                "before each cold and disk-warm round."
            )
        why = "Not root" if self._everything else "A quick run"
        return (
            f"{why}: only the pages of the benchmark's own files were dropped (posix_fadvise); "
            "those of the origin's server stayed, so that its cold rounds are too fast."
        )

    def drop(self, paths: Iterable[Path]) -> None:
        """Empty it, at least of these files.

        The kernel skips a page that is dirty, mapped, or held at that moment: by a read that is not over, or by the
        compaction of memory, which moves pages of any file. What was held is dropped in one of ``ATTEMPTS``; what is
        mapped stays, and ``resident_share`` tells.
        """
        if self.drops_all:
            os.sync()  # dirty pages of others too: the origin's server has just been given what it will be asked for
            DROP_CACHES.write_text("3")
        left = list(paths)
        for attempt in range(ATTEMPTS):
            if attempt:
                self._pause()
            for path in left:
                _drop_file(path)
            left = [path for path in left if resident_share([path])]
            if not left:
                return


def _drop_file(path: Path) -> None:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_share(paths: Iterable[Path]) -> float:
    """The share of these files' pages that are in the page cache, by mincore(2). 0 when there are no pages."""
    pages = resident = 0
    for path in paths:
        try:
            with open(path, "rb") as file:
                vector = _mincore(file.fileno(), os.fstat(file.fileno()).st_size)
        except FileNotFoundError:
            continue
        pages += len(vector)
        # Only the lowest bit of each byte means anything.
        resident += sum(byte & 1 for byte in vector)
    return resident / pages if pages else 0.0


def _mincore(descriptor: int, size_bytes: int) -> bytes:
    if not size_bytes:
        return b""
    address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        raise _failure("mmap")
    try:
        vector = ctypes.create_string_buffer(-(-size_bytes // mmap.PAGESIZE))
        if _libc.mincore(address, size_bytes, vector):
            raise _failure("mincore")
        return vector.raw
    finally:
        _libc.munmap(address, size_bytes)


def _failure(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")


def _can_write(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
