"""A window: what one handle reads, and how far ahead of it to be. Pure arithmetic."""

from __future__ import annotations

from typing import Final

from tiercache.model import BLOCK_SIZE_BYTES, VersionId
from tiercache.readahead.layout import Layout
from tiercache.readahead.walk import Walk

EVIDENCE_BYTES: Final = 256 * 1024
"""So much must have been read in order before anything is read ahead: a look at a file's header costs nothing more."""


EVIDENCE_EXTENTS: Final = 2
"""Whoever has read so many extents in order reads the others as well."""


class Window:
    """Doubles while reads go on in order.

    A read that starts where the last one ended, give or take ``min_bytes`` (the kernel reorders its own read-ahead),
    is in order; any other one closes the window. Outstanding is what was sent for and the reader has not come to.

    All is counted in positions. They are offsets, unless the file has a layout. A reader that comes to one of its
    extents needs no evidence, and gets no more than this extent until it has read two in a row.
    """

    __slots__ = (
        "_ahead",
        "_consumed",
        "_first_bytes",
        "_in_order_bytes",
        "_limit",
        "_max_bytes",
        "_min_bytes",
        "_next",
        "_sent_bytes",
        "_size_bytes",
        "_whole",
        "layout",
        "version",
        "walk",
    )

    def __init__(self, min_bytes: int, max_bytes: int) -> None:
        self._min_bytes = min_bytes
        self._max_bytes = max(min_bytes, max_bytes)
        self._size_bytes = min_bytes
        self._in_order_bytes = 0
        self._next = 0
        self._consumed = 0
        self._ahead = 0
        """Outstanding are the bytes from ``_consumed`` to ``_ahead``."""
        self._sent_bytes = 0
        """Since the window was closed last."""
        self.version = VersionId(b"")
        self.layout: Layout | None = None
        self._first_bytes = min_bytes
        """The size at a reader's first step. With a layout it halves when most was sent in vain, and doubles when all
        was read."""
        self._limit: int | None = None
        """The end of the extent that is read, where the window ends too; None for a reader that goes on after it."""
        self._whole = 0
        """Extents that were read in order to their ends."""
        self.walk = Walk()

    @property
    def outstanding_bytes(self) -> int:
        return self._ahead - self._consumed

    def is_in_order(self, offset: int) -> bool:
        """Whether a read at ``offset`` goes on where the last one ended."""
        return abs(self._position(offset) - self._next) <= self._min_bytes

    def follow(self, version: VersionId, layout: Layout | None) -> int:
        """From now on this is what is read, and that its layout; returns how many bytes were outstanding."""
        wasted = self.outstanding_bytes
        self._consumed = self._ahead = self._sent_bytes = 0
        offset = self._next if version == self.version and self.layout is None else 0
        self.version, self.layout = version, layout
        self._first_bytes = self._min_bytes if layout is None else min(layout.first_bytes, self._max_bytes)
        self._size_bytes = max(self._first_bytes, self._min_bytes)
        self._next = self._position(offset)
        self._in_order_bytes = self._whole = 0
        self._limit = self._extent_end(offset - 1)
        return wasted

    def advance(self, offset: int, length: int) -> int:
        """A read in order happened; returns how many outstanding bytes it used."""
        end = self._position(offset) + length
        if self._limit is not None and end > self._limit:
            self._whole += 1
            goes_on = self._whole >= EVIDENCE_EXTENTS and self._in_order_bytes >= self._min_bytes
            self._limit = None if goes_on else self._extent_end(offset + length - 1)
        self._in_order_bytes += length
        self._next = max(self._next, end)
        used = max(0, min(end, self._ahead) - self._consumed)
        self._consumed += used
        return used

    def restart(self, offset: int, length: int) -> int:
        """A read out of order happened, so nothing is outstanding any more; returns how many bytes were."""
        wasted = self.outstanding_bytes
        if self.layout is not None and self._sent_bytes:
            self._first_bytes = self._learned(wasted)
        self._consumed = self._ahead = self._sent_bytes = 0
        self._size_bytes = self._first_bytes
        self._in_order_bytes = length
        self._whole = -1  # a page fault has the kernel read from before its place: the first is not read from its start
        self._next = self._position(offset) + length
        self._limit = self._extent_end(offset + length - 1)
        return wasted

    def _learned(self, wasted: int) -> int:
        if not wasted:
            return min(2 * self._first_bytes, self._max_bytes)
        halve = 2 * wasted > self._sent_bytes
        return max(self._first_bytes // 2, self._min_bytes) if halve else self._first_bytes

    def wish(self, object_bytes: int) -> range:
        """The positions to send for now: none while enough is ahead, or too little was read in order."""
        if self._in_order_bytes < self._evidence_bytes or self._ahead - self._next >= self._size_bytes // 4:
            return range(0)
        end = object_bytes if self._limit is None else self._limit
        if self.layout is not None:
            start = max(self._ahead, self._next)
            return range(start, max(start, min(end, self._next + self._size_bytes)))
        start = max(self._ahead, _block_end(self._next))  # the reader itself fetches the block it is in
        return range(start, max(start, min(end, _block_end(self._next + self._size_bytes))))

    def grant(self, granted: range) -> None:
        """A wish, or its beginning, was sent for: the next one is twice as large."""
        if not self.outstanding_bytes:
            self._consumed = granted.start
        self._ahead = granted.stop
        self._sent_bytes += len(granted)
        self._size_bytes = min(2 * self._size_bytes, self._max_bytes)

    def give_up(self) -> int:
        """Others need the budget: what is outstanding is no longer accounted here; returns how much it was."""
        left = self.outstanding_bytes
        self._consumed = self._ahead
        return left

    @property
    def reaches_at_once(self) -> bool:
        """Whether a single read at a new place is enough: extents are known, and what was sent for was not in vain."""
        return self._first_bytes > self._min_bytes

    @property
    def _evidence_bytes(self) -> int:
        return 0 if self.reaches_at_once else EVIDENCE_BYTES

    def _position(self, offset: int) -> int:
        return offset if self.layout is None else self.layout.position(offset)

    def _extent_end(self, offset: int) -> int | None:
        return None if self.layout is None else self.layout.end_of(self.layout.position(max(0, offset)))


def _block_end(offset: int) -> int:
    """The end of the block that ``offset`` lies in, or ``offset`` where one ends."""
    return -(-offset // BLOCK_SIZE_BYTES) * BLOCK_SIZE_BYTES
