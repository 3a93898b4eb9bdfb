"""W-TinyLFU: a small window takes everything, and what leaves it must have been read more often than what it replaces.

Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions on Storage 2017.
"""

from __future__ import annotations

from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.queues import SizedQueue
from tiercache.policies.sketch import FrequencySketch

_WINDOW_SHARE = 0.01
_PROTECTED_SHARE = 0.8
"""Of what the window leaves."""


class WTinyLfu:
    """The window is an LRU queue of a hundredth; the rest is a segmented LRU: keys on probation, and those read there,
    which are protected. The window's oldest key is the candidate for the rest; it or the next victim there is evicted,
    whichever was read less.

    A candidate that needs the room of several victims must win against each; one that is pinned wins. ``reads`` is what
    counts the reads.
    """

    name = "wtinylfu"

    def __init__(self, capacity_bytes: int, reads: FrequencySketch | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._main_bytes = capacity_bytes - int(capacity_bytes * _WINDOW_SHARE)
        protected_bytes = int(self._main_bytes * _PROTECTED_SHARE)
        self._window = SizedQueue(capacity_bytes - self._main_bytes)
        self._probation = SizedQueue(self._main_bytes - protected_bytes)
        self._protected = SizedQueue(protected_bytes)
        self._reads = FrequencySketch() if reads is None else reads

    def access(self, key: CacheKey) -> None:
        if key in self._window:
            self._window.renew(key)
        elif key in self._protected:
            self._protected.renew(key)
        elif key in self._probation:
            self._protect(key)
        else:
            return
        self._reads.add(key, len(self))

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return size_bytes <= self._capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        for queue in (self._probation, self._protected):
            if key in queue:
                queue.push(key, size_bytes)
                return
        if key not in self._window:
            self._reads.add(key, len(self) + 1)
        self._window.push(key, size_bytes)

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        while self._window and self._promotes(self._window.head()):
            pass
        candidate = self._window.head() if self._window else None
        victim = self._probation.first(pinned, shelter=self._protected)
        if victim is None:
            victim = self._protected.first(pinned)
        self._demote()
        if victim is None:
            victim = self._window.first(pinned)
        elif (
            candidate is not None
            and not pinned(candidate)
            and self._reads.count(candidate) <= self._reads.count(victim)
        ):
            victim = candidate
        if victim is not None:
            self.remove(victim)
        if candidate is not None and candidate != victim:
            self._promotes(candidate)
        return victim

    def remove(self, key: CacheKey) -> None:
        for queue in (self._window, self._probation, self._protected):
            if key in queue:
                queue.remove(key)

    def __len__(self) -> int:
        return len(self._window) + len(self._probation) + len(self._protected)

    def _promotes(self, key: CacheKey) -> bool:
        """Move a key out of the window, if there is room: on probation, or among the protected while those fill."""
        size_bytes = self._window.sizes[key]
        if self._probation.used_bytes + self._protected.used_bytes + size_bytes > self._main_bytes:
            return False
        self._window.remove(key)
        fills = self._protected.takes(size_bytes) and not self._probation.takes(size_bytes)
        (self._protected if fills else self._probation).push(key, size_bytes)
        return True

    def _protect(self, key: CacheKey) -> None:
        self._protected.push(key, self._probation.remove(key))
        self._demote()

    def _demote(self) -> None:
        while self._protected.overflows:
            oldest = self._protected.head()
            self._probation.push(oldest, self._protected.remove(oldest))
