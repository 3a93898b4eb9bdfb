"""Least recently used: evict what was not read for the longest time."""

from __future__ import annotations

from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.queues import SizedQueue


class Lru:
    """The baseline. A sequential pass over more than the capacity gets nothing from it."""

    name = "lru"

    def __init__(self, capacity_bytes: int) -> None:
        self._queue = SizedQueue(capacity_bytes)  # the next victim first

    def access(self, key: CacheKey) -> None:
        if key in self._queue:
            self._queue.renew(key)

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return size_bytes <= self._queue.capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        self._queue.push(key, size_bytes)

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        victim = self._queue.first(pinned)
        if victim is not None:
            self._queue.remove(victim)
        return victim

    def remove(self, key: CacheKey) -> None:
        if key in self._queue:
            self._queue.remove(key)

    def __len__(self) -> int:
        return len(self._queue)
