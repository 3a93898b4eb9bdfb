"""Synced, sealed, opened again: what happens to the bytes of one staged file under its name."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import trio

from tiercache.checksum import file_checksums, joined_digest
from tiercache.errors import Lost, TierCacheError
from tiercache.journal import ConditionKind, Journal, StagedRecord, next_upload_id
from tiercache.model import Attributes, StagedState
from tiercache.staging import StagedFile, Staging
from tiercache.writeback.succession import shown, taken_over
from tiercache.writeback.uploader import Uploader


class _Synced(NamedTuple):
    """What a sync covers."""

    size_bytes: int
    mtime_ns: int
    digest: bytes = b""


class Seals:
    """Order of a sync: the data, then the journal, then the name."""

    def __init__(self, journal: Journal, staging: Staging, uploader: Uploader) -> None:
        self._journal = journal
        self._staging = staging
        self._uploader = uploader

    async def sync(self, staged_id: int, *, attributes: Attributes | None = None) -> None:
        """Make what was written so far durable: data, then the journal, then the name. Lost when an fsync of this
        file failed, now or ever. A file whose record is gone (clean, or unlinked) needs no promise."""
        if self._journal.get(staged_id) is None:
            return
        synced = await self._sync_data(staged_id)
        record = self._journal.get(staged_id)
        if record is not None:
            await self._journal.put(_synced(record, synced, attributes))
            await self._sync_name(staged_id)

    async def secure(self, staged_id: int, replaced: Iterable[StagedRecord], *, left: bool = False) -> None:
        """Before synced bytes, or those that the origin has (``left``), go for another staged file, that one is synced
        too, or a power cut could take both: the rule of local filesystems for a rename over a file. Lost when it cannot
        be."""
        if not left and not any(record.synced_bytes >= 0 for record in replaced):
            return
        record = self._journal.get(staged_id)
        if record is not None and not self._is_synced(record):
            await self.sync(staged_id)

    def _is_synced(self, record: StagedRecord) -> bool:
        """Whether nothing has changed the file since its last sync, as far as its own time tells: kernels before 6.13
        tell of no change within some milliseconds of the one before."""
        file = self._staging.open(record.id)
        return (record.synced_bytes, record.synced_ns) == (file.size_bytes, file.mtime_ns)

    async def _sync_data(self, staged_id: int, *, last: bool = False) -> _Synced:
        """``last``: nobody writes the file any more, so a digest of it makes sense."""
        self._must_be_sound(staged_id)
        file = self._staging.open(staged_id)
        synced = _Synced(self._staging.measure(staged_id), file.mtime_ns)
        try:
            if last:
                return synced._replace(digest=await self._sync_and_digest(file, synced.size_bytes))
            await self._staging.sync_data(file)
        except Lost as error:
            record = self._journal.get(staged_id)
            if record is not None:
                await self._journal.put(record._replace(suspect=True, last_error=str(error)))
            raise
        return synced

    async def _sync_and_digest(self, file: StagedFile, size_bytes: int) -> bytes:
        """Both at once: the bytes are still in the page cache, and the disk is slower than the checksum."""
        checksums: bytes | None = None

        async def read(fd: int) -> None:
            nonlocal checksums
            with suppress(OSError):  # no digest then: only what cannot be written is a failure here
                checksums = await trio.to_thread.run_sync(file_checksums, fd, size_bytes)

        error: TierCacheError | None = None
        with file.held() as fd:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, fd)
                try:
                    await self._staging.sync_data(file)
                except TierCacheError as failed:
                    error = failed
        if error is not None:
            raise error
        return b"" if checksums is None else joined_digest(checksums)

    async def _sync_name(self, staged_id: int) -> None:
        file = self._staging.opened(staged_id)
        if file is not None:
            await self._staging.sync_name(file)

    def _must_be_sound(self, staged_id: int) -> None:
        record = self._journal.get(staged_id)
        if record is not None and (record.suspect or record.state is StagedState.LOST):
            raise Lost(f"{shown(record)}: {record.last_error}")

    async def seal(
        self, staged_id: int, *, attributes: Attributes | None = None, sync: bool = False
    ) -> StagedRecord | None:
        """Nobody writes the file any more: publish it and let it go up. ``sync`` makes the bytes durable before.
        None if the record is gone. Lost, when its bytes cannot be trusted: then it never goes up, and is kept aside."""
        record = self._journal.get(staged_id)
        if record is None:
            return None
        assert not record.spilled, "sealed bytes are whole"
        if record.suspect:
            await self._uploader.lose(record, record.last_error)
        self._must_be_sound(staged_id)
        synced = await self._sync_data(staged_id, last=True) if sync else None
        record = self._journal.get(staged_id)
        if record is None or record.state not in (StagedState.STAGED, StagedState.CONFLICT):
            return record
        if synced is not None:
            record = _synced(record, synced, attributes)
        sealed = self._sealed(record, attributes)
        try:
            if sync or record.synced_bytes >= 0:
                await self._journal.apply(put=[sealed, *self._with_it(sealed)])
                await self._sync_name(staged_id)
            else:
                # Nobody ever asked that this file should survive a power cut, and close promises it for none.
                await self._journal.note(put=[sealed, *self._with_it(sealed)])
        finally:  # also when it is not durable: whoever closes the file is told, and the bytes are on their way
            current = self._on_its_way(staged_id)
        return current

    def seal_now(self, staged_id: int, attributes: Attributes) -> bool:
        """``seal`` of a file that nobody ever synced, where nothing has to be waited for; else False, and nothing has
        changed."""
        record = self._journal.get(staged_id)
        if record is None or record.state is not StagedState.STAGED or record.suspect or record.synced_bytes >= 0:
            return False
        if record.spilled:
            return False
        sealed = self._sealed(record, attributes)
        if not self._journal.note_now([sealed, *self._with_it(sealed)]):
            return False
        self._on_its_way(staged_id)
        return True

    def _sealed(self, record: StagedRecord, attributes: Attributes | None) -> StagedRecord:
        size_bytes = self._staging.measure(record.id)
        all_synced = self._is_synced(record)
        taken = self._staging.new_id()
        return record._replace(
            state=StagedState.SEALED,
            published=True,
            size_bytes=size_bytes,
            unsynced=record.synced_bytes >= 0 and not all_synced,
            digest=record.digest if all_synced else b"",
            attributes=attributes or record.attributes,
            upload_id=next_upload_id(record.upload_id),
            file_inode=self._staging.open(record.id).inode,
            sealed_ns=time.time_ns(),
            taken=taken,
            first_seal=record.first_seal or taken,
            last_error="",
            yields_to="",
        )

    def _with_it(self, sealed: StagedRecord) -> list[StagedRecord]:
        """What has to be noted together with a seal."""
        return taken_over(self._journal.retractions(*sealed.lane), sealed)

    def _on_its_way(self, staged_id: int) -> StagedRecord | None:
        current = self._journal.get(staged_id)
        if current is not None and current.state is StagedState.SEALED:
            self._staging.rest(staged_id)
            self._uploader.enqueue_sealed(current)
            self._uploader.state_changed(current)
        return current

    async def insist(self, staged_id: int) -> None:
        """Let a file in conflict go up over whatever the origin has; of one that a power cut tore, what is left of it.
        Lost, when its bytes cannot be trusted."""
        record = self._journal.get(staged_id)
        if record is not None and record.state is StagedState.CONFLICT:
            wanted = record._replace(condition=ConditionKind.ALWAYS, base_etag="", torn=False)
            await self._journal.apply(put=[wanted], undo=True)
            await self.seal(staged_id)

    async def unseal(self, staged_id: int, *, keep_torn: bool = False) -> bool:
        """Open a sealed file for writing again. False while it is being sent (or is gone): write a second one then,
        which will follow. Lost if there is nothing sound to write to. What a power cut may have torn is its writer's
        matter from now on; ``keep_torn`` when it is not going to be written."""
        record = self._journal.get(staged_id)
        if record is None or record.state is StagedState.UPLOADING or record.committed_etag:
            return False
        self._must_be_sound(staged_id)
        opened = record._replace(state=StagedState.STAGED, digest=b"")
        if record.torn and not keep_torn:
            opened = opened._replace(torn=False, last_error="")
        if opened.state is record.state and opened.torn == record.torn:
            return True
        self._uploader.forget(staged_id)
        self._staging.wake(staged_id)
        # Durable before the first write: the sealed size is no longer what the file must have.
        await self._journal.put(opened)
        self._uploader.state_changed(opened)
        return True


def _synced(record: StagedRecord, synced: _Synced, attributes: Attributes | None) -> StagedRecord:
    now = record._replace(synced_bytes=synced.size_bytes, synced_ns=synced.mtime_ns)
    if record.state is not StagedState.STAGED:
        return now._replace(unsynced=record.size_bytes != synced.size_bytes)
    return now._replace(size_bytes=synced.size_bytes, digest=synced.digest, attributes=attributes or record.attributes)
