"""A queue of keys that knows its bytes: what the policies of queues are made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tiercache.policies.base import CacheKey


class SizedQueue:
    """Keys in order of arrival with their sizes, and the sum of those. Its capacity is only noted, not enforced."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.sizes: OrderedDict[CacheKey, int] = OrderedDict()

    def __contains__(self, key: CacheKey) -> bool:
        return key in self.sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def overflows(self) -> bool:
        return self.used_bytes > self.capacity_bytes

    def takes(self, size_bytes: int) -> bool:
        """Whether so much more fits."""
        return self.used_bytes + size_bytes <= self.capacity_bytes

    def push(self, key: CacheKey, size_bytes: int) -> None:
        """Put a key at the end. One that is here keeps its place and gets the size."""
        self.used_bytes += size_bytes - self.sizes.get(key, 0)
        self.sizes[key] = size_bytes

    def remove(self, key: CacheKey) -> int:
        """Take a key out; its size."""
        size_bytes = self.sizes.pop(key)
        self.used_bytes -= size_bytes
        return size_bytes

    def head(self) -> CacheKey:
        return next(iter(self.sizes))

    def first(self, pinned: Callable[[CacheKey], bool], shelter: SizedQueue | None = None) -> CacheKey | None:
        """The first key that is not pinned. Those before it are in use: they go to the end, of ``shelter`` if given, so
        that nobody asks about them again soon."""
        for _ in range(len(self.sizes)):
            key = self.head()
            if not pinned(key):
                return key
            size_bytes = self.remove(key)
            (self if shelter is None else shelter).push(key, size_bytes)
        return None

    def renew(self, key: CacheKey) -> None:
        """Put a key that is here to the end."""
        self.sizes.move_to_end(key)
