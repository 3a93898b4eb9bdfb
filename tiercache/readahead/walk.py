"""A walk: a reader that looks at the beginning of one extent after the other. Pure arithmetic on their numbers.

``torch.load(mmap=True)`` does so: it asks where each record begins, one round trip after the other.
"""

from __future__ import annotations

from typing import Final

EVIDENCE_STEPS: Final = 2
"""So many steps from extent to extent are a walk."""

FIRST_EXTENTS: Final = 4
MOST_EXTENTS: Final = 16
"""How many beginnings to send for at first, and at most: a block each."""


class Walk:
    """Of one handle."""

    __slots__ = ("_last", "_reach", "_sent", "_steps")

    def __init__(self) -> None:
        self._last = -2
        self._steps = 0
        self._sent = 0
        """The beginnings of extents up to this number were sent for."""
        self._reach = FIRST_EXTENTS

    def step(self, first: int, last: int) -> range:
        """The reader jumped, and looked at the extents from number ``first`` (perhaps only at its end, which is in the
        same page) to ``last``: the extents whose beginnings to send for now."""
        goes_on = self._last <= first <= self._last + 1 <= last
        self._last = last
        if not goes_on:
            self._steps, self._sent, self._reach = 0, 0, FIRST_EXTENTS
            return range(0)
        self._steps += 1
        if self._steps < EVIDENCE_STEPS or self._sent > last + 1 + self._reach // 2:
            return range(0)
        start = max(self._sent, last + 1)
        self._sent = last + 1 + self._reach
        self._reach = min(2 * self._reach, MOST_EXTENTS)
        return range(start, max(start, self._sent))
