"""A scan: somebody reads the files of a directory in the order of their names, all of them or every n-th. No I/O, no
clock.

Of the directory only the names near the reader are in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from tiercache.model import Key, join

if TYPE_CHECKING:
    from tiercache.readahead.guessed import Guessed

REACH: Final = 64
"""A reader is expected at one of the next so many of its files: some are here already and are read without our knowing,
and several threads overtake each other."""

LAG_FILES: Final = 1024
"""A file that stays so far behind the foremost read one is not waited for …"""

LAG_NAMES: Final = 8192
"""… or so many names, where only every n-th is read."""

HOLES: Final = 1 / 4
"""In this part of the lag files are guessed that others have overtaken: a further thread reads them."""

NAMES_AT_ONCE: Final = 512
"""Names of a directory that are asked for at a time …"""

QUESTIONS: Final = 8
"""… and so many times in a row, where few of them are such as are read."""

WINDOW_MIN: Final = 4.0
"""Files that are brought ahead of a reader at first."""

PROVEN: Final = 8
"""After so many right guesses a reader is believed to go on in order."""

WASTE: Final = 2.0
"""What a file that was brought in vain takes of the window; one that was read gives 1. So the window grows as long as
two of three are read."""


class Listings(Protocol):
    """What is known of directories. Nothing here asks the origin, and nothing raises."""

    def files_after(self, directory: Key, name: bytes, most: int) -> list[bytes] | None:
        """Up to ``most`` names of files that come after ``name``, in order; fewer only at the end. None while the
        directory is not known: then it may be known later."""

    def directory_after(self, directory: Key) -> Key | None:
        """The next directory beside this one, in the order of names."""


class Trust:
    """How much is guessed for one reader, by what came of the guesses before. Goes with it from one directory to the
    next."""

    __slots__ = ("_files_max", "ahead", "used", "window")

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self.window = min(WINDOW_MIN, files_max)
        """Most files ahead. It grows by what is used, so it doubles each time it is read through."""
        self.ahead = 0
        """Files that are guessed and not read yet."""
        self.used = 0

    def was_used(self) -> None:
        self.used += 1
        self.window = min(self.window + 1, self._files_max)

    def was_wasted(self) -> None:
        self.window -= WASTE

    @property
    def proven(self) -> bool:
        return self.used >= PROVEN

    @property
    def lost(self) -> bool:
        return self.window < 1


class Scan:
    """From ``name`` on, the files of a directory whose names end as those in ``endings``: of ``step`` in a row those at
    the places that were read before."""

    def __init__(
        self, listings: Listings, directory: Key, name: bytes, endings: set[bytes], *, step: int, trust: Trust
    ) -> None:
        self._listings = listings
        self.directory = directory
        self.endings = endings
        self.trust = trust
        self.pending: deque[Guessed] = deque()
        """What was guessed by it and is waited for, in order."""
        self.hungry = False
        """Whether it waits for its turn to guess."""
        self.followed = False
        """Whether the next directory is scanned, or there is none."""
        self.over = False
        """Whether nobody goes on with it."""
        self.begun = 0
        self.seen = 0
        """When it was last of use, on the clock of whoever has it."""
        self._at = -1
        """Position of the foremost that was read."""
        self._begin(name, step)

    def _begin(self, name: bytes, step: int) -> None:
        self._base = self._at + 1
        """Position of the first of ``_names``."""
        self._names: list[bytes] = []
        if name:  # else the directory was not read from yet
            self._names.append(name)
            self._at += 1
        self._next = self._at + 1
        self._last = name
        """The last name that was asked for, of whatever ending."""
        self.ended = False
        """Whether the directory has no more names."""
        self.step = step
        self._phases = {self._at % step}
        """Which positions are read, modulo ``step``."""

    @property
    def _lag(self) -> int:
        return min(LAG_FILES * self.step, LAG_NAMES)

    def next(self) -> tuple[int, Key] | None:
        """Position and key of the file to guess; None when no further one is known."""
        while self._next % self.step not in self._phases:
            self._next += 1
        position = self._next
        if not self._fill(position - self._base):
            return None
        self._next += 1
        return position, join(self.directory, self._names[position - self._base])

    def admits(self, name: bytes) -> bool:
        """Whether a file lies where the readers of the scan are."""
        reach = max(self._at, self._next) - self._base + REACH * self.step
        self._fill(reach)
        place = bisect_left(self._names, name)
        if not self._names or name < self._names[0] or place > reach:
            return False
        is_listed = place < len(self._names) and self._names[place] == name
        return is_listed or self.step == 1  # else it is new, or of another ending

    def advance(self, name: bytes) -> None:
        """A file was opened that ``admits`` knows and nobody guessed."""
        ending = ending_of(name)
        if ending not in self.endings:
            # There are more files in between than was thought: begin again with all of them.
            self.endings.add(ending)
            self._begin(name, 1)
            return
        position = self._base + bisect_right(self._names, name) - 1
        if position % self.step not in self._phases:
            self._add_phase(position)
        self.passed(position)

    def _add_phase(self, position: int) -> None:
        """Another reader takes its share of the same files. Where most are read all are: parts of a directory that are
        read at once look like that at first."""
        self._phases.add(position % self.step)
        if 2 * len(self._phases) > self.step:
            self.step, self._phases = 1, {0}
        self._next = min(self._next, position + 1)

    def passed(self, position: int) -> None:
        """A reader is at this position, or has been."""
        self._at = max(self._at, position)
        self._next = max(self._next, self._at + 1 - int(HOLES * self._lag), self._base)
        behind = self._at - self._lag - self._base
        if behind > NAMES_AT_ONCE:
            del self._names[:behind]
            self._base += behind

    def is_behind(self, position: int) -> bool:
        """Whether a file at this position is not waited for any more."""
        return position < self._at - self._lag

    def _fill(self, place: int) -> bool:
        """Know the names up to a place; False when there are not so many, or not known."""
        for _ in range(QUESTIONS):
            if place < len(self._names) or self.ended:
                break
            names = self._listings.files_after(self.directory, self._last, NAMES_AT_ONCE)
            if names is None:
                break
            self.ended = len(names) < NAMES_AT_ONCE
            if names:
                self._last = names[-1]
            self._names += (name for name in names if ending_of(name) in self.endings)
        return place < len(self._names)


def ending_of(name: bytes) -> bytes:
    """What follows the last dot of a name."""
    return name.rpartition(b".")[2] if b"." in name else b""
