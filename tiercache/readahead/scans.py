"""Recognises scans by the files that are opened: several at once, also of one directory. No I/O, no clock.

Before a directory's names are asked for, opens are sorted into *trails* as in patience sorting: a file follows the
trail whose last name is the nearest before its own. A trail that is long enough is compared with the names: if its
last files are near each other there, it is a scan.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from tiercache.model import Key
from tiercache.readahead.scan import REACH, Listings, Scan, Trust, ending_of

DEMAND_MIN: Final = 3
"""A trail of so many files is compared with the names of its directory …"""

DEMAND_MAX: Final = 96
"""… after failures of twice as many each time, up to this."""

COMPARED: Final = 4
"""Of a trail only the last files are compared."""

TRAILS_MAX: Final = 32
"""Trails of one directory."""

DIRECTORIES_MAX: Final = 256
"""Directories of which trails and scans are remembered."""

SCANS_MAX: Final = 64

SPREAD: Final = 8
"""The distances between files of a scan are its step, or up to so many times that where threads overtake each other."""

FAR_MAX: Final = 8
"""So many trails whose files lie far from each other count as one failure: readers of several parts of a directory
begin like that."""

STALE: Final = 256
"""A trail that nobody went on with during so many reads is forgotten."""

UNPROVEN_COST: Final = 2
"""For each scan of which few guesses were right yet a trail has to be so much longer."""

PROVES_WITHIN: Final = 1024
"""So many reads after its beginning a scan is proven, or was none."""

SILENT_MAX: Final = 16384
"""A scan that is not read on during so many reads of others is over."""


class _Trail:
    __slots__ = ("length", "names", "seen")

    def __init__(self, name: bytes, seen: int) -> None:
        self.names = [name]
        self.length = 1
        self.seen = seen

    def add(self, name: bytes, seen: int) -> None:
        self.names = [*self.names[1 - COMPARED :], name]
        self.length += 1
        self.seen = seen


class _Directory:
    __slots__ = ("scans", "trails")

    def __init__(self) -> None:
        self.scans: list[Scan] = []
        self.trails: list[_Trail] = []
        """Whatever was followed last is the last of them."""


class Scans:
    """Of one origin. ``on_end`` is told of a scan that is over, or was none."""

    def __init__(self, listings: Listings, files_max: int, on_end: Callable[[Scan], None]) -> None:
        self._listings = listings
        self._files_max = files_max
        self._on_end = on_end
        self._directories: OrderedDict[Key, _Directory] = OrderedDict()
        self._scans: OrderedDict[Scan, None] = OrderedDict()
        """The one that was of no use for longest comes first."""
        self._demand = DEMAND_MIN
        self._far = 0
        self._reads = 0

    def __len__(self) -> int:
        return len(self._scans)

    @property
    def window_files(self) -> float:
        """Most files ahead of all readers."""
        return sum(trust.window for trust in {scan.trust for scan in self._scans})

    def opened(self, directory: Key, name: bytes) -> Scan | None:
        """A file was opened that was not guessed: the scan that it belongs to, which may have begun with it."""
        place = self._of(directory)
        for scan in place.scans:
            if scan.admits(name):
                scan.advance(name)
                self.touch(scan)
                return scan
        trail = self._follow(place, name)
        unproven = sum(not scan.trust.proven for scan in self._scans)
        if trail.length < self._demand + UNPROVEN_COST * unproven:
            return None
        begun = self._recognise(directory, trail)
        if begun is not None:
            place.trails.remove(trail)
            self._begin(begun)
        return begun

    def touch(self, scan: Scan) -> None:
        """A scan was of use."""
        scan.seen = self._reads
        if scan in self._scans:
            self._scans.move_to_end(scan)
            if scan.directory in self._directories:
                self._directories.move_to_end(scan.directory)

    def proved(self, scan: Scan) -> None:
        """A file that was guessed for it is read."""
        if scan.trust.proven:
            self._demand = DEMAND_MIN  # guessing pays again
        self.touch(scan)

    def tick(self) -> None:
        """Somebody read a file. Scans that are overdue end."""
        self._reads += 1
        if self._reads % REACH == 0:
            for scan in list(self._scans):
                if not scan.trust.proven and self._reads - scan.begun > PROVES_WITHIN:
                    self.fail(scan)
                elif self._reads - scan.seen > SILENT_MAX:
                    self.end(scan)

    def follow(self, scan: Scan) -> Scan | None:
        """The scan of the next directory, once all names of one are guessed and its reader was right before."""
        if scan.over or scan.followed or not scan.ended or scan.step > 1 or not scan.trust.used:
            return None
        directory = self._listings.directory_after(scan.directory)
        if directory is not None and self._listings.files_after(directory, b"", 1) is None:
            return None  # it is asked for now; later perhaps
        scan.followed = True
        if directory is None:
            return None
        further = Scan(self._listings, directory, b"", scan.endings, step=1, trust=scan.trust)
        self._begin(further)
        return further

    def fail(self, scan: Scan) -> None:
        """It was none: the next one has to show more of itself before anything is fetched."""
        self._demand_more()
        self.end(scan)

    def end(self, scan: Scan) -> None:
        """Nobody goes on with it."""
        if scan not in self._scans:
            return
        scan.over = True
        del self._scans[scan]
        place = self._directories.get(scan.directory)
        if place is not None and scan in place.scans:
            place.scans.remove(scan)
        self._on_end(scan)

    def clear(self) -> None:
        """Nothing was read for long."""
        for scan in list(self._scans):
            self.end(scan)
        self._directories.clear()

    def _demand_more(self) -> None:
        self._demand = min(DEMAND_MAX, self._demand * 2)

    def _of(self, directory: Key) -> _Directory:
        place = self._directories.get(directory)
        if place is None:
            place = self._directories[directory] = _Directory()
            if len(self._directories) > DIRECTORIES_MAX:
                _, oldest = self._directories.popitem(last=False)
                for scan in list(oldest.scans):
                    self.end(scan)
        else:
            self._directories.move_to_end(directory)
        return place

    def _follow(self, place: _Directory, name: bytes) -> _Trail:
        trails = place.trails
        while trails and self._reads - trails[0].seen > STALE:
            del trails[0]
        found = None
        for trail in trails:
            last = trail.names[-1]
            if last < name and (found is None or last > found.names[-1]):
                found = trail
        if found is None:
            found = _Trail(name, self._reads)
            if len(trails) >= TRAILS_MAX:
                del trails[0]
        else:
            trails.remove(found)
            found.add(name, self._reads)
        trails.append(found)
        return found

    def _recognise(self, directory: Key, trail: _Trail) -> Scan | None:
        names = trail.names[-COMPARED:]
        endings = {ending_of(name) for name in names}
        near: list[int] = []
        for before, after in reversed(list(pairwise(names))):
            steps = self._steps(directory, before, after, endings)
            if steps is None:
                return None  # its names are asked for now; the trail goes on meanwhile
            if not steps or max([steps, *near]) > SPREAD * math.gcd(steps, *near):
                break
            near.append(steps)
        self._far = 0 if near else self._far + 1
        if self._far > FAR_MAX:
            self._far = 0
            self._demand_more()
        if len(near) < 2:
            trail.names, trail.length = names[-1 - len(near) :], 1 + len(near)
            return None
        return Scan(self._listings, directory, names[-1], endings, step=math.gcd(*near), trust=Trust(self._files_max))

    def _steps(self, directory: Key, before: bytes, after: bytes, endings: set[bytes]) -> int | None:
        """How many files lie between two names; 0 if too many, None if the directory is not known."""
        between = self._listings.files_after(directory, before, REACH * max(1, len(endings)) * 2)
        if between is None:
            return None
        files = [name for name in between if ending_of(name) in endings]
        return files.index(after) + 1 if after in files[:REACH] else 0

    def _begin(self, scan: Scan) -> None:
        while len(self._scans) >= SCANS_MAX:
            self.end(next(iter(self._scans)))
        scan.begun = scan.seen = self._reads
        self._scans[scan] = None
        self._of(scan.directory).scans.append(scan)
