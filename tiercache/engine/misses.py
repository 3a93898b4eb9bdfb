"""Names that the origin was asked for one by one: from a certain number on, listing their directory is cheaper.

A program that makes a thousand files in a directory asks for a thousand names that are not there. One listing answers
for all of them as long as it is fresh.
"""

from __future__ import annotations

from collections import OrderedDict

from tiercache.model import Key

ASKED_MAX = 4
"""How many names of an empty directory are asked for one by one within the time that a listing is believed."""

NAMES_PER_QUESTION = 16
"""So many names are listed and remembered in the time of one question: a larger directory allows more of them."""

LISTED_MAX = 1000
"""Directories with more names are not listed for this: it takes an object store more than one request."""

DIRECTORIES_MAX = 1024
"""Directories that are counted at a time."""


class _Directory:
    __slots__ = ("asked", "names", "since_ns")

    def __init__(self) -> None:
        self.since_ns = 0
        self.asked = 0
        self.names = 0  # at the last listing; 0 before the first


class Misses:
    """Counts for one profile, whose listings are believed for ``ttl_s``."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._directories: OrderedDict[Key, _Directory] = OrderedDict()

    def asked(self, directory: Key, at_ns: int) -> bool:
        """A name of the directory is about to be asked for; True when the directory should be listed instead."""
        found = self._of(directory)
        if (at_ns - found.since_ns) / 1e9 >= self._ttl_s:
            found.since_ns, found.asked = at_ns, 0
        found.asked += 1
        return found.asked > ASKED_MAX + found.names // NAMES_PER_QUESTION and found.names <= LISTED_MAX

    def listed(self, directory: Key, names: int) -> None:
        """The directory was listed and holds so many names."""
        self._of(directory).names = names

    def _of(self, directory: Key) -> _Directory:
        found = self._directories.get(directory)
        if found is None:
            found = self._directories[directory] = _Directory()
            if len(self._directories) > DIRECTORIES_MAX:
                self._directories.popitem(last=False)
        self._directories.move_to_end(directory)
        return found
