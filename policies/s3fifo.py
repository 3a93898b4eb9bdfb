"""S3-FIFO: three plain queues that let one-time objects pass quickly.

Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023; details and figures as in libCacheSim.
"""

from __future__ import annotations

from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.queues import SizedQueue

_SMALL_SHARE = 0.1
_GHOST_SHARE = 0.9
_PROMOTE_AT = 2
"""Reads in the small queue that let an object into the main one."""
_FREQUENCY_LIMIT = 3


class S3Fifo:
    """New objects wait in a small queue (a tenth); those read twice there, or missed again soon, go to the main one.

    An object too large for the small queue goes to the main one at once. A pinned object at the head is in use: it
    goes to the main queue, or there to the end.
    """

    name = "s3fifo"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        small_bytes = int(capacity_bytes * _SMALL_SHARE)
        self._small = SizedQueue(small_bytes)
        self._main = SizedQueue(capacity_bytes - small_bytes)
        self._ghost = SizedQueue(int(capacity_bytes * _GHOST_SHARE))  # evicted from the small queue: names only
        self._reads: dict[CacheKey, int] = {}  # of the resident keys
        self._has_evicted = False  # until the first eviction the small queue overflows into the main one

    def access(self, key: CacheKey) -> None:
        if key in self._reads:
            self._reads[key] += 1

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return size_bytes <= self._capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        if key in self._reads:
            (self._small if key in self._small else self._main).push(key, size_bytes)
            return
        self._reads[key] = 0
        if key in self._ghost:
            self._ghost.remove(key)
            self._main.push(key, size_bytes)
        elif size_bytes >= self._small.capacity_bytes or self._is_first_fill():
            self._main.push(key, size_bytes)
        else:
            self._small.push(key, size_bytes)

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        self._has_evicted = True
        order = [self._evict_small, self._evict_main]
        if self._main.used_bytes > self._main.capacity_bytes or not self._small:
            order.reverse()
        # A third try: the main queue may have got from the small one what only it can give now.
        for evict in (*order, order[0]):
            victim = evict(pinned)
            if victim is not None:
                return victim
        return None

    def remove(self, key: CacheKey) -> None:
        if self._reads.pop(key, None) is not None:
            (self._small if key in self._small else self._main).remove(key)

    def __len__(self) -> int:
        return len(self._reads)

    def _is_first_fill(self) -> bool:
        return not self._has_evicted and self._small.used_bytes >= self._small.capacity_bytes

    def _evict_small(self, pinned: Callable[[CacheKey], bool]) -> CacheKey | None:
        for _ in range(len(self._small)):
            key = self._small.head()
            if self._reads[key] >= _PROMOTE_AT or pinned(key):
                self._main.push(key, self._small.remove(key))
            else:
                self._remember(key, self._small.remove(key))
                del self._reads[key]
                return key
        return None

    def _evict_main(self, pinned: Callable[[CacheKey], bool]) -> CacheKey | None:
        for _ in range(len(self._main) * (_FREQUENCY_LIMIT + 1)):
            key = self._main.head()
            if self._reads[key]:
                self._reads[key] = min(self._reads[key], _FREQUENCY_LIMIT) - 1
                self._main.renew(key)
            elif pinned(key):
                self._main.renew(key)
            else:
                self._main.remove(key)
                del self._reads[key]
                return key
        return None

    def _remember(self, key: CacheKey, size_bytes: int) -> None:
        ghost = self._ghost
        if size_bytes > ghost.capacity_bytes:
            return
        while ghost.used_bytes + size_bytes > ghost.capacity_bytes:
            ghost.remove(ghost.head())
        ghost.push(key, size_bytes)
