"""The intents of moving and removing whole directories: written down before, dropped after, taken up after a crash."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tiercache.journal import Intent, Journal, Member, Phase, StagedRecord
from tiercache.model import Key, OriginId, StagedState, is_below
from tiercache.staging import Staging
from tiercache.writeback.order import Order
from tiercache.writeback.staged_names import StagedNames
from tiercache.writeback.succession import retraction_of
from tiercache.writeback.unfinished import parts_of
from tiercache.writeback.uploader import Uploader

log = logging.getLogger(__name__)


class ChangeStatus(NamedTuple):
    """One move or removal of a directory that has not ended."""

    change: str
    """``removal``, ``move``, or ``return`` of a move that had deleted nothing when its engine ended."""
    origin: OriginId
    directory: Key
    target: Key
    left: int
    """Names that are still to be removed; of one that is done just now, objects in it."""
    failed: int
    """Of these, the ones that the origin has refused, and that are tried again."""
    last_error: str


class TreeChanges:
    """Used by whoever holds the names of the directories."""

    def __init__(
        self, journal: Journal, staging: Staging, uploader: Uploader, names: StagedNames, order: Order
    ) -> None:
        self._journal = journal
        self._staging = staging
        self._uploader = uploader
        self._names = names
        self._order = order

    def in_order(self, members: Iterable[Member]) -> tuple[list[Member], list[Member]]:
        """Those whose name tells a reader that others are there, and these others."""
        announcing: list[Member] = []
        others: list[Member] = []
        for member in members:
            (announcing if self._order.announces(member.path) else others).append(member)
        return announcing, others

    def announces(self, key: Key) -> bool:
        """Whether the name tells a reader that others are there."""
        return self._order.announces(key)

    async def intend(self, intent: Intent) -> Intent:
        """Durable before anything is changed at the origin. NoSpace, Broken: then it is not to be. The same for each
        later phase. Returns it with its id."""
        intent = intent if intent.id else intent._replace(id=self._staging.new_id())
        await self._journal.apply(put=[intent], undo=True)
        return intent

    def done(self, intent: Intent) -> None:
        """It has ended, or is told to have failed; the row goes with the next commit."""
        self._journal.put_later(drop=[intent.id])

    async def hand_over(self, intent: Intent, members: Iterable[Member] | None = None) -> None:
        """What is left of it (all, or these members) is done by and by, and absent here from now on."""
        rows = parts_of(intent, self._staging.new_id, self._order.announces, members)
        await self._journal.apply(put=rows, drop=[intent.id])
        self._uploader.retractions.steps.forget()
        for row in rows:
            self._uploader.turns.add(row)

    async def take_over(self, is_open: Callable[[StagedRecord], bool]) -> None:
        """At a start: what the engine before this one was doing. The catalog has followed. ``is_open`` as in
        ``WriteBack.recover``. Idempotent; the origin is asked nothing."""
        for intent in self._journal.intents():
            log.info("%s of %r, which an engine was killed in, is ended", intent.change.name.lower(), intent.directory)
            below = self._staged_below(intent)
            gone: list[StagedRecord] = []
            if intent.phase is Phase.REMOVING:
                gone = [record for record in below if not is_open(record)]
            elif intent.phase is Phase.MOVED:
                for record in below:
                    moved = intent.target + record.key[len(intent.directory) :]
                    await self._names.rename(record.id, moved, durable=False)
            rows = parts_of(intent, self._staging.new_id, self._order.announces)
            rows += [retraction_of(record, self._staging.new_id()) for record in gone if record.attempts]
            await self._journal.apply(put=rows, drop=[intent.id, *(record.id for record in gone)])
        self._uploader.retractions.steps.forget()

    def _staged_below(self, intent: Intent) -> list[StagedRecord]:
        return [
            record
            for record in self._journal.records()
            if record.origin == intent.origin
            and record.published
            and record.state is not StagedState.LOST
            and is_below(record.key, intent.directory)
        ]

    def goes_on(self) -> bool:
        """Whether anything is left to do that the origin does not refuse for good."""
        failures = self._uploader.failures
        rows = [
            self._uploader.retractions.waits_for(row).id
            for row in self._journal.retractions()
            if row.part_of is not None
        ]
        return any(row_id not in failures or not failures[row_id].permanent for row_id in rows)

    def status(self) -> list[ChangeStatus]:
        """All that are under way, and all that earlier engines left."""
        found = [
            ChangeStatus(_word(i), i.origin, i.directory, i.target, len(i.members), 0, "")
            for i in self._journal.intents()
        ]
        groups: dict[tuple[object, ...], list[StagedRecord]] = {}
        for row in self._journal.retractions():
            if row.part_of is not None:
                groups.setdefault((row.origin, *row.part_of.whole), []).append(row)
        return found + [_status_of(rows, self._uploader.failures.keys()) for rows in groups.values()]


def _word(intent: Intent) -> str:
    return "move" if intent.phase is Phase.COPYING else intent.change.name.lower()


def _status_of(rows: Sequence[StagedRecord], failed: Iterable[int]) -> ChangeStatus:
    part, failures = rows[0].part_of, set(failed)
    assert part is not None
    refused = [row for row in rows if row.id in failures]
    error = refused[0].last_error if refused else ""
    return ChangeStatus(
        part.change.name.lower(), rows[0].origin, part.directory, part.target, len(rows), len(refused), error
    )
