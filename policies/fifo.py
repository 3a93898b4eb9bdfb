"""First in, first out: evict what has been here for the longest time, read or not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tiercache.policies.base import CacheKey, nothing_pinned


class Fifo:
    """The cheapest: a hit costs nothing at all. Belady, "A study of replacement algorithms", IBM Systems Journal 1966,
    has it beside its optimum."""

    name = "fifo"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._sizes: OrderedDict[CacheKey, int] = OrderedDict()  # in order of arrival

    def access(self, key: CacheKey) -> None:
        pass

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
