"""The barrier: wait until staged files have reached their end, with progress, a deadline and an honest result."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import trio

from tiercache.journal import Journal, StagedRecord
from tiercache.model import StagedState
from tiercache.writeback.uploader import Uploader

ENDED = frozenset({StagedState.CONFLICT, StagedState.LOST})


class DrainResult(NamedTuple):
    """``done``: files that reached the origin (or were deleted) meanwhile. ``left``: ids still here. ``errors``: for
    those of them in conflict, lost or failing, why."""

    done: int
    left: list[int]
    errors: dict[int, str]


class DrainProgress(NamedTuple):
    """What a progress callback is told at each change."""

    done: int
    total: int
    left_bytes: int


class Drain:
    """One run of the barrier."""

    def __init__(self, journal: Journal, uploader: Uploader, ids: list[int], *, retractions: bool) -> None:
        self._journal = journal
        self._uploader = uploader
        self._ids = ids
        self._with_retractions = retractions
        # Failures from before the drain are no reason to give up: each file gets one try first.
        self._failed_before = dict(uploader.failures)

    async def run(self, deadline_s: float, progress: Callable[[DrainProgress], None] | None) -> DrainResult:
        ids = set(self._ids)
        # Retractions belong to a drain of everything: then they are hurried too.
        meant = None if self._with_retractions else lambda record: record.id in ids
        with self._uploader.hurrying(meant), trio.move_on_after(deadline_s):
            while self._must_wait():
                self._tell(progress)
                await self._uploader.changed.heard()
        self._tell(progress)
        return self._result()

    def _left(self) -> list[StagedRecord]:
        return [record for i in self._ids if (record := self._journal.get(i)) is not None]

    def _must_wait(self) -> bool:
        if any(self._is_pending(record) for record in self._left()):
            return True
        retractions = self._journal.retractions() if self._with_retractions else []
        return any(self._is_pending(record) for record in retractions)

    def _is_pending(self, record: StagedRecord) -> bool:
        if record.state in ENDED:
            return False
        if record.state is StagedState.STAGED:
            return record.moves is not None  # it is sealed again as soon as its directory has been renamed
        first = self._uploader.retractions.waits_for(record)
        if first.state is not StagedState.CANCELLED and first.id != record.id:
            return self._is_pending(first)  # the file that was renamed
        cause = first.id
        failure = self._uploader.failures.get(cause)
        tried = failure is not None and failure != self._failed_before.get(cause)
        return not (tried and failure is not None and failure.permanent)

    def _tell(self, progress: Callable[[DrainProgress], None] | None) -> None:
        if progress is not None:
            left = self._left()
            left_bytes = sum(record.size_bytes - self._sent(record) for record in left)
            progress(DrainProgress(len(self._ids) - len(left), len(self._ids), left_bytes))

    def _sent(self, record: StagedRecord) -> int:
        attempt = self._uploader.attempts.get(record.id)
        return min(attempt.sent_bytes, record.size_bytes) if attempt is not None else 0

    def _result(self) -> DrainResult:
        left = self._left()
        errors = {record.id: record.last_error for record in left if record.last_error}
        return DrainResult(len(self._ids) - len(left), [record.id for record in left], errors)
