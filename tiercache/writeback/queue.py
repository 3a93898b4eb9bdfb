"""The order of uploads: small files before large ones, and none ever starved. Pure: the clock is an argument."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Collection

LARGE_BYTES = 16 * 1024 * 1024
"""From this size on a file counts as large: it takes seconds of a slot; one small file more delays it little."""

HUGE_BYTES = 4 * 1024 * 1024 * 1024
"""From this size on a file takes minutes to hours: a large one does not wait for that."""


class Bulk(enum.IntEnum):
    """How long a file occupies its slot."""

    SMALL = 0
    LARGE = 1
    HUGE = 2

    @classmethod
    def of(cls, size_bytes: int) -> Bulk:
        if size_bytes < LARGE_BYTES:
            return cls.SMALL
        return cls.LARGE if size_bytes < HUGE_BYTES else cls.HUGE


class UploadQueue:
    """Ids wait in lines by their bulk, first come first served.

    Small ones go first, but of ``slots`` uploads at a time one is kept free of larger files, and one free of small
    files while a larger one waits. With a single slot a larger file goes after every eighth small one. Of the slots
    for the larger ones, one is kept free of huge files, and one is the next huge file's while none is running.
    """

    SMALL_IN_A_ROW = 8

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._lines: dict[Bulk, dict[int, None]] = {bulk: {} for bulk in Bulk}
        self._later: list[tuple[float, int, Bulk]] = []
        self._due: dict[int, float] = {}
        self._small_in_a_row = 0
        self._last_larger = Bulk.LARGE
        self.running = dict.fromkeys(Bulk, 0)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values())) + len(self._due)

    def __contains__(self, item: object) -> bool:
        return item in self._due or any(item in line for line in self._lines.values())

    def add(self, item: int, size_bytes: int, *, due_s: float = 0.0, now_s: float = 0.0) -> None:
        """Queue an id, or move it to another time."""
        self.remove(item)
        bulk = Bulk.of(size_bytes)
        if due_s > now_s:
            self._due[item] = due_s
            heapq.heappush(self._later, (due_s, item, bulk))
        else:
            self._lines[bulk][item] = None

    def remove(self, item: int) -> None:
        """Forget an id; unknown ones are ignored."""
        for line in self._lines.values():
            line.pop(item, None)
        self._due.pop(item, None)

    def hurry(self, items: Collection[int] | None = None) -> None:
        """What waits for its time is due now: everything, or these."""
        kept = []
        for due_s, item, bulk in sorted(self._later):
            if self._due.get(item) != due_s:
                continue  # it was given another time since
            if items is None or item in items:
                del self._due[item]
                self._lines[bulk][item] = None
            else:
                kept.append((due_s, item, bulk))
        self._later = kept  # sorted, and so a heap

    def next_due_s(self) -> float:
        """When the next delayed id falls due; infinity if there is none."""
        while self._later and self._due.get(self._later[0][1]) != self._later[0][0]:
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else float("inf")

    def take(self, now_s: float) -> tuple[int, Bulk] | None:
        """The next id to start and its bulk; None if nothing may start now. Ends with ``ended``."""
        while self.next_due_s() <= now_s:
            _due_s, item, bulk = heapq.heappop(self._later)
            del self._due[item]
            self._lines[bulk][item] = None
        if sum(self.running.values()) >= self._slots:
            return None
        bulk = self._next_larger() if self._larger_is_next() else Bulk.SMALL
        line = self._lines[bulk]
        if not line:
            return None
        item = next(iter(line))
        del line[item]
        self._small_in_a_row = self._small_in_a_row + 1 if bulk is Bulk.SMALL else 0
        if bulk is not Bulk.SMALL:
            self._last_larger = bulk
        self.running[bulk] += 1
        return item, bulk

    def ended(self, bulk: Bulk) -> None:
        """An id that was taken is through, or was not wanted."""
        self.running[bulk] -= 1

    def _larger_is_next(self) -> bool:
        small, waits = self._lines[Bulk.SMALL], self._lines[self._next_larger()]
        if self._slots == 1:
            return bool(waits) and (not small or self._small_in_a_row >= self.SMALL_IN_A_ROW)
        running = self.running[Bulk.LARGE] + self.running[Bulk.HUGE]
        if waits and running == 0 and self.running[Bulk.SMALL] >= self._slots - 1:
            return True
        return not small and running < self._slots - 1

    def _next_larger(self) -> Bulk:
        """Which of the larger files goes before the other."""
        running = self.running[Bulk.HUGE]
        may_run = running < max(1, self._slots - 2)
        its_turn = not running and self._last_larger is Bulk.LARGE
        if self._lines[Bulk.HUGE] and may_run and (its_turn or not self._lines[Bulk.LARGE]):
            return Bulk.HUGE
        return Bulk.LARGE
