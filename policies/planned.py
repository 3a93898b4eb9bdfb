"""Farthest next use first, for who knows what will be read: a training plan.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966; with
the right to let a key pass that is used later than all that is here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.ranking import Ranking


class Planned:
    """Told the reads to come by ``plan`` and each of them as it happens by ``consumed``. Keys that are not planned any
    more go first, of these the least recently read: without a plan this is LRU.

    A planned read that never happens keeps its key here until the next plan.
    """

    name = "planned"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._sizes: dict[CacheKey, int] = {}
        self._nearness = Ranking()  # of resident keys: minus the place of the next read in the plan
        self._next: dict[CacheKey, int] = {}  # place of the next read of a key
        self._after = array("q")  # at the place of a read, that of the next read of the same key; -1 if none

    def plan(self, keys: Iterable[CacheKey]) -> None:
        """These reads will come, in this order; what was planned before counts no more. O(n log n)."""
        self._next = {}
        self._after = array("q")
        last: dict[CacheKey, int] = {}
        for place, key in enumerate(keys):
            self._after.append(-1)
            if key in last:
                self._after[last[key]] = place
            else:
                self._next[key] = place
            last[key] = place
        for key in self._sizes:
            self._rank(key)

    def consumed(self, key: CacheKey) -> None:
        """A planned read happened, hit or miss: before ``access`` or ``admits`` is called for it. A read that is not in
        the plan is ignored."""
        place = self._next.pop(key, -1)
        if place >= 0 and self._after[place] >= 0:
            self._next[key] = self._after[place]
        if key in self._sizes:
            self._rank(key)

    def access(self, key: CacheKey) -> None:
        if key in self._sizes:
            self._rank(key)

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        if self._used_bytes + size_bytes <= self._capacity_bytes:
            return True
        farthest = self._nearness.lowest(nothing_pinned)
        return (
            farthest is not None and size_bytes <= self._capacity_bytes and self._near(key) >= self._nearness[farthest]
        )

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        self._used_bytes += size_bytes - self._sizes.get(key, 0)
        is_new = key not in self._sizes
        self._sizes[key] = size_bytes
        if is_new:
            self._rank(key)

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        victim = self._nearness.lowest(pinned)
        if victim is not None:
            self.remove(victim)
        return victim

    def remove(self, key: CacheKey) -> None:
        self._nearness.remove(key)
        self._used_bytes -= self._sizes.pop(key, 0)

    def __len__(self) -> int:
        return len(self._sizes)

    def _rank(self, key: CacheKey) -> None:
        self._nearness.put(key, self._near(key))

    def _near(self, key: CacheKey) -> float:
        place = self._next.get(key)
        return -math.inf if place is None else -place
