"""Notices that a disk fails which only the kernel reads.

Of the copies that are lent to it, the kernel tells the program alone what it could not read. So while copies are
opened, now and then a page of the last of them is read from the disk here too, and new opens are not sent to a disk
that fails.
"""

from __future__ import annotations

import logging
import os
import random

import trio

from tiercache.cache.copies import Copies
from tiercache.cache.words import VersionRef
from tiercache.errors import TierCacheError
from tiercache.model import Tier

log = logging.getLogger(__name__)

_PAGE_BYTES = 4096


class LentCopies:
    """Of the NVMe tier; see ``Cache.open_local``."""

    def __init__(self, copies: Copies, nursery: trio.Nursery) -> None:
        self._copies = copies
        self._nursery = nursery
        self._last: VersionRef | None = None
        self._looking = False

    def opened(self, version: VersionRef) -> None:
        """Its descriptor was given out."""
        self._last = version

    def look(self) -> None:
        """Read a page, if a copy was opened since the last look. One that waits for its disk is the only one."""
        version, self._last = self._last, None
        if version is not None and version.size_bytes and not self._looking:
            self._looking = True
            self._nursery.start_soon(self._look, version)

    async def _look(self, version: VersionRef) -> None:
        try:
            location = self._copies.locate(version, tier=Tier.NVME)
            if location is not None:
                offset = random.randrange(version.size_bytes)
                error = await trio.to_thread.run_sync(_read_page, location.path, offset, abandon_on_cancel=True)
                if error is not None:
                    self._copies.unreadable(version.id, Tier.NVME, error)
        except TierCacheError as error:
            log.warning("the catalog cannot tell where a copy is: %s", error)
        finally:
            self._looking = False


def _read_page(path: str, offset: int) -> OSError | None:
    """From the disk, whatever of the file is in memory; what went wrong. A file that was evicted meanwhile is right."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            start = offset - offset % _PAGE_BYTES
            os.posix_fadvise(fd, start, _PAGE_BYTES, os.POSIX_FADV_DONTNEED)
            os.pread(fd, _PAGE_BYTES, start)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None
