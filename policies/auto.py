"""Whatever policy does best on what is read: epochs are held, and of skewed popularity the most popular kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiercache.policies.base import CacheKey, Policy, nothing_pinned
from tiercache.policies.miniature import Miniatures, apart
from tiercache.policies.patient import PatientHold
from tiercache.policies.s3fifo import S3Fifo
from tiercache.policies.wtinylfu import WTinyLfu

CANDIDATES: Final[dict[str, Callable[[int], Policy]]] = {
    PatientHold.name: PatientHold,
    S3Fifo.name: S3Fifo,
    WTinyLfu.name: WTinyLfu,
}
"""The first one begins."""
MARGIN: Final = 0.03
"""Another policy takes over when it misses less by this share."""
PREFERENCE: Final = 0.03
"""The first candidate, which writes nothing once it is full, counts as if it missed less by this share."""
MOVED_AT_ONCE: Final = 32
"""Residents that go over to a new policy with each call."""


class Auto:
    """Begins with ``PatientHold``. Miniatures of all candidates read a sample of the keys; one that misses less by
    MARGIN takes over, and the residents with it: a few at a time, so that no call is long. Those that wait are evicted
    first.
    """

    name = "auto"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._miniatures = Miniatures(CANDIDATES, capacity_bytes)
        self.choice = next(iter(CANDIDATES))
        """The name of the policy that decides at present."""
        self._policy = CANDIDATES[self.choice](capacity_bytes)
        self._sizes: dict[CacheKey, int] = {}  # of what the policy knows
        self._waiting: dict[CacheKey, int] = {}  # of the other residents
        self._now = 0
        self._last_key: CacheKey | None = None

    def access(self, key: CacheKey) -> None:
        if key in self._waiting:
            self._take_over(key)
        size_bytes = self._sizes.get(key)
        if size_bytes is None:
            return
        self._policy.access(key)
        self._learn(key, size_bytes)

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        self._learn(key, size_bytes)
        return self._policy.admits(key, size_bytes)

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        self._waiting.pop(key, None)
        self._sizes[key] = size_bytes
        self._policy.insert(key, size_bytes)
        self._take_over_some()

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        while self._waiting:
            key = next(iter(self._waiting))
            if not pinned(key):
                del self._waiting[key]
                return key
            self._take_over(key)
        victim = self._policy.evict(pinned)
        if victim is not None:
            del self._sizes[victim]
        return victim

    def remove(self, key: CacheKey) -> None:
        self._waiting.pop(key, None)
        if self._sizes.pop(key, None) is not None:
            self._policy.remove(key)

    def __len__(self) -> int:
        return len(self._sizes) + len(self._waiting)

    def _learn(self, key: CacheKey, size_bytes: int) -> None:
        self._take_over_some()
        if key != self._last_key:
            self._last_key = key
            self._now += 1
        small = self._miniatures
        if small.samples(key) and small.read(key, size_bytes, self._now, apart(len(self))):
            self._choose(small.miss_ratios())

    def _choose(self, misses: dict[str, float]) -> None:
        if self._waiting:
            return
        costs = {**misses, PatientHold.name: misses[PatientHold.name] * (1 - PREFERENCE)}
        best = min(costs, key=costs.__getitem__)
        if costs[best] < costs[self.choice] * (1 - MARGIN):
            self.choice = best
            self._policy = CANDIDATES[best](self._capacity_bytes)
            self._waiting, self._sizes = self._sizes, self._waiting

    def _take_over_some(self) -> None:
        for _ in range(min(MOVED_AT_ONCE, len(self._waiting))):
            self._take_over(next(iter(self._waiting)))

    def _take_over(self, key: CacheKey) -> None:
        size_bytes = self._sizes[key] = self._waiting.pop(key)
        self._policy.insert(key, size_bytes)
