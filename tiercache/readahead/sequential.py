"""Sequential read-ahead: a window per handle that doubles while reads go on in order, under one budget for all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tiercache.cache import Ahead, Cache, VersionRef
from tiercache.config import ReadaheadConfig
from tiercache.decisions import FORGETFUL, Decisions, Topic
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES
from tiercache.readahead.layout import Layout
from tiercache.readahead.layouts import Layouts
from tiercache.readahead.walk import Walk
from tiercache.readahead.window import Window


class ReadAhead:
    """The windows of all handles and the budget of outstanding bytes they share. Drops its work when origins are busy.

    When the budget is used up, the window that has been quiet for longest gives up its share: an idle handle cannot
    keep others from reading ahead (its bytes stay in the cache).
    """

    def __init__(
        self,
        cache: Cache,
        budget: ReadaheadConfig,
        metrics: Metrics,
        decisions: Decisions = FORGETFUL,
        layouts: Layouts | None = None,
    ) -> None:
        self._cache = cache
        self._layouts = layouts
        self._config = budget
        self._note = decisions.note
        self._held_bytes = 0
        self._windows: OrderedDict[Window, None] = OrderedDict()
        self._gauge = metrics.readahead_in_flight_bytes
        self._used = metrics.readahead_bytes.labels(outcome="used").inc
        self._wasted = metrics.readahead_bytes.labels(outcome="wasted").inc
        self._dropped = metrics.readahead_bytes.labels(outcome="dropped")
        self._count_pieces = {outcome: metrics.format_bytes.labels(outcome=outcome) for outcome in ("fetched", "used")}

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
            self._release(window.follow(version.id, None), self._wasted)
        if window.layout is None and self._layouts is not None:
            layout = self._layouts.of(version)
            if layout is not None:
                self._release(window.follow(version.id, layout))
        length = max(0, min(length, version.size_bytes - offset))
        if window.is_in_order(offset):
            self._use(window, window.advance(offset, length))
        else:
            self._release(window.restart(offset, length), self._wasted)
            if window.layout is not None:
                self._walk(window.walk, window.layout, version, offset, length)
            if not window.reaches_at_once:
                return
        wish = window.wish(version.size_bytes)
        if wish:
            self._send_for(window, version, wish, reading=_blocks_around(offset, length))

    def forget(self, window: Window) -> None:
        """The handle closed."""
        self._windows.pop(window, None)
        self._release(window.restart(0, 0), self._wasted)

    def _send_for(self, window: Window, version: VersionRef, wish: range, *, reading: range) -> None:
        self._windows[window] = None
        self._windows.move_to_end(window)
        room = self._make_room(window, len(wish)) // BLOCK_SIZE_BYTES * BLOCK_SIZE_BYTES
        granted = wish if room >= len(wish) else wish[:room]
        ahead = self._prefetch(window, version, granted, reading) if granted else None
        if ahead is None:
            self._dropped.inc(len(wish))
            return
        granted = range(granted.start, ahead.stop)
        window.grant(granted)
        if not ahead.sent_bytes:
            window.give_up()  # it was all here
            return
        self._hold(len(granted))
        self._note(version.id, Topic.AHEAD, why="window" if window.layout is None else "layout")

    def _prefetch(self, window: Window, version: VersionRef, wish: range, reading: range) -> Ahead | None:
        """``Cache.prefetch`` for positions of a window. What the reader itself fetches now is left to it."""
        if window.layout is None:
            return self._cache.prefetch(version, wish.start, len(wish))
        sent_bytes, position = 0, wish.start
        for part in window.layout.ranges(wish):
            start = max(part.start, min(reading.stop, part.stop)) if part.start in reading else part.start
            ahead = self._cache.prefetch(version, start, part.stop - start) if start < part.stop else None
            if start < part.stop and ahead is None:
                break
            stop = part.stop if ahead is None else min(ahead.stop, part.stop)
            sent_bytes += 0 if ahead is None else ahead.sent_bytes
            position += stop - part.start
            if stop < part.stop:
                break
        self._count_pieces["fetched"].inc(sent_bytes)
        return Ahead(sent_bytes, position) if position > wish.start else None

    def _walk(self, walk: Walk, layout: Layout, version: VersionRef, offset: int, length: int) -> None:
        for start in layout.starts(walk.step(layout.number(offset), layout.number(offset + max(0, length - 1)))):
            ahead = self._cache.prefetch(version, start, 1)
            if ahead is None:
                break
            self._count_pieces["fetched"].inc(ahead.sent_bytes)

    def _use(self, window: Window, used_bytes: int) -> None:
        self._release(used_bytes, self._used)
        if window.layout is not None:
            self._count_pieces["used"].inc(used_bytes)

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


def _blocks_around(offset: int, length: int) -> range:
    """The offsets of the blocks that a read touches."""
    start = offset // BLOCK_SIZE_BYTES * BLOCK_SIZE_BYTES
    return range(start, -(-(offset + length) // BLOCK_SIZE_BYTES) * BLOCK_SIZE_BYTES)
