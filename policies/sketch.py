"""How often keys were read lately, in little memory and a little too high: a count-min sketch that ages.

Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications", 2005; with the
ageing and the four bits of Einziger, Friedman and Manes, "TinyLFU", ACM Transactions on Storage 2017.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import unpack
from typing import Final

from tiercache.policies.base import CacheKey

COUNT_MAX: Final = 15
_ROWS: Final = 4
_WIDTH_MIN: Final = 64
_WIDTH_PER_KEY: Final = 4
"""Counters of each row, for each key of the cache."""
_SAMPLE_PER_KEY: Final = 32
"""After so many reads for each key of the cache all counts are halved."""


class FrequencySketch:
    """Counts of reads up to COUNT_MAX. It grows with the number of keys that the cache holds, which nobody knows
    beforehand: a row of twice the width is the row twice, and says the same."""

    def __init__(self) -> None:
        self._rows = [array("B", bytes(_WIDTH_MIN)) for _ in range(_ROWS)]
        self._mask = _WIDTH_MIN - 1
        self._sample = 0

    def count(self, key: CacheKey) -> int:
        """How often the key was read lately."""
        return min(row[place & self._mask] for row, place in zip(self._rows, _places(key), strict=True))

    def add(self, key: CacheKey, resident: int) -> None:
        """One more read, while the cache has so many keys."""
        while resident * _WIDTH_PER_KEY > self._mask + 1:
            self._rows = [row + row for row in self._rows]
            self._mask = 2 * self._mask + 1
        places = [place & self._mask for place in _places(key)]
        least = min(row[place] for row, place in zip(self._rows, places, strict=True))
        if least < COUNT_MAX:
            for row, place in zip(self._rows, places, strict=True):
                if row[place] == least:  # the others are too high already
                    row[place] += 1
        self._sample += 1
        if self._sample >= _SAMPLE_PER_KEY * max(resident, _WIDTH_MIN):
            self._rows = [array("B", [count >> 1 for count in row]) for row in self._rows]
            self._sample //= 2


def _places(key: CacheKey) -> tuple[int, ...]:
    """Not ``hash()``, which is another in each process."""
    return unpack("<4I", blake2b(key, digest_size=4 * _ROWS).digest())
