"""Whose turn it is: so many at a time, one for each name; who comes while its name is busy waits until it is free, and
who has others ahead until they have gone up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import trio

from tiercache.journal import Journal, StagedRecord
from tiercache.model import Key, OriginId, StagedState
from tiercache.writeback.bell import Bell
from tiercache.writeback.queue import Bulk, UploadQueue

Lane = tuple[OriginId, Key]

_HAVE_TURNS = (StagedState.SEALED, StagedState.UPLOADING, StagedState.CANCELLED)


class Turns:
    """``changed`` rings when a name falls free, and whenever somebody may have less ``ahead``, which tells of a file
    whether another has to go up before it."""

    def __init__(self, journal: Journal, *, slots: int, changed: Bell, ahead: Callable[[StagedRecord], bool]) -> None:
        self._journal = journal
        self._changed = changed
        self._ahead = ahead
        self._queue = UploadQueue(slots)
        self._work = Bell()
        self._busy: dict[Lane, int] = {}
        self._parked: dict[Lane, set[int]] = {}
        self._held: set[int] = set()
        self._barred: set[int] = set()

    def add(self, record: StagedRecord, *, due_s: float = 0.0) -> None:
        """Let a sealed file or a retraction have its turn, not before ``due_s`` on trio's clock; one that is barred
        has none."""
        if record.id in self._barred:
            return
        for parked in self._parked.values():
            parked.discard(record.id)
        self._held.discard(record.id)
        size_bytes = 0 if record.state is StagedState.CANCELLED else record.size_bytes
        self._queue.add(record.id, size_bytes, due_s=due_s, now_s=trio.current_time())
        self._work.ring()

    def remove(self, staged_id: int) -> None:
        """It does not want its turn any more."""
        self._queue.remove(staged_id)
        self._held.discard(staged_id)
        self._barred.discard(staged_id)

    def bar(self, staged_id: int) -> None:
        """It gets no turn until it is let go, or is gone; one that has its turn now goes on."""
        self.remove(staged_id)
        self._barred.add(staged_id)

    def let_go(self, staged_id: int) -> None:
        """It may be added again."""
        self._barred.discard(staged_id)

    def waits(self, record: StagedRecord) -> bool:
        """Whether it waits for its turn and nothing else."""
        return record.id in self._queue or record.id in self._held or record.id in self._parked.get(record.lane, ())

    def is_at_work(self, record: StagedRecord) -> bool:
        """Whether it has its turn now."""
        return self._busy.get(record.lane) == record.id

    def is_wanted(self, record: StagedRecord, lane: Lane) -> bool:
        """Whether a record, as it is now, still wants the turn that it got for a name: not opened again, barred, or
        renamed and queued anew."""
        return record.lane == lane and record.state in _HAVE_TURNS and record.id not in self._barred

    @property
    def busy_lanes(self) -> list[Lane]:
        """Names that something is under way for."""
        return list(self._busy)

    def is_busy(self, lane: Lane) -> bool:
        return lane in self._busy

    def hurry(self, ids: Collection[int] | None = None) -> None:
        """What waits for its time is due now: everything, or these."""
        self._queue.hurry(ids)
        self._work.ring()

    async def give(self, nursery: trio.Nursery, work: Callable[[StagedRecord], Awaitable[None]]) -> None:
        """Call ``work`` for one after the other, in the nursery, until cancelled."""
        nursery.start_soon(self._look_again)
        while True:
            self._start_due(nursery, work)
            with trio.move_on_at(self._queue.next_due_s()):
                await self._work.heard()

    async def _look_again(self) -> None:
        """Whoever had others ahead may have none now."""
        while True:
            await self._changed.heard()
            held, self._held = self._held, set()
            for staged_id in sorted(held):
                record = self._record(staged_id)
                if record is not None:
                    self.add(record)

    def _start_due(self, nursery: trio.Nursery, work: Callable[[StagedRecord], Awaitable[None]]) -> None:
        while (taken := self._queue.take(trio.current_time())) is not None:
            staged_id, bulk = taken
            record = self._record(staged_id)
            if record is None or record.state not in _HAVE_TURNS:
                self._queue.ended(bulk)
            elif record.lane in self._busy:
                self._queue.ended(bulk)
                self._parked.setdefault(record.lane, set()).add(staged_id)
            elif self._ahead(record):
                self._queue.ended(bulk)
                self._held.add(staged_id)
            else:
                self._busy[record.lane] = staged_id
                nursery.start_soon(self._turn, record, bulk, work)

    async def _turn(self, taken: StagedRecord, bulk: Bulk, work: Callable[[StagedRecord], Awaitable[None]]) -> None:
        lane = taken.lane
        try:
            record = self._record(taken.id)
            if record is not None and self.is_wanted(record, lane):
                await work(record)
        except trio.Cancelled:
            # The service ends in the middle of it: whoever runs it again goes on with this.
            record = self._record(taken.id)
            if record is not None and record.state in _HAVE_TURNS:
                self.add(record)
            raise
        finally:
            del self._busy[lane]
            self._queue.ended(bulk)
            for staged_id in sorted(self._parked.pop(lane, ())):
                parked = self._record(staged_id)
                if parked is not None:
                    self.add(parked)
            self._work.ring()
            self._changed.ring()

    def _record(self, staged_id: int) -> StagedRecord | None:
        return self._journal.get(staged_id) or self._journal.retraction(staged_id)
