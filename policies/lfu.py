"""Least frequently used: evict what was read least often since it came in.

Aho, Denning and Ullman, "Principles of optimal page replacement", Journal of the ACM 1971, prove it right where the
reads are independent and their chances known. A count begins anew when a key comes back (in-cache LFU).
"""

from __future__ import annotations

from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.ranking import Ranking


class Lfu:
    """Of keys with as many reads the one goes that has had them for the longest time. What was read often long ago
    stays, so it follows a changing working set badly."""

    name = "lfu"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._reads = Ranking()

    def access(self, key: CacheKey) -> None:
        if key in self._reads:
            self._reads.put(key, self._reads[key] + 1)

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return size_bytes <= self._capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        if key not in self._reads:
            self._reads.put(key, 1)

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        victim = self._reads.lowest(pinned)
        if victim is not None:
            self._reads.remove(victim)
        return victim

    def remove(self, key: CacheKey) -> None:
        self._reads.remove(key)

    def __len__(self) -> int:
        return len(self._reads)
