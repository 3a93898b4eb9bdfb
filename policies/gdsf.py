"""Greedy-dual-size with frequency: evict what is read least often for its bytes.

Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy", HP Labs,
HPL-98-69R1, 1998; with the same cost for every object: good for the number of hits, less good for their bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.ranking import Ranking


class Gdsf:
    """The figure of a key is its reads over its bytes, above the age at its last read. The age is the figure of the
    last victim: it rises, so that what was read often long ago goes in the end."""

    name = "gdsf"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._worth = Ranking()
        self._reads: dict[CacheKey, int] = {}
        self._sizes: dict[CacheKey, int] = {}
        self._age = 0.0

    def access(self, key: CacheKey) -> None:
        if key in self._reads:
            self._reads[key] += 1
            self._rank(key)

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return size_bytes <= self._capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        self._reads.setdefault(key, 1)
        self._sizes[key] = size_bytes
        self._rank(key)

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        victim = self._worth.lowest(pinned)
        if victim is not None:
            self._age = max(self._age, self._worth[victim])
            self.remove(victim)
        return victim

    def remove(self, key: CacheKey) -> None:
        self._worth.remove(key)
        self._reads.pop(key, None)
        self._sizes.pop(key, None)

    def __len__(self) -> int:
        return len(self._worth)

    def _rank(self, key: CacheKey) -> None:
        self._worth.put(key, self._age + self._reads[key] / max(1, self._sizes[key]))
