"""Reads that are about to come: who looks a name up reads the file next, or only wanted to know of it."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from tiercache.cache import VersionRef

EXPECTED_BYTES = 256 * 1024
"""How much of a file the disk begins to read before anybody asks: small files as a whole."""

MOST_CREDIT = 32
"""So many guesses in a row may be wrong before they end."""

MOST_AWAITED = 64
"""Lookups that are remembered until a read shows that the guess was right."""


class _Looked(NamedTuple):
    inode: int
    version: VersionRef


class ExpectedReads:
    """Guesses as long as at least every second lookup is followed by a read: a walk that only asks for attributes soon
    costs the disk nothing, and the first reads after it bring the guesses back."""

    def __init__(self) -> None:
        self._credit = MOST_CREDIT
        self._latest: _Looked | None = None
        self._awaited: OrderedDict[int, None] = OrderedDict()

    def looked_up(self, inode: int, version: VersionRef) -> None:
        """A name was told to the kernel."""
        self._credit = max(0, self._credit - 1)
        self._latest = _Looked(inode, version)
        self._awaited[inode] = None
        if len(self._awaited) > MOST_AWAITED:
            self._awaited.popitem(last=False)

    def came(self, inode: int) -> None:
        """A file is read."""
        if self._latest is not None and self._latest.inode == inode:
            self._latest = None  # too late to begin before
        if self._awaited.pop(inode, self) is None:
            self._credit = min(MOST_CREDIT, self._credit + 2)

    def take(self) -> VersionRef | None:
        """The version that is worth to begin with now; once for each lookup."""
        latest, self._latest = self._latest, None
        return latest.version if latest is not None and self._credit else None
