"""The end of an upload that the origin has confirmed.

Order of a commit, each step repeatable after a crash behind any other:
origin confirms → the confirmation is durable in the journal → the file becomes a cached version → the catalog is told
→ the row is dropped, and in the same transaction newer staged files of the name are based on the new version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from tiercache.cache.words import VersionRef, version_ref
from tiercache.errors import TierCacheError
from tiercache.journal import Journal, StagedRecord
from tiercache.metrics import Metrics
from tiercache.model import ObjectStat
from tiercache.origins.base import Origin
from tiercache.staging import Staging
from tiercache.writeback.succession import based_on, committed_stat, is_being_written_after, is_newer

log = logging.getLogger(__name__)


class Adopts(Protocol):
    """What write-back needs of the cache."""

    def adopt(self, version: VersionRef, path: str, checksums: bytes) -> bool:
        """Rename ``path`` into a tier as the complete ``version``; False, and ``path`` untouched, if not admitted."""
        ...


class Commits:
    """Takes what was confirmed out of the journal. ``on_commit`` tells the catalog, ``on_clean`` all who wait."""

    def __init__(
        self,
        journal: Journal,
        staging: Staging,
        cache: Adopts,
        resolve_origin: Callable[[StagedRecord], Origin],
        *,
        metrics: Metrics,
        on_commit: Callable[[StagedRecord, ObjectStat], None],
        on_clean: Callable[[int], None],
    ) -> None:
        self._journal = journal
        self._staging = staging
        self._cache = cache
        self._resolve_origin = resolve_origin
        self._metrics = metrics
        self._on_commit = on_commit
        self._on_clean = on_clean

    async def confirm(self, record: StagedRecord, stat: ObjectStat) -> StagedRecord:
        """Make durable that the origin has the bytes."""
        current = self._journal.get(record.id)
        assert current is not None
        confirmed = current._replace(committed_etag=stat.etag, committed_ns=stat.modified_ns)
        await self._journal.put(confirmed)
        return confirmed

    async def finish(self, record: StagedRecord, checksums: bytes) -> None:
        """The last steps, for a record whose confirmation is durable. Without ``checksums`` the file is not cached."""
        stat = committed_stat(record)
        others = self._journal.at(*record.lane)
        newer = [other for other in others if is_newer(other, record) or is_being_written_after(other, record)]
        adopted = bool(checksums or not record.size_bytes) and not newer and self._adopt(record, stat, checksums)
        self._on_commit(record, stat)
        stale = [other.id for other in self._journal.retractions(*record.lane)]
        self._journal.put_later(put=[based_on(other, record, stat) for other in newer], drop=[record.id, *stale])
        self._metrics.uploads.labels(outcome="committed").inc()
        self.discard_bytes(record.id, adopted=adopted)
        self._on_clean(record.id)
        await self._journal.flush()

    def _adopt(self, record: StagedRecord, stat: ObjectStat, checksums: bytes) -> bool:
        # One that we hold ourselves is being removed, for who has it open: its bytes would have no place but the cache.
        if self._staging.is_written_elsewhere(record.id, while_held=False):
            return False  # left open when its mount was taken away, or by a child of an fsspec writer
        try:
            version = version_ref(self._resolve_origin(record), record.origin, stat)
            return self._cache.adopt(version, self._staging.path(record.id), checksums)
        except (TierCacheError, OSError) as error:
            # A tier that fails is a tier that misses: the origin has the bytes.
            log.warning("an uploaded file was not taken into the cache: %s", error)
            return False

    def discard_bytes(self, staged_id: int, *, adopted: bool = False) -> None:
        """The staged file is not needed any more; ``adopted``: the cache has it."""
        try:
            if adopted:
                self._staging.closed(staged_id)
            else:
                self._staging.delete(staged_id)
        except TierCacheError as error:
            log.warning("a staged file that is no longer needed stays until the next start: %s", error)
