"""Files that were renamed before the origin had them: what it has under an old name stays until they are there.

Such a file is the *heir* of what it left behind. A node that is lost before the upload loses what was written since,
and not what the origin had of the file before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tiercache.journal import Journal, StagedRecord
from tiercache.model import Key, OriginId, StagedState
from tiercache.writeback.order import Order
from tiercache.writeback.retry import Failure

_ENDED = (StagedState.CONFLICT, StagedState.LOST)


class Heirs:
    """``failures`` are those of the uploader."""

    def __init__(self, journal: Journal, order: Order, failures: Mapping[int, Failure]) -> None:
        self._journal = journal
        self._order = order
        self._failures = failures

    def awaited_by(self, row: StagedRecord) -> StagedRecord | None:
        """The file that the origin must have before a retraction removes something; None if it may do so. What goes
        from a name waits for every file that left the name before, lest it takes what that one left."""
        if row.state is not StagedState.CANCELLED or row.part_of is not None:
            return None
        ahead = [other for other in self._journal.retractions(*row.lane) if other.id <= row.id]
        return next(self._heirs_of(ahead), None)

    def ahead_of(self, record: StagedRecord) -> StagedRecord | None:
        """The file that the origin must have before this one, which took its old name, replaces what it left there. One
        that is not on its way (open for writing, in conflict, refused by the origin) is not waited for, and of files
        that exchanged their names the first goes."""
        return next(self._ahead_of(record), None)

    def all_ahead_of(self, record: StagedRecord) -> list[StagedRecord]:
        """Those that ``ahead_of`` tells one after the other."""
        return list(self._ahead_of(record))

    def _ahead_of(self, record: StagedRecord) -> Iterator[StagedRecord]:
        for heir in self._heirs_of(self._journal.retractions(*record.lane)):
            if self._is_on_its_way(heir) and heir.lane != record.lane:
                exchanged = record.rank < heir.rank and self._waits_for(heir, record)
                if not exchanged:
                    yield heir

    def are_awaited(self, origin: OriginId, key: Key) -> bool:
        """Whether a file that took this name now would have one ahead."""
        return any(map(self._is_on_its_way, self._heirs_of(self._journal.retractions(origin, key))))

    def stand_in(self, origin: OriginId, key: Key) -> bool:
        """Whether what the origin has under the name may be all that it has of a file that was renamed."""
        return next(self._heirs_of(self._journal.retractions(origin, key)), None) is not None

    def _heirs_of(self, rows: list[StagedRecord]) -> Iterator[StagedRecord]:
        """Of these retractions those that the origin has not got yet. One that is lost counts until what it left has
        been given back; one that never goes up does not."""
        for row in rows:
            heir = self._journal.get(row.heir) if row.heir else None
            if heir is not None and self._order.uploads(heir):
                yield heir

    def _is_on_its_way(self, heir: StagedRecord) -> bool:
        failure = self._failures.get(heir.id)
        refused = failure is not None and failure.permanent
        # What waits for others itself is left out: no circle comes of that.
        return not (heir.state in _ENDED or refused or self._order.is_open(heir) or self._order.may_wait(heir))

    def _waits_for(self, record: StagedRecord, wanted: StagedRecord) -> bool:
        """Whether ``record`` has to wait for ``wanted``, or for one that does."""
        seen: set[int] = set()
        left = [record]
        while left:
            rows = self._journal.retractions(*left.pop().lane)
            for heir in self._heirs_of(rows):
                if heir.id == wanted.id:
                    return True
                if heir.id not in seen:
                    seen.add(heir.id)
                    left.append(heir)
        return False
