"""What each of several policies would miss, told by small copies of the cache that see a sample of the keys.

Waldspurger et al., "Cache modeling and optimization using miniature simulations", USENIX ATC 2017; the sampling by a
hash of the key is that of Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final
from zlib import crc32

from tiercache.policies.base import CacheKey, Policy

SAMPLED_MAX: Final = 512
"""Resident keys of each miniature. When one has more, half of the sample is given up."""
WINDOW: Final = 1024
"""After so many sampled reads the older ones count half."""
_HASHES: Final = 2**32
_APART_SHARE: Final = 8
_APART_MIN: Final = 64
_APART_MAX: Final = 4096


def apart(resident: int) -> int:
    """Reads of a key that are not farther from one another than so many others, of a cache with so many keys, are one
    reading: by the parts of a file, or by a plan that brings it and then by its reader."""
    return min(max(_APART_MIN, resident // _APART_SHARE), _APART_MAX)


class Miniatures:
    """Every policy at the same share of the capacity as there are keys in the sample. Each call is O(1), as theirs."""

    def __init__(self, makers: Mapping[str, Callable[[int], Policy]], capacity_bytes: int) -> None:
        self._makers = makers
        self._capacity_bytes = capacity_bytes
        self._halvings = 0
        self._caches = {name: _Miniature(make(capacity_bytes), capacity_bytes) for name, make in makers.items()}
        self._misses = dict.fromkeys(makers, 0.0)
        self._reads = 0.0
        self._window = 0
        self._read_at: OrderedDict[CacheKey, int] = OrderedDict()

    def samples(self, key: CacheKey) -> bool:
        return crc32(key) < _HASHES >> self._halvings

    def read(self, key: CacheKey, size_bytes: int, now: int, distance: int) -> bool:
        """A key of the sample was read. True at the end of a window, when the misses can be compared.

        What is read again within ``distance`` is the same reading.
        """
        read_at = self._read_at.pop(key, None)
        self._read_at[key] = now
        while now - next(iter(self._read_at.values())) > distance:
            self._read_at.popitem(last=False)
        if read_at is not None and now - read_at <= distance:
            return False
        for name, cache in self._caches.items():
            self._misses[name] += not cache.read(key, size_bytes)
        self._reads += 1
        self._window += 1
        if any(len(cache.sizes) > SAMPLED_MAX for cache in self._caches.values()):
            self._halve()
        return self._window >= WINDOW

    def miss_ratios(self) -> dict[str, float]:
        """Of late, by name; ends the window."""
        ratios = {name: misses / self._reads for name, misses in self._misses.items()}
        self._misses = {name: misses / 2 for name, misses in self._misses.items()}
        self._reads /= 2
        self._window = 0
        return ratios

    def _halve(self) -> None:
        self._halvings += 1
        capacity_bytes = self._capacity_bytes >> self._halvings
        for name, make in self._makers.items():
            old, new = self._caches[name], _Miniature(make(capacity_bytes), capacity_bytes)
            for key, size_bytes in old.sizes.items():
                if self.samples(key):
                    new.read(key, size_bytes)
            self._caches[name] = new


class _Miniature:
    """One policy, driven as a tier drives it."""

    def __init__(self, policy: Policy, capacity_bytes: int) -> None:
        self._policy = policy
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self.sizes: dict[CacheKey, int] = {}

    def read(self, key: CacheKey, size_bytes: int) -> bool:
        """Whether it is a hit; else it comes in if the policy lets it."""
        if key in self.sizes:
            self._policy.access(key)
            return True
        if self._policy.admits(key, size_bytes) and self._makes_room(size_bytes):
            self._policy.insert(key, size_bytes)
            self.sizes[key] = size_bytes
            self._used_bytes += size_bytes
        return False

    def _makes_room(self, size_bytes: int) -> bool:
        while self._used_bytes + size_bytes > self._capacity_bytes:
            victim = self._policy.evict()
            if victim is None:
                return False
            self._used_bytes -= self.sizes.pop(victim)
        return True
