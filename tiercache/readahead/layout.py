"""A layout: the extents of a file, in the order in which they are probably read. Pure arithmetic on offsets."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

FIRST_BYTES: Final = 16 * 1024 * 1024
"""So far ahead of a reader to be that has come to an extent of a known file."""


class Layout:
    """The whole file, cut at ``starts``. What one extent begins reaches up to the next start in the file.

    A *position* counts the bytes in reading order: whoever reads the extents one after the other reads positions in
    order, wherever the extents lie. ``first_bytes``: the window of a reader that comes to an extent.
    """

    __slots__ = ("_extents", "_offsets", "_positions", "_positions_by_offset", "first_bytes", "size_bytes")

    def __init__(self, starts: Iterable[int], size_bytes: int, *, first_bytes: int = FIRST_BYTES) -> None:
        """``starts`` in reading order; what is not inside the file, or comes again, is left out. What lies before all
        of them is read first."""
        ordered = list(dict.fromkeys([0, *(start for start in starts if 0 < start < size_bytes)]))
        ends = dict(pairwise([*sorted(ordered), size_bytes]))
        self.size_bytes = size_bytes
        self.first_bytes = first_bytes
        self._extents = array("Q", ordered)
        self._positions = array("Q")
        position = 0
        for start in ordered:
            self._positions.append(position)
            position += ends[start] - start
        by_offset = sorted(zip(self._extents, self._positions, strict=True))
        self._offsets = array("Q", (offset for offset, _ in by_offset))
        self._positions_by_offset = array("Q", (place for _, place in by_offset))

    def __len__(self) -> int:
        """How many extents it has."""
        return len(self._extents)

    def number(self, offset: int) -> int:
        """Of the extent, in reading order, that a byte of the file lies in."""
        return bisect_right(self._positions, self.position(offset)) - 1

    def starts(self, numbers: range) -> Iterator[int]:
        """Where the extents of these numbers begin in the file."""
        return iter(self._extents[numbers.start : numbers.stop])

    def position(self, offset: int) -> int:
        """Of a byte of the file."""
        number = bisect_right(self._offsets, offset) - 1
        return self._positions_by_offset[number] + offset - self._offsets[number]

    def end_of(self, position: int) -> int:
        """The position after the extent that this one lies in."""
        number = bisect_right(self._positions, position)
        return self._positions[number] if number < len(self._positions) else self.size_bytes

    def ranges(self, positions: range) -> Iterator[range]:
        """Where these positions lie in the file, in their order; neighbours are one."""
        found = range(0)
        position = positions.start
        while position < positions.stop:
            number = bisect_right(self._positions, position) - 1
            stop = min(self.end_of(position), positions.stop)
            offset = self._extents[number] + position - self._positions[number]
            if found and found.stop == offset:
                found = range(found.start, offset + stop - position)
            else:
                if found:
                    yield found
                found = range(offset, offset + stop - position)
            position = stop
        if found:
            yield found
