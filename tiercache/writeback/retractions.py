"""Cancelled uploads whose result must not stay at the origin, and what else is to be removed there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

import trio

from tiercache.errors import Absent, Changed, Exists, TierCacheError
from tiercache.journal import Journal, StagedRecord
from tiercache.memory import Memory
from tiercache.model import Kind, StagedState, parent_of
from tiercache.origins.base import Origin
from tiercache.writeback.heirs import Heirs
from tiercache.writeback.retry import Failure
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
        failures: Mapping[int, Failure],
        threads: trio.CapacityLimiter,
        heirs: Heirs,
        memory: Memory,
        *,
        on_moved: Callable[[StagedRecord], None],
        on_kept: Callable[[StagedRecord], None],
    ) -> None:
        """``on_kept``: what waited for a renamed file stays, under its name."""
        self._journal = journal
        self._resolve_origin = resolve_origin
        self._turns = turns
        self._failures = failures
        self._threads = threads
        self._heirs = heirs
        self._memory = memory
        self._on_moved = on_moved
        self._on_kept = on_kept
        self.steps = Steps(journal.retractions, journal.retraction)
        """Of what is left of moves and removals of directories, the order."""

    def waits_for(self, record: StagedRecord) -> StagedRecord:
        """The one that is to be done before this one, or the file that has to arrive; or this."""
        return self.steps.ahead_of(record) or self._heirs.awaited_by(record) or record

    def has_copy_of(self, record: StagedRecord) -> bool:
        """Whether what the origin has of a file is still needed, to tell a copy of it that is to be removed."""
        copy = self.steps.copy_of(record)
        return copy is not None and self.waits_for(copy).id not in self._failures

    def is_held(self, record: StagedRecord) -> bool:
        """Whether it gets no turn now. That its directory was renamed is looked for, whatever it waits for."""
        return record.moves is None and self.waits_for(record) is not record

    def is_due(self, record: StagedRecord) -> bool:
        """Whether it is done as soon as it has its turn, and has not been refused."""
        has_turn = self._turns.waits(record) or self._turns.is_at_work(record)
        first = self.waits_for(record)
        return has_turn and first.state is StagedState.CANCELLED and first.id not in self._failures

    def hasten(self, records: Iterable[StagedRecord]) -> None:
        """They wait for no file any more: they are in the way of something else, maybe with their directory."""
        waiting = [record for record in records if self._heirs.awaited_by(record) is not None]
        self._journal.put_later(put=[record._replace(heir=0, keeps_directory=False) for record in waiting])
        for record in waiting:
            self._turns.add(record)

    def give_back(self, staged_id: int) -> None:
        """A renamed file is lost, or given up: what the origin has of it, under its old names, is all there is and
        shows itself again, unless another file has taken the name."""
        rows = self._journal.left_by(staged_id)
        kept = [record for record in rows if not self._is_dormant(record)]
        parts = [record._replace(base_etag="", upload_id="", heir=0) for record in kept if record.parted is not None]
        taken = [record._replace(heir=0) for record in rows if self._is_dormant(record)]
        self._journal.put_later(put=[*parts, *taken], drop=[record.id for record in kept if record.parted is None])
        for record in parts:
            self._turns.add(record)
        for record in kept:
            self._on_kept(record)

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
        awaits_heir = self._heirs.awaited_by(record) is not None
        try:
            work = partial(finish_part, memory=self._memory) if record.part_of is not None else retract
            if awaits_heir:
                work = look_for_directory
            moved = await trio.to_thread.run_sync(work, origin, record, limiter=self._threads, abandon_on_cancel=True)
        except Exception:
            if not self.was_renewed(record, origin):
                raise
            self._turns.add(record)
            return False
        if moved is not None:
            self._on_moved(record)  # its directory was renamed when the engine ended: it is, where it is now
            return False
        if awaits_heir:
            settled = record._replace(moves=None)
            self._journal.put_later(put=[settled])
            self._turns.add(settled)
            return False
        await self._journal.drop(record.id)
        return True

    def was_renewed(self, record: StagedRecord, origin: Origin | None) -> bool:
        """Whether a client has brought other credentials since a try began: its failure says nothing about these."""
        try:
            return origin is not None and self._resolve_origin(record) is not origin
        except TierCacheError:
            return False


def look_for_directory(origin: Origin, record: StagedRecord) -> Moved | None:
    """Whether the directory of a name was renamed when an engine ended in the middle of that."""
    return Moved() if record.moves is not None and was_moved(origin, record.moves) else None


def retract(origin: Origin, record: StagedRecord) -> Moved | None:
    """Remove what a cancelled upload brought, or a renamed file left, if nobody has replaced it since."""
    if look_for_directory(origin, record) is not None:
        return Moved()
    _remove(origin, record)
    if record.keeps_directory:
        with suppress(Exists):
            origin.make_directory(parent_of(record.key))
    return None


def _remove(origin: Origin, record: StagedRecord) -> None:
    unwanted = Unwanted.of([record])
    unwanted.abort(origin, record.key)
    try:
        stat = origin.stat(record.key)
    except Absent:
        return
    is_our_link = bool(record.link_target) and stat.link_target == record.link_target
    if stat.kind is not Kind.DIRECTORY and (is_our_link or unwanted.includes(stat)):
        with suppress(Absent, Changed):
            origin.delete(record.key, stat.etag)
