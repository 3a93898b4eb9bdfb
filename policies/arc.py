"""ARC: two LRU queues, of keys read once and of those read again, and what was evicted tells which is too short.

Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003; in bytes instead of pages.
"""

from __future__ import annotations

from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.queues import SizedQueue


class Arc:
    """A miss on a key that was evicted from one of the queues moves the border in favour of that one, by the bytes of
    the key, and by more where the other one has more ghosts. The ghosts have at most the capacity once more. What is
    pinned when its turn comes counts as read again."""

    name = "arc"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._once, self._often = SizedQueue(capacity_bytes), SizedQueue(capacity_bytes)
        self._once_ghosts, self._often_ghosts = SizedQueue(capacity_bytes), SizedQueue(capacity_bytes)
        self._once_target_bytes = 0.0

    def access(self, key: CacheKey) -> None:
        if key in self._once:
            self._often.push(key, self._once.remove(key))
        elif key in self._often:
            self._often.renew(key)

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return size_bytes <= self._capacity_bytes

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        if key in self._once_ghosts:
            step = max(1.0, self._often_ghosts.used_bytes / max(1, self._once_ghosts.used_bytes))
            self._once_target_bytes = min(self._capacity_bytes, self._once_target_bytes + size_bytes * step)
            self._once_ghosts.remove(key)
            self._often.push(key, size_bytes)
        elif key in self._often_ghosts:
            step = max(1.0, self._once_ghosts.used_bytes / max(1, self._often_ghosts.used_bytes))
            self._once_target_bytes = max(0.0, self._once_target_bytes - size_bytes * step)
            self._often_ghosts.remove(key)
            self._often.push(key, size_bytes)
        else:
            (self._often if key in self._often else self._once).push(key, size_bytes)
        self._forget()

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        if self._once.used_bytes <= self._once_target_bytes:
            victim = self._often.first(pinned)
            if victim is not None:
                self._often_ghosts.push(victim, self._often.remove(victim))
                return victim
            self._once_target_bytes = 0.0  # there is nothing that could make room for them
        victim = self._once.first(pinned, shelter=self._often)
        if victim is not None:
            self._once_ghosts.push(victim, self._once.remove(victim))
            return victim
        victim = self._often.first(pinned)
        if victim is not None:
            self._often_ghosts.push(victim, self._often.remove(victim))
        return victim

    def remove(self, key: CacheKey) -> None:
        for queue in (self._once, self._often):
            if key in queue:
                queue.remove(key)

    def __len__(self) -> int:
        return len(self._once) + len(self._often)

    def _forget(self) -> None:
        """Keys read once, ghosts included, have the capacity at most; all together have it twice."""
        once, once_ghosts, often, often_ghosts = self._once, self._once_ghosts, self._often, self._often_ghosts
        while once_ghosts and once.used_bytes + once_ghosts.used_bytes > self._capacity_bytes:
            once_ghosts.remove(once_ghosts.head())
        known_bytes = once.used_bytes + once_ghosts.used_bytes + often.used_bytes
        while often_ghosts and known_bytes + often_ghosts.used_bytes > 2 * self._capacity_bytes:
            often_ghosts.remove(often_ghosts.head())
