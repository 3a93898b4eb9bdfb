"""Sequential read-ahead: a window per handle that doubles while reads go on in order, under one budget for all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tiercache.cache import Cache, VersionRef
from tiercache.config import ReadaheadConfig
from tiercache.decisions import FORGETFUL, Decisions, Topic
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES, VersionId

EVIDENCE_BYTES = 256 * 1024
"""So much must have been read in order before anything is read ahead: a look at a file's header costs nothing more."""


class Window:
    """What one handle reads, and how far ahead of it to be: pure arithmetic on offsets.

    A read that starts where the last one ended, give or take ``min_bytes`` (the kernel reorders its own read-ahead),
    is in order; any other one closes the window. Outstanding is what was sent for and the reader has not come to.
    """

    __slots__ = (
        "_ahead",
        "_consumed",
        "_in_order_bytes",
        "_max_bytes",
        "_min_bytes",
        "_next",
        "_size_bytes",
        "version",
    )

    def __init__(self, min_bytes: int, max_bytes: int) -> None:
        self._min_bytes = min_bytes
        self._max_bytes = max(min_bytes, max_bytes)
        self._size_bytes = min_bytes
        self._in_order_bytes = 0
        self._next = 0
        self._consumed = 0
        self._ahead = 0
        """Outstanding are the bytes from ``_consumed`` to ``_ahead``, which is the end of a block or of the object."""
        self.version = VersionId(b"")

    @property
    def outstanding_bytes(self) -> int:
        return self._ahead - self._consumed

    def is_in_order(self, offset: int) -> bool:
        """Whether a read at ``offset`` goes on where the last one ended."""
        return abs(offset - self._next) <= self._min_bytes

    def advance(self, offset: int, length: int) -> int:
        """A read in order happened; returns how many outstanding bytes it used."""
        end = offset + length
        self._in_order_bytes += length
        self._next = max(self._next, end)
        used = max(0, min(end, self._ahead) - self._consumed)
        self._consumed += used
        return used

    def restart(self, offset: int, length: int) -> int:
        """A read out of order happened, so nothing is outstanding any more; returns how many bytes were."""
        wasted = self.outstanding_bytes
        self._consumed = self._ahead = 0
        self._size_bytes = self._min_bytes
        self._in_order_bytes = length
        self._next = offset + length
        return wasted

    def wish(self, object_bytes: int) -> range:
        """The bytes to send for now: none while enough is ahead, or too little was read in order."""
        if self._in_order_bytes < EVIDENCE_BYTES or self._ahead - self._next >= self._size_bytes // 4:
            return range(0)
        start = max(self._ahead, _block_end(self._next))  # the reader itself fetches the block it is in
        return range(start, max(start, min(object_bytes, _block_end(self._next + self._size_bytes))))

    def grant(self, granted: range) -> None:
        """A wish, or its beginning, was sent for: the next one is twice as large."""
        if not self.outstanding_bytes:
            self._consumed = granted.start
        self._ahead = granted.stop
        self._size_bytes = min(2 * self._size_bytes, self._max_bytes)

    def give_up(self) -> int:
        """Others need the budget: what is outstanding is no longer accounted here; returns how much it was."""
        left = self.outstanding_bytes
        self._consumed = self._ahead
        return left


class ReadAhead:
    """The windows of all handles and the budget of outstanding bytes they share. Drops its work when origins are busy.

    When the budget is used up, the window that has been quiet for longest gives up its share: an idle handle cannot
    keep others from reading ahead (its bytes stay in the cache).
    """

    def __init__(
        self, cache: Cache, budget: ReadaheadConfig, metrics: Metrics, decisions: Decisions = FORGETFUL
    ) -> None:
        self._cache = cache
        self._config = budget
        self._note = decisions.note
        self._held_bytes = 0
        self._windows: OrderedDict[Window, None] = OrderedDict()
        self._gauge = metrics.readahead_in_flight_bytes
        self._used = metrics.readahead_bytes.labels(outcome="used").inc
        self._wasted = metrics.readahead_bytes.labels(outcome="wasted").inc
        self._dropped = metrics.readahead_bytes.labels(outcome="dropped")

    @property
    def held_bytes(self) -> int:
        """Bytes sent for and not yet read, over all handles; never above the budget."""
        return self._held_bytes

    def window(self) -> Window:
        """A window for a new handle; ``forget`` it when the handle closes."""
        return Window(self._config.window_min_bytes, self._config.window_max_bytes)

    def observe(self, window: Window, version: VersionRef, offset: int, length: int) -> None:
        """A handle reads: send for what it will read next. Never waits, never raises for an origin's sake."""
        if window.version != version.id:
            self._release(window.restart(0, 0), self._wasted)
            window.version = version.id
        length = max(0, min(length, version.size_bytes - offset))
        if not window.is_in_order(offset):
            self._release(window.restart(offset, length), self._wasted)
            return
        self._release(window.advance(offset, length), self._used)
        wish = window.wish(version.size_bytes)
        if wish:
            self._send_for(window, version, wish)

    def forget(self, window: Window) -> None:
        """The handle closed."""
        self._windows.pop(window, None)
        self._release(window.restart(0, 0), self._wasted)

    def _send_for(self, window: Window, version: VersionRef, wish: range) -> None:
        self._windows[window] = None
        self._windows.move_to_end(window)
        room = self._make_room(window, len(wish)) // BLOCK_SIZE_BYTES * BLOCK_SIZE_BYTES
        granted = wish if room >= len(wish) else wish[:room]
        ahead = self._cache.prefetch(version, granted.start, len(granted)) if granted else None
        if ahead is None:
            self._dropped.inc(len(wish))
            return
        granted = range(granted.start, ahead.stop)
        window.grant(granted)
        if not ahead.sent_bytes:
            window.give_up()  # it was all here
            return
        self._hold(len(granted))
        self._note(version.id, Topic.AHEAD, why="window")

    def _make_room(self, window: Window, wanted_bytes: int) -> int:
        for quiet in list(self._windows):
            if self._held_bytes + wanted_bytes <= self._config.budget_bytes:
                break
            if quiet is not window:
                del self._windows[quiet]
                self._release(quiet.give_up())
        return max(0, self._config.budget_bytes - self._held_bytes)

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._gauge.set(self._held_bytes)

    def _release(self, size_bytes: int, count: Callable[[float], None] | None = None) -> None:
        if size_bytes:
            self._held_bytes -= size_bytes
            self._gauge.set(self._held_bytes)
            if count is not None:
                count(size_bytes)


def _block_end(offset: int) -> int:
    """The end of the block that ``offset`` lies in, or ``offset`` where one ends."""
    return -(-offset // BLOCK_SIZE_BYTES) * BLOCK_SIZE_BYTES
