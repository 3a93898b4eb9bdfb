"""Least recently used: evict what was not read for the longest time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned


class Lru:
    """The baseline. A sequential pass over more than the capacity gets nothing from it."""

    name = "lru"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._sizes: OrderedDict[CacheKey, int] = OrderedDict()  # the next victim first

    def access(self, key: CacheKey) -> None:
        if key in self._sizes:
            self._sizes.move_to_end(key)

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return size_bytes <= self._capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        self._sizes[key] = size_bytes

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        victim = next((key for key in self._sizes if not pinned(key)), None)
        if victim is not None:
            del self._sizes[victim]
        return victim

    def remove(self, key: CacheKey) -> None:
        self._sizes.pop(key, None)

    def __len__(self) -> int:
        return len(self._sizes)
