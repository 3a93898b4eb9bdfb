"""What is let into a tier at all, whatever its policy evicts: by name, at the second miss, within a budget of writes.

Pure: the time comes with each call.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tiercache.policies.base import CacheKey

DAY_S: Final = 86_400.0
BURST_S: Final = 3_600.0
"""Of a budget of writes: what was not written in this time is not carried on."""


class Candidate(NamedTuple):
    """A missed object."""

    key: CacheKey
    name: bytes
    """Of the object at its origin, without a slash at the start."""


class Admission(Protocol):
    """Asked last, when the policy admits. Bears to be asked again for each part of an object that it refused."""

    def refuses(self, candidate: Candidate, now_s: float) -> str:
        """Why the object may not enter, in one word; empty when it may."""
        ...

    def writes(self, size_bytes: int, now_s: float) -> None:
        """So many bytes of what was let in are being written."""
        ...

    def welcome(self, key: CacheKey, now_s: float) -> None:
        """Somebody asked for this object to be here: it needs no past."""
        ...


class Everything:
    """Nothing is refused."""

    def refuses(self, candidate: Candidate, now_s: float) -> str:
        return ""

    def writes(self, size_bytes: int, now_s: float) -> None:
        pass

    def welcome(self, key: CacheKey, now_s: float) -> None:
        pass


class Names(Everything):
    """Lets in what matches one of ``include``, or anything where that is empty, and none of ``exclude``. The patterns
    must match the whole name with a slash before it."""

    def __init__(self, include: Sequence[re.Pattern[bytes]], exclude: Sequence[re.Pattern[bytes]]) -> None:
        self._include, self._exclude = include, exclude

    def refuses(self, candidate: Candidate, now_s: float) -> str:
        path = b"/" + candidate.name
        wanted = not self._include or any(pattern.fullmatch(path) for pattern in self._include)
        return "" if wanted and not any(pattern.fullmatch(path) for pattern in self._exclude) else "name"


class SecondMiss(Everything):
    """Lets in what is missed again within ``window_s``, so that what is read once, by a scan, writes nothing.

    Misses less than ``apart_s`` after one another are one reading: of the parts of an object, or by many readers at a
    time. At most ``keys_max`` missed keys are remembered; beyond that the oldest is forgotten.
    """

    def __init__(self, window_s: float, *, apart_s: float, keys_max: int) -> None:
        self._window_s, self._apart_s, self._keys_max = max(window_s, apart_s), apart_s, keys_max
        self._missed_s: OrderedDict[CacheKey, float] = OrderedDict()  # when last; the longest ago first

    def refuses(self, candidate: Candidate, now_s: float) -> str:
        missed_s = self._missed_s.pop(candidate.key, None)
        if missed_s is not None and self._apart_s <= now_s - missed_s <= self._window_s:
            return ""
        self._remember(candidate.key, now_s)
        return "first miss"

    def welcome(self, key: CacheKey, now_s: float) -> None:
        self._missed_s.pop(key, None)
        self._remember(key, now_s - self._apart_s)

    def __len__(self) -> int:
        """Number of keys that are remembered."""
        return len(self._missed_s)

    def _remember(self, key: CacheKey, missed_s: float) -> None:
        self._missed_s[key] = missed_s
        while len(self._missed_s) > self._keys_max or next(iter(self._missed_s.values())) < missed_s - self._window_s:
            self._missed_s.popitem(last=False)


class WriteBudget(Everything):
    """Lets in as long as not more was written than ``bytes_per_day``, spread over the day: the wear that a disk bears.

    A token bucket of an hour. What was let in is written to its end, also over the budget: then nothing more enters
    until that is made up for.
    """

    def __init__(self, bytes_per_day: float, now_s: float) -> None:
        self._bytes_s = bytes_per_day / DAY_S
        self._left_bytes = self._most_bytes = self._bytes_s * BURST_S
        self._then_s = now_s

    def refuses(self, candidate: Candidate, now_s: float) -> str:
        return "" if self.left_bytes(now_s) > 0 else "write budget"

    def writes(self, size_bytes: int, now_s: float) -> None:
        self._left_bytes = self.left_bytes(now_s) - size_bytes
        self._then_s = now_s

    def left_bytes(self, now_s: float) -> float:
        """What may be written now; below 0 it is owed."""
        return min(self._most_bytes, self._left_bytes + (now_s - self._then_s) * self._bytes_s)


class AllOf:
    """Lets in what all of them let in; they are asked in turn until one refuses."""

    def __init__(self, admissions: Sequence[Admission]) -> None:
        self.parts = admissions

    def refuses(self, candidate: Candidate, now_s: float) -> str:
        return next((why for admission in self.parts if (why := admission.refuses(candidate, now_s))), "")

    def writes(self, size_bytes: int, now_s: float) -> None:
        for admission in self.parts:
            admission.writes(size_bytes, now_s)

    def welcome(self, key: CacheKey, now_s: float) -> None:
        for admission in self.parts:
            admission.welcome(key, now_s)
