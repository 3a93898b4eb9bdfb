"""The layouts of the files that are read now: learned from their headers at the first read, for all their readers."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from typing import Final

import trio

from tiercache.cache import Cache, Location, VersionRef
from tiercache.errors import TierCacheError
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES, VersionId
from tiercache.readahead.formats import Format, Malformed, Parser, format_of
from tiercache.readahead.formats.format import End
from tiercache.readahead.layout import Layout

SMALLEST_BYTES: Final = 4 * BLOCK_SIZE_BYTES
"""A smaller file is here before its header would have told anything."""

END_BYTES: Final = 128 * 1024
"""So much of an end is sent for, and with it the blocks that it lies in: more than a zip file's end may take."""

AT_ONCE: Final = 16
"""Files that are learned at a time; the others are when one of their readers comes again."""

log = logging.getLogger(__name__)


class Layouts:
    """Help, and no promise: a header that lies, is damaged or does not come costs what was fetched for it, no more.

    All layouts together have at most ``extents_max`` extents; the one that was asked for longest ago goes first.
    """

    def __init__(self, cache: Cache, metrics: Metrics, nursery: trio.Nursery, *, extents_max: int) -> None:
        self._cache = cache
        self._nursery = nursery
        self._extents_max = extents_max
        self._extents = 0
        self._known: OrderedDict[VersionId, Layout | None] = OrderedDict()
        """None: there is nothing to know of it."""
        self._learning: set[VersionId] = set()
        self._count = metrics.format_files
        self._fetched = metrics.format_bytes.labels(outcome="fetched").inc
        metrics.format_extents.set_function(lambda: self._extents)

    def of(self, version: VersionRef) -> Layout | None:
        """The layout, if it is known; otherwise it may be at the next call. Called at each read: never waits."""
        if version.size_bytes < SMALLEST_BYTES:
            return None
        if version.id in self._known:
            self._known.move_to_end(version.id)
            return self._known[version.id]
        if version.id not in self._learning and len(self._learning) < AT_ONCE:
            found = format_of(version.key)
            if found is not None and self._extents_max and self._send_for_ends(version, found):
                self._learning.add(version.id)
                self._nursery.start_soon(self._learn, version, found)
        return None

    def _send_for_ends(self, version: VersionRef, found: Format) -> bool:
        """What its reader looks at first, both ends at once. False when it would be in others' way."""
        offsets = [0] if End.HEAD in found.ends else []
        if End.TAIL in found.ends:
            offsets.append(version.size_bytes - END_BYTES)
        for offset in offsets:
            ahead = self._cache.prefetch(version, offset, END_BYTES)
            if ahead is None:
                return False
            self._fetched(ahead.sent_bytes)
        return True

    async def _learn(self, version: VersionRef, found: Format) -> None:
        outcome = "failed"
        try:
            self._remember(version.id, await self._parse(version, found.parse(version.size_bytes)))
            outcome = "learned"
        except Malformed as error:
            self._remember(version.id, None)
            outcome = "unknown"
            log.debug("%r is not read as %s: %s", version.key, found.label, error)
        except (TierCacheError, OSError) as error:
            log.debug("the header of %r did not come: %s", version.key, error)
        except Exception:
            self._remember(version.id, None)
            log.exception("the header of %r was read in an unforeseen way", version.key)
        finally:
            self._learning.discard(version.id)
            self._count.labels(format=found.label, outcome=outcome).inc()

    async def _parse(self, version: VersionRef, parser: Parser) -> Layout | None:
        """Feed a parser. A version of which no file holds the header is none of ours."""
        data: bytes | None = None
        while True:
            stepped = await trio.to_thread.run_sync(_step, parser, data)
            if not isinstance(stepped, range):
                return stepped
            location = await self._cache.ensure(version, stepped.start, len(stepped), ahead=True)
            if location is None:
                raise Malformed("it is not kept here")
            data = await trio.to_thread.run_sync(_pread, location, stepped)

    def _remember(self, version: VersionId, layout: Layout | None) -> None:
        self._known[version] = layout
        self._extents += _weight(layout)
        while self._extents > self._extents_max:
            _, oldest = self._known.popitem(last=False)
            self._extents -= _weight(oldest)


def _weight(layout: Layout | None) -> int:
    return 1 if layout is None else len(layout)


def _step(parser: Parser, data: bytes | None) -> range | Layout | None:
    """Run a parser up to the next range that it wants, or to its end. In a thread: a header may be long."""
    try:
        return next(parser) if data is None else parser.send(data)
    except StopIteration as end:
        layout: Layout | None = end.value
        return layout


def _pread(location: Location, wanted: range) -> bytes:
    fd = os.open(location.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_ino != location.inode:
            raise OSError("the file was evicted meanwhile")
        data = os.pread(fd, len(wanted), wanted.start)
        if len(data) != len(wanted):
            raise OSError("the file is cut")
        return data
    finally:
        os.close(fd)
