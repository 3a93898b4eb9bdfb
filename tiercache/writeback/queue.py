"""The order of uploads: small files before large ones, and neither ever starved. Pure: the clock is an argument."""

from __future__ import annotations

import heapq

LARGE_BYTES = 16 * 1024 * 1024
"""From this size on a file counts as large: it takes seconds of a slot; one small file more delays it little."""


class UploadQueue:
    """Ids wait in one of two lines, first come first served.

    Small ones go first, but of ``slots`` uploads at a time one is kept free of large files, and one free of small
    files while a large one waits. With a single slot a large file goes after every eighth small one.
    """

    SMALL_IN_A_ROW = 8

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._small: dict[int, None] = {}
        self._large: dict[int, None] = {}
        self._later: list[tuple[float, int, bool]] = []
        self._due: dict[int, float] = {}
        self._small_in_a_row = 0
        self.small_running = 0
        self.large_running = 0

    def __len__(self) -> int:
        return len(self._small) + len(self._large) + len(self._due)

    def __contains__(self, item: object) -> bool:
        return item in self._small or item in self._large or item in self._due

    def add(self, item: int, size_bytes: int, *, due_s: float = 0.0, now_s: float = 0.0) -> None:
        """Queue an id, or move it to another time."""
        self.remove(item)
        large = size_bytes >= LARGE_BYTES
        if due_s > now_s:
            self._due[item] = due_s
            heapq.heappush(self._later, (due_s, item, large))
        else:
            self._line(large=large)[item] = None

    def remove(self, item: int) -> None:
        """Forget an id; unknown ones are ignored."""
        self._small.pop(item, None)
        self._large.pop(item, None)
        self._due.pop(item, None)

    def hurry(self) -> None:
        """Everything that waits for its time is due now."""
        for _due_s, item, large in sorted(self._later):
            if self._due.pop(item, None) is not None:
                self._line(large=large)[item] = None
        self._later.clear()

    def next_due_s(self) -> float:
        """When the next delayed id falls due; infinity if there is none."""
        while self._later and self._due.get(self._later[0][1]) != self._later[0][0]:
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else float("inf")

    def take(self, now_s: float) -> tuple[int, bool] | None:
        """The next id to start and whether it is large; None if nothing may start now. Ends with ``ended``."""
        while self.next_due_s() <= now_s:
            _due_s, item, large = heapq.heappop(self._later)
            del self._due[item]
            self._line(large=large)[item] = None
        if self.small_running + self.large_running >= self._slots:
            return None
        large = self._large_is_next()
        line = self._line(large=large)
        if not line:
            return None
        item = next(iter(line))
        del line[item]
        self._small_in_a_row = 0 if large else self._small_in_a_row + 1
        self._count(1, large=large)
        return item, large

    def ended(self, *, large: bool) -> None:
        """An id that was taken is through, or was not wanted."""
        self._count(-1, large=large)

    def _large_is_next(self) -> bool:
        if self._slots == 1:
            return bool(self._large) and (not self._small or self._small_in_a_row >= self.SMALL_IN_A_ROW)
        if self._large and self.large_running == 0 and self.small_running >= self._slots - 1:
            return True
        return not self._small and self.large_running < self._slots - 1

    def _line(self, *, large: bool) -> dict[int, None]:
        return self._large if large else self._small

    def _count(self, change: int, *, large: bool) -> None:
        if large:
            self.large_running += change
        else:
            self.small_running += change
