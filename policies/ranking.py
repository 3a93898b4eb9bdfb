"""Keys by a figure, the lowest first: what the policies of figures are made of."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from tiercache.policies.base import CacheKey

_SPARE_ENTRIES = 64
"""The heap is made anew when it has more stale entries than keys, and these."""

_Rank = tuple[float, int]
"""The figure, then when it was given: of equal ones the oldest comes first."""


class Ranking:
    """A heap of which the entries of keys that got another figure go late: each call is O(log n), amortised."""

    def __init__(self) -> None:
        self._ranks: dict[CacheKey, _Rank] = {}
        self._heap: list[tuple[_Rank, CacheKey]] = []
        self._aside: list[tuple[_Rank, CacheKey]] = []  # were pinned when they were the lowest
        self._asked = 0  # since they were looked at
        self._given = 0

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._ranks

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, key: CacheKey) -> float:
        """The figure of a key that is here."""
        return self._ranks[key][0]

    def put(self, key: CacheKey, figure: float) -> None:
        """Give a key its figure, or another one than it had."""
        self._given += 1
        rank = self._ranks[key] = (figure, self._given)
        heappush(self._heap, (rank, key))
        if len(self._heap) + len(self._aside) > 2 * len(self._ranks) + _SPARE_ENTRIES:
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapify(self._heap)
            self._aside = []

    def remove(self, key: CacheKey) -> None:
        """Unknown keys are ignored."""
        self._ranks.pop(key, None)

    def lowest(self, pinned: Callable[[CacheKey], bool]) -> CacheKey | None:
        """The key with the lowest figure that is not pinned. Pinned ones below it are put aside and looked at again
        when there is no other key, or after as many calls as they are: many of them cost no more than one."""
        self._asked += 1
        if self._asked > len(self._aside):
            self._take_back()
        found = self._lowest_of_heap(pinned)
        if found is None and self._aside:
            self._take_back()
            found = self._lowest_of_heap(pinned)
        return found

    def _lowest_of_heap(self, pinned: Callable[[CacheKey], bool]) -> CacheKey | None:
        while self._heap:
            rank, key = self._heap[0]
            if self._ranks.get(key) == rank:
                if not pinned(key):
                    return key
                self._aside.append((rank, key))
            heappop(self._heap)
        return None

    def _take_back(self) -> None:
        for entry in self._aside:
            heappush(self._heap, entry)
        self._aside, self._asked = [], 0
