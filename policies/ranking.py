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
        if len(self._heap) > 2 * len(self._ranks) + _SPARE_ENTRIES:
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapify(self._heap)

    def remove(self, key: CacheKey) -> None:
        """Unknown keys are ignored."""
        self._ranks.pop(key, None)

    def lowest(self, pinned: Callable[[CacheKey], bool]) -> CacheKey | None:
        """The key with the lowest figure that is not pinned."""
        passed = []
        found = None
        while self._heap and found is None:
            rank, key = self._heap[0]
            if self._ranks.get(key) != rank:
                heappop(self._heap)
            elif pinned(key):
                passed.append(heappop(self._heap))
            else:
                found = key
        for entry in passed:
            heappush(self._heap, entry)
        return found
