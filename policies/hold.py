"""Fill once and never evict: the best that a cache without foresight can do for random epochs."""

from __future__ import annotations

from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned


class Hold:
    """Each epoch reads every object once, in a new random order, so every resident object is worth the same.

    Keeping any set of them hits exactly c = capacity / data set; every eviction policy, Belady's included, stays
    below or equal. Room that ``remove`` frees is filled again.
    """

    name = "hold"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._sizes: dict[CacheKey, int] = {}

    def access(self, key: CacheKey) -> None:
        pass

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return self._used_bytes - self._sizes.get(key, 0) + size_bytes <= self._capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        self._used_bytes += size_bytes - self._sizes.get(key, 0)
        self._sizes[key] = size_bytes

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        return None

    def remove(self, key: CacheKey) -> None:
        self._used_bytes -= self._sizes.pop(key, 0)

    def __len__(self) -> int:
        return len(self._sizes)
