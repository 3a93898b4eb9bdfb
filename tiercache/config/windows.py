"""Rates of upload, and the hours of the day that have their own: ``100MiB``, ``22:00-06:00=inf``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from tiercache.units import KIB, parse_size

RATE_HELP = "bytes per second such as 20MiB or 1GiB, at least 64KiB, or inf"
WINDOW_HELP = "hours of the day and a rate, such as 22:00-06:00=inf or 8:00-18:30=20MiB"

SLOWEST_BYTES_S = 64 * KIB
"""Below this nothing would arrive within the timeouts."""

_WINDOW = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*=(.+)")
_DAY_MINUTES = 24 * 60


class Window(NamedTuple):
    """Minutes after midnight, local time; it goes over midnight if it ends before it begins."""

    begin_minute: int
    end_minute: int
    bytes_s: float

    def holds(self, minute: int) -> bool:
        """Whether the minute of the day lies in it."""
        if self.begin_minute < self.end_minute:
            return self.begin_minute <= minute < self.end_minute
        return minute >= self.begin_minute or minute < self.end_minute


def parse_rate(text: object) -> float:
    """Bytes per second; ValueError says what is allowed."""
    plain = str(text).strip().removesuffix("/s")
    if plain.lower() == "inf":
        return math.inf
    try:
        bytes_s = parse_size(plain)
    except ValueError:
        bytes_s = 0
    if bytes_s < SLOWEST_BYTES_S:
        raise ValueError(f"{text!r} is not a rate; allowed: {RATE_HELP}")
    return float(bytes_s)


def parse_window(text: str) -> Window:
    """ValueError says what is allowed."""
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a window; allowed: {WINDOW_HELP}")
    begin, end = (60 * int(found[at]) + int(found[at + 1]) for at in (1, 3))
    if max(int(found[2]), int(found[4])) > 59 or begin >= _DAY_MINUTES or end > _DAY_MINUTES or begin == end:
        raise ValueError(f"{text!r} is not a window; allowed: {WINDOW_HELP}")
    return Window(begin, end, parse_rate(found[5]))


def rate_at(minute: int, windows: Sequence[Window], otherwise_bytes_s: float) -> float:
    """The rate of the first window that the minute lies in."""
    return next((window.bytes_s for window in windows if window.holds(minute)), otherwise_bytes_s)
