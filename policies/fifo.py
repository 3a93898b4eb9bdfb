"""First in, first out: evict what has been here for the longest time, read or not."""

from __future__ import annotations

from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.queues import SizedQueue


class Fifo:
    """The cheapest: a hit costs nothing at all. Belady, "A study of replacement algorithms", IBM Systems Journal 1966,
    has it beside its optimum."""

    name = "fifo"

    def __init__(self, capacity_bytes: int) -> None:
        self._queue = SizedQueue(capacity_bytes)  # the next victim first

    def access(self, key: CacheKey) -> None:
        pass

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
