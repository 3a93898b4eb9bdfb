"""Cancelled uploads whose result must not stay at the origin, and what else is to be removed there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from tiercache.errors import Absent, Changed, TierCacheError
from tiercache.journal import Journal, StagedRecord
from tiercache.memory import Memory
from tiercache.model import Kind, StagedState
from tiercache.origins.base import Origin
from tiercache.writeback.turns import Lane, Turns
from tiercache.writeback.unfinished import Steps, finish_part
from tiercache.writeback.unwanted import Unwanted
from tiercache.writeback.upload import Moved, was_moved


class Retractions:
    """Works off the journal's CANCELLED rows, one origin call in a worker thread for each."""

    def __init__(
        self,
        journal: Journal,
        resolve_origin: Callable[[StagedRecord], Origin],
        turns: Turns,
        threads: trio.CapacityLimiter,
        on_moved: Callable[[StagedRecord], None],
        memory: Memory,
    ) -> None:
        self._journal = journal
        self._resolve_origin = resolve_origin
        self._turns = turns
        self._threads = threads
        self._on_moved = on_moved
        self._memory = memory
        self.steps = Steps(journal.retractions, journal.retraction)
        """Of what is left of moves and removals of directories, the order."""

    def waits_for(self, record: StagedRecord) -> StagedRecord:
        """The one that is to be done before this one; or this."""
        return self.steps.ahead_of(record) or record

    def wake(self, lane: Lane) -> None:
        """The record that was to replace their result is not going to do it (any more)."""
        for record in self._journal.retractions(*lane):
            if not self._is_dormant(record):
                self._turns.add(record)

    def _is_dormant(self, record: StagedRecord) -> bool:
        """Whether an upload that is due replaces the unwanted object anyway: better than a time without any."""
        heir = self._journal.get(record.replaced_by)
        return (
            heir is not None
            and heir.lane == record.lane
            and heir.state in (StagedState.STAGED, StagedState.SEALED, StagedState.UPLOADING)
        )

    async def work_off(self, record: StagedRecord) -> bool:
        """Whether it is done; else something else has to happen before."""
        if self._is_dormant(record):
            return False
        origin = self._resolve_origin(record)
        try:
            work = partial(finish_part, memory=self._memory) if record.part_of is not None else retract
            moved = await trio.to_thread.run_sync(work, origin, record, limiter=self._threads, abandon_on_cancel=True)
        except Exception:
            if not self.was_renewed(record, origin):
                raise
            self._turns.add(record)
            return False
        if moved is not None:
            self._on_moved(record)  # its directory was renamed when the engine ended: it is, where it is now
            return False
        await self._journal.drop(record.id)
        return True

    def was_renewed(self, record: StagedRecord, origin: Origin | None) -> bool:
        """Whether a client has brought other credentials since a try began: its failure says nothing about these."""
        try:
            return origin is not None and self._resolve_origin(record) is not origin
        except TierCacheError:
            return False


def retract(origin: Origin, record: StagedRecord) -> Moved | None:
    """Remove what a cancelled upload brought, or a renamed file left, if nobody has replaced it since."""
    if record.moves is not None and was_moved(origin, record.moves):
        return Moved()
    unwanted = Unwanted.of([record])
    unwanted.abort(origin, record.key)
    try:
        stat = origin.stat(record.key)
    except Absent:
        return None
    is_our_link = bool(record.link_target) and stat.link_target == record.link_target
    if stat.kind is not Kind.DIRECTORY and (is_our_link or unwanted.includes(stat)):
        with suppress(Absent, Changed):
            origin.delete(record.key, stat.etag)
    return None
