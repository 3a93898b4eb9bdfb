"""SIEVE: a queue in order of arrival, and a hand that takes what was not read since it last came by.

Zhang et al., "SIEVE is simpler than LRU: an efficient turn-key eviction algorithm for web caches", NSDI 2024.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned


class Sieve:
    """The hand goes from the oldest key to the newest and begins again. Read keys stay where they are, and new ones
    come in at the new end, so the hand meets them soon: that is what sifts.

    The queue is kept in two parts, what the hand has passed in this round and what lies before it: no key ever moves
    within them, and the hand is the seam.
    """

    name = "sieve"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._passed: OrderedDict[CacheKey, bool] = OrderedDict()  # the oldest first, with whether it was read lately
        self._before: OrderedDict[CacheKey, bool] = OrderedDict()

    def access(self, key: CacheKey) -> None:
        if key in self._before:
            self._before[key] = True
        elif key in self._passed:
            self._passed[key] = True

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return size_bytes <= self._capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        if key not in self._passed:
            self._before.setdefault(key, False)

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        # The rest of this round, and a whole one in which nothing counts as read any more.
        for _ in range(2 * len(self)):
            key = next(iter(self._before))
            was_read = self._before.pop(key)
            if not was_read and not pinned(key):
                self._end_round()
                return key
            self._passed[key] = False
            self._end_round()
        return None

    def remove(self, key: CacheKey) -> None:
        self._passed.pop(key, None)
        self._before.pop(key, None)
        self._end_round()

    def __len__(self) -> int:
        return len(self._passed) + len(self._before)

    def _end_round(self) -> None:
        """At the new end the hand goes back to the oldest key at once: what comes in now is for the next round."""
        if not self._before:
            self._passed, self._before = self._before, self._passed
