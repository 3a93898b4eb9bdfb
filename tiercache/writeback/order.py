"""What goes up after others: a file that tells others that they are all there, and a symlink to them."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from tiercache.journal import Journal, StagedRecord
from tiercache.model import Key, OriginId, StagedState, is_below, name_of, parent_of

_ENDED = (StagedState.CONFLICT, StagedState.LOST)


class Order:
    """A file whose name matches one of the patterns waits for every file below its directory that was closed before it
    was closed or renamed to its name, also when that is opened again meanwhile: a reader at the origin who finds the
    manifest of a checkpoint finds its shards too. A file beside it that is lost or in conflict keeps it back until
    somebody sees to that file. A symlink waits in the same way for what it points to. Those that wait themselves go up
    in the order in which they were sealed.

    What has been open for writing all the time (a log) is not waited for; ``is_open`` tells whether a file is.
    ``locate`` tells what an absolute path on this node stands for inside an origin."""

    def __init__(
        self,
        journal: Journal,
        patterns: Sequence[str],
        uploads: Callable[[StagedRecord], bool],
        is_open: Callable[[StagedRecord], bool],
        locate: Callable[[OriginId, bytes], Key | None],
    ) -> None:
        self._journal = journal
        self._patterns = tuple(patterns)
        self.uploads = uploads
        self.is_open = is_open
        self.locate = locate
        # For a file that waits, by the number under which it has its name: what may still be in its way.
        self._ahead: dict[int, tuple[int, list[int]]] = {}

    def ahead_of(self, record: StagedRecord) -> StagedRecord | None:
        """A file that the origin must have before this one, None when nothing is in the way (any more). The journal is
        gone through when those that were found the last time have gone up, however often it is asked."""
        if record.state is StagedState.CANCELLED or not self.may_wait(record):
            return None
        rank, ahead = self._ahead.get(record.id, (-1, []))
        if rank == record.rank:
            while ahead:
                other = self._journal.get(ahead[-1])
                if other is not None and self._is_still_ahead(other, record):
                    return other
                ahead.pop()
        found = list(self._all_ahead(record))
        self._ahead[record.id] = record.rank, [other.id for other in found]
        return found[-1] if found else None

    def all_ahead_of(self, record: StagedRecord) -> list[StagedRecord]:
        """Those that ``ahead_of`` tells one after the other."""
        if self.ahead_of(record) is None:
            return []
        ahead = [self._journal.get(staged_id) for staged_id in self._ahead[record.id][1]]
        return [other for other in ahead if other is not None]

    def may_wait(self, record: StagedRecord) -> bool:
        """Whether it is one of those that have others ahead."""
        return self._stands_for(record) is not None

    def forget(self, staged_id: int) -> None:
        """The file has gone up, or is gone."""
        self._ahead.pop(staged_id, None)

    def would_wait(self, origin: OriginId, key: Key, link_target: bytes = b"") -> bool:
        """Whether a file, or a symlink to ``link_target``, that took this name now would have others ahead."""
        place = self._place_of(key, link_target, self.locate(origin, link_target) if link_target else None)
        return place is not None and any(
            self._concerns(other, origin, place) and self._is_waited_for(other) for other in self._journal.records()
        )

    def _stands_for(self, record: StagedRecord) -> Key | None:
        """The directory, or file, whose bytes are to be there before; None if none has to be."""
        return self._place_of(record.key, record.link_target, record.link_place)

    def _place_of(self, key: Key, link_target: bytes, link_place: Key | None) -> Key | None:
        if link_target.startswith(b"/"):
            return link_place
        if link_target:
            return _pointed_to(key, link_target)
        return parent_of(key) if self.announces(key) else None

    def announces(self, key: Key) -> bool:
        """Whether the name tells a reader that others are there."""
        name = name_of(key).decode("utf-8", "surrogateescape")
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def _all_ahead(self, record: StagedRecord) -> Iterator[StagedRecord]:
        return (other for other in self._journal.records() if self._is_ahead(other, record))

    def _is_ahead(self, other: StagedRecord, record: StagedRecord) -> bool:
        came_before = (other.first_seal or other.id) < record.rank and self._is_waited_for(other)
        return other.id != record.id and came_before and self._is_still_ahead(other, record)

    def _is_still_ahead(self, other: StagedRecord, record: StagedRecord) -> bool:
        """The same for one that was ahead: that it is sealed only now, or again, changes nothing."""
        place = self._stands_for(record)
        if place is None or not self._concerns(other, record.origin, place):
            return False
        if not self.may_wait(other):
            return True
        # By their last seals, so that of two that are opened again neither waits for the other.
        return other.rank < record.rank and other.state is not StagedState.STAGED

    def _concerns(self, other: StagedRecord, origin: OriginId, place: Key) -> bool:
        """Whether ``other`` is, or lies below, ``place``, and can be waited for."""
        if other.origin != origin or not other.published or not is_below(other.key, place):
            return False
        if other.state in _ENDED:
            return place in (other.key, parent_of(other.key))
        return self.uploads(other)

    def _is_waited_for(self, other: StagedRecord) -> bool:
        """Whether it was closed, though it may be open again."""
        return bool(other.first_seal) or not self.is_open(other)


def _pointed_to(key: Key, target: bytes) -> Key | None:
    """What a symlink with a relative target points to inside the origin; None where that is outside."""
    place = posixpath.normpath(posixpath.join(parent_of(key), target))
    return None if place == b".." or place.startswith(b"../") else b"" if place == b"." else place
