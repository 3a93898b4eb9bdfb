"""Least recently used: evict what was not read for the longest time."""

from __future__ import annotations

from tiercache.policies.base import CacheKey
from tiercache.policies.fifo import Fifo


class Lru(Fifo):
    """The baseline: a read counts as an arrival. A sequential pass over more than the capacity gets nothing from it."""

    name = "lru"

    def access(self, key: CacheKey) -> None:
        if key in self._queue:
            self._queue.renew(key)
