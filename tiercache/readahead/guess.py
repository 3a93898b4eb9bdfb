"""What readers that told no plan will read next, as a plan that runs beside those that were told.

Guesses are as many as came true: each scan has a window that grows with each file of it that is read, and shrinks with
each that was brought in vain; the siblings of a sample are fetched while they are read. No I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from tiercache.model import Key, VersionId
from tiercache.readahead.guessed import Guessed
from tiercache.readahead.plan import NO_VERSION, Read, Step
from tiercache.readahead.scan import Listings, Scan
from tiercache.readahead.scans import Scans
from tiercache.readahead.siblings import Siblings

LOOSE_MAX: Final = 512
"""Siblings that are waited for after a file of their sample was read."""

RECENT_FILES: Final = 16384
"""So many files that were read are not guessed again."""


class Guess:
    """Of one origin as one profile sees it; ``Planned`` runs it as any ``Plan``. ``files_max`` and ``bytes_max`` bound
    what is guessed and not read yet."""

    def __init__(self, listings: Listings, *, files_max: int, bytes_max: int) -> None:
        self._files_max = files_max
        self._bytes_max = bytes_max
        self._loose_max = min(LOOSE_MAX, files_max // 2)
        self._scans = Scans(listings, files_max, self._scan_ended)
        self._siblings = Siblings()
        self._hungry: deque[Scan] = deque()
        self._wanted: deque[Guessed] = deque(maxlen=files_max)
        """Siblings that are sent for before anything else."""
        self._loose: deque[Guessed] = deque()
        """Siblings of files that no scan has."""
        self._peeked: Guessed | None = None
        self._by_key: dict[Key, Guessed] = {}
        """All that is guessed and not read yet."""
        self._by_version: dict[VersionId, Guessed] = {}
        self._recent: OrderedDict[Key, None] = OrderedDict()
        self.front = 0
        """Files that were guessed and read."""
        self.held_bytes = 0
        self.skipped = 0
        """Files that were brought, and given up unread."""

    # -- what readers do --------------------------------------------------------------------------

    def missed(self, key: Key) -> bool:
        """Somebody opens a file that was neither here nor guessed. Whether it should have been: it lies in a scan that
        has been right often enough."""
        if not self._observe(key):
            return False
        directory, _, name = key.rpartition(b"/")
        scan = self._scans.opened(directory, name)
        if scan is None:
            return False
        self._feed(scan)
        self._prune(scan)
        return scan.trust.proven

    def read(self, key: Key) -> Read | None:
        """Somebody opens a file. None if it was not guessed."""
        step = self._by_key.get(key)
        if step is None:
            return None
        self._settle(step)
        self.front += 1
        self._observe(key)
        if step.scan is not None and not step.sibling:
            self._was_right(step.scan, step.position)
        return Read.READY if step.ready else Read.LATE if step.sent else Read.MISSED

    def read_version(self, version: VersionId) -> Read | None:
        """The same, for a file that was brought, by its version."""
        step = self._by_version.get(version)
        return None if step is None else self.read(step.key)

    def give_up(self) -> None:
        """Nothing was read for long: whoever comes begins anew."""
        self._scans.clear()
        self._wanted.clear()
        self._recent.clear()
        for step in list(self._by_key.values()):
            self._drop(step)

    def _observe(self, key: Key) -> bool:
        """Whether the file is the first of its sample. The others are no steps of a scan."""
        self._scans.tick()
        self._remember(key)
        first = self._siblings.read(key)
        if first:
            self._want_siblings(key)
        return first

    def _want_siblings(self, key: Key, scan: Scan | None = None, position: int = 0) -> None:
        for sibling in self._siblings.of(key):
            self._wanted.append(Guessed(sibling, scan, position, sibling=True))

    def _remember(self, key: Key) -> None:
        self._recent[key] = None
        if len(self._recent) > RECENT_FILES:
            self._recent.popitem(last=False)

    def _was_right(self, scan: Scan, position: int) -> None:
        scan.trust.was_used()
        scan.passed(position)
        self._scans.proved(scan)
        self._prune(scan)
        self._feed(scan)

    def _prune(self, scan: Scan) -> None:
        """What the reader of a scan has left behind is not waited for."""
        pending = scan.pending
        while pending and (pending[0].read or scan.is_behind(pending[0].position)):
            step = pending.popleft()
            if not step.read:
                self._drop(step)
                if not step.sibling:
                    scan.trust.was_wasted()
        if scan.trust.lost:
            self._scans.fail(scan)

    def _scan_ended(self, scan: Scan) -> None:
        while scan.pending:
            step = scan.pending.popleft()
            if not step.read:
                self._drop(step)

    # -- what ``Planned`` does --------------------------------------------------------------------

    @property
    def lead(self) -> int:
        """How many files ahead of their readers were sent for."""
        return len(self._by_key)

    @property
    def scans(self) -> int:
        return len(self._scans)

    @property
    def window_files(self) -> int:
        """Most files ahead of all scans together."""
        return min(self._files_max, int(self._scans.window_files))

    @property
    def can_take(self) -> bool:
        """Whether ``take`` would give a file."""
        return self._peek() is not None

    def take(self) -> Step | None:
        """The next file to send for."""
        step = self._peek()
        if step is not None:
            self._peeked = None
            step.sent = True
        return step

    def brought(self, step: Step, version: VersionId, size_bytes: int) -> None:
        """What was sent for is here, as the bytes of a version."""
        step.ready = True
        if not step.read:
            assert isinstance(step, Guessed)
            step.version, step.size_bytes = version, size_bytes
            if version:  # else it lies in staging
                self._by_version[version] = step
            self.held_bytes += size_bytes

    def failed(self, step: Step, *, again: bool) -> None:
        """It could not be had: whoever reads it meets the error."""
        if not step.read:
            assert isinstance(step, Guessed)
            self._settle(step)

    def reached(self, position: int) -> int:
        """Nobody tells where a reader is of whom nothing was told."""
        return 0

    def _peek(self) -> Guessed | None:
        step = self._peeked
        if step is None or step.read:
            self._peeked = step = None
            if len(self._by_key) < self._files_max and self.held_bytes < self._bytes_max:
                self._peeked = step = self._next_sibling() or self._next_of_scans()
        return step

    def _next_sibling(self) -> Guessed | None:
        while self._wanted:
            step = self._wanted.popleft()
            left = step.scan is not None and step.scan.over
            if not left and not self._skips(step.key):
                return self._guess(step)
        return None

    def _next_of_scans(self) -> Guessed | None:
        """Scans take turns."""
        hungry = self._hungry
        while hungry:
            scan = hungry[0]
            if not scan.over and scan.trust.ahead < scan.trust.window:
                found = self._next_of(scan)
                if found is not None:
                    hungry.rotate(-1)
                    return found
                further = self._scans.follow(scan)
                if further is not None:
                    self._feed(further)
            hungry.popleft()
            scan.hungry = False
        return None

    def _next_of(self, scan: Scan) -> Guessed | None:
        while (found := scan.next()) is not None:
            position, key = found
            if not self._skips(key):
                scan.trust.ahead += 1
                self._want_siblings(key, scan, position)
                return self._guess(Guessed(key, scan, position))
        return None

    def _guess(self, step: Guessed) -> Guessed:
        self._by_key[step.key] = step
        if step.scan is not None:
            step.scan.pending.append(step)
            return step
        loose = self._loose
        loose.append(step)
        while loose[0].read or len(loose) > self._loose_max:
            self._drop(loose.popleft())
        return step

    def _skips(self, key: Key) -> bool:
        return key in self._by_key or key in self._recent

    def _feed(self, scan: Scan) -> None:
        if not scan.hungry:
            scan.hungry = True
            self._hungry.append(scan)

    def _drop(self, step: Guessed) -> None:
        """Nobody waits for it any more."""
        if not step.read:
            self.skipped += step.ready
            self._settle(step)

    def _settle(self, step: Guessed) -> None:
        step.read = True
        del self._by_key[step.key]
        if self._by_version.get(step.version) is step:
            del self._by_version[step.version]
        step.version = NO_VERSION
        self.held_bytes -= step.size_bytes
        step.size_bytes = 0
        if step.scan is not None and not step.sibling:
            step.scan.trust.ahead -= 1
