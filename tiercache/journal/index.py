"""The rows of the journal by id, by name, and by the renamed file that they wait for."""

from __future__ import annotations

from tiercache.journal.records import StagedRecord
from tiercache.model import Key, OriginId


class RecordIndex:
    """In memory; rows are told apart by their ids."""

    def __init__(self) -> None:
        self._records: dict[int, StagedRecord] = {}
        self._by_lane: dict[tuple[OriginId, Key], dict[int, None]] = {}
        self._by_heir: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def get(self, staged_id: int) -> StagedRecord | None:
        return self._records.get(staged_id)

    def all(self) -> list[StagedRecord]:
        """In the order in which they came."""
        return list(self._records.values())

    def lane(self, origin: OriginId, key: Key) -> list[StagedRecord]:
        """Those of one name, that with the newest bytes last."""
        lane = [self._records[staged_id] for staged_id in self._by_lane.get((origin, key), ())]
        return sorted(lane, key=lambda record: record.rank)

    def left_by(self, heir: int) -> list[StagedRecord]:
        """Those that wait for this file."""
        return [self._records[staged_id] for staged_id in self._by_heir.get(heir, ())]

    def put(self, record: StagedRecord) -> None:
        """Add or replace."""
        old = self._records.get(record.id)
        if old is not None and (old.lane, old.heir) != (record.lane, record.heir):
            self._leave(old)
        self._records[record.id] = record
        self._by_lane.setdefault(record.lane, {})[record.id] = None
        if record.heir:
            self._by_heir.setdefault(record.heir, {})[record.id] = None

    def remove(self, staged_id: int) -> bool:
        """Whether it was there."""
        old = self._records.pop(staged_id, None)
        if old is not None:
            self._leave(old)
        return old is not None

    def _leave(self, record: StagedRecord) -> None:
        lane = self._by_lane[record.lane]
        del lane[record.id]
        if not lane:
            del self._by_lane[record.lane]
        waiting = self._by_heir.get(record.heir, {})
        waiting.pop(record.id, None)
        if not waiting:
            self._by_heir.pop(record.heir, None)
