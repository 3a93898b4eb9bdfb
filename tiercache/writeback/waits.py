"""Waiting until the origin has the bytes, and what has to be told to whoever waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set

from tiercache.errors import Conflict, Lost, TierCacheError, UploadFailed
from tiercache.journal import Journal, StagedRecord
from tiercache.model import StagedState
from tiercache.staging import Hope, Staging
from tiercache.writeback.succession import shown
from tiercache.writeback.uploader import Uploader


class Waits:
    """``uploads`` tells whether a record's profile uploads at all."""

    def __init__(
        self, journal: Journal, staging: Staging, uploader: Uploader, uploads: Callable[[StagedRecord], bool]
    ) -> None:
        self._journal = journal
        self._staging = staging
        self._uploader = uploader
        self._uploads = uploads
        self.is_spilling: Callable[[], bool] = lambda: False
        """Whether bytes of files that are being written are on their way."""
        # Ids somebody waits for, and where their bytes went if a newer seal took them over.
        self._awaited: Counter[int] = Counter()
        self._successors: dict[int, int] = {}

    async def wait(self, ids: int | Iterable[int]) -> None:
        """Return when the origin has the sealed bytes of all ``ids``, be it as part of a newer seal; also when they
        were deleted. Conflict, Lost; UploadFailed when only a change of rights, names or settings can help."""
        for staged_id in [ids] if isinstance(ids, int) else list(ids):
            await self._wait_for(staged_id)

    async def _wait_for(self, staged_id: int) -> None:
        self._awaited[staged_id] += 1
        record = self._journal.get(staged_id)
        if record is not None and record.state is StagedState.SEALED and staged_id not in self._uploader.failures:
            self._uploader.turns.add(record)  # somebody waits: no delay for it
        try:
            while (record := self._journal.get(staged_id)) is not None:
                error = self.error_of(staged_id)
                failure = self._uploader.failures.get(staged_id)
                if error is not None and (not isinstance(error, UploadFailed) or (failure and failure.permanent)):
                    raise error
                if record.state is StagedState.STAGED:
                    raise UploadFailed(f"{shown(record)}: is open for writing and not on its way to the origin")
                await self._uploader.changed.heard()
            successor = self._successors.get(staged_id)
        finally:
            self._awaited[staged_id] -= 1
            if not self._awaited[staged_id]:
                del self._awaited[staged_id]
                self._successors.pop(staged_id, None)
        if successor is not None:
            await self._wait_for(successor)

    def superseded(self, staged_id: int, newer_id: int) -> None:
        if staged_id in self._awaited:
            self._successors[staged_id] = newer_id

    def error_of(self, staged_id: int) -> TierCacheError | None:
        """What has to be told at the next fsync or close of this file: Conflict, Lost, UploadFailed, or nothing."""
        record = self._journal.get(staged_id)
        if record is None:
            return None
        if record.state is StagedState.CONFLICT:
            return Conflict(f"{shown(record)}: {record.last_error}; your bytes are in {self._staging.path(record.id)}")
        if record.state is StagedState.LOST or record.suspect:
            return Lost(f"{shown(record)}: {record.last_error}")
        if record.last_error:
            return UploadFailed(
                f"{shown(record)}: not yet at the origin after {record.attempts} tries ({record.last_error}); "
                "its bytes are staged"
            )
        return None

    def hope(self, waiting: Set[int]) -> Hope:
        """Whether room in staging is to be expected, while the writers of these files wait for it."""
        if self.is_spilling():
            return Hope.UPLOADS
        hope = Hope.NONE
        for record in self._journal.records():
            if record.state in (StagedState.SEALED, StagedState.UPLOADING):
                failure = self._uploader.failures.get(record.id)
                if failure is None or not failure.permanent:
                    return Hope.UPLOADS
            elif record.state is StagedState.STAGED and record.id not in waiting and self._uploads(record):
                hope = Hope.OPEN_FILES
        return hope
