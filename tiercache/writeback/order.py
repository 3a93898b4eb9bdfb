"""What goes up after others: a file that tells others that they are all there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from tiercache.journal import Journal, StagedRecord
from tiercache.model import StagedState, is_below, name_of, parent_of

_ENDED = (StagedState.CONFLICT, StagedState.LOST)
_ON_THE_WAY = (StagedState.SEALED, StagedState.UPLOADING)


class Order:
    """A file whose name matches one of the patterns waits for every file below its directory that was sealed before
    it: a reader at the origin who finds the manifest of a checkpoint finds its shards too. A file beside it that is
    lost or in conflict keeps it back until somebody sees to that file."""

    def __init__(self, journal: Journal, patterns: Sequence[str], uploads: Callable[[StagedRecord], bool]) -> None:
        self._journal = journal
        self._patterns = tuple(patterns)
        self._uploads = uploads
        # For a file that waits: the seal that the list was made for, and what may still be in its way.
        self._ahead: dict[int, tuple[str, list[int]]] = {}

    def ahead_of(self, record: StagedRecord) -> StagedRecord | None:
        """A file that the origin must have before this one, None when nothing is in the way (any more). The journal is
        gone through once for each seal, however often it is asked."""
        if record.state is StagedState.CANCELLED or not self._goes_last(record):
            return None
        seal, ahead = self._ahead.get(record.id, ("", []))
        if seal != record.upload_id:
            ahead = [other.id for other in self._journal.records() if self._is_ahead(other, record)]
            self._ahead[record.id] = record.upload_id, ahead
        while ahead:
            other = self._journal.get(ahead[-1])
            if other is not None and self._is_ahead(other, record):
                return other
            ahead.pop()
        return None

    def forget(self, staged_id: int) -> None:
        """The file has gone up, or is gone."""
        self._ahead.pop(staged_id, None)

    def _goes_last(self, record: StagedRecord) -> bool:
        name = name_of(record.key).decode("utf-8", "surrogateescape")
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def _is_ahead(self, other: StagedRecord, record: StagedRecord) -> bool:
        directory = parent_of(record.key)
        if other.origin != record.origin or not other.published or not is_below(other.key, directory):
            return False
        if other.rank >= record.rank:
            return False
        if other.state in _ENDED:
            return parent_of(other.key) == directory
        return other.state in _ON_THE_WAY and self._uploads(other)
