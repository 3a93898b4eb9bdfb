"""Synced, sealed, opened again: what happens to the bytes of one staged file under its name."""

from __future__ import annotations

import time

from tiercache.errors import Lost
from tiercache.journal import Journal, StagedRecord, next_upload_id
from tiercache.model import Attributes, StagedState
from tiercache.staging import Staging
from tiercache.writeback.succession import shown, taken_over
from tiercache.writeback.uploader import Uploader


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
        size_bytes = await self._sync_data(staged_id)
        record = self._journal.get(staged_id)
        if record is not None:
            await self._journal.put(_synced(record, size_bytes, attributes))
            await self._sync_name(staged_id)

    async def _sync_data(self, staged_id: int) -> int:
        self._must_be_sound(staged_id)
        file = self._staging.open(staged_id)
        size_bytes = self._staging.measure(staged_id)
        try:
            await self._staging.sync_data(file)
        except Lost as error:
            record = self._journal.get(staged_id)
            if record is not None:
                await self._journal.put(record._replace(suspect=True, last_error=str(error)))
            raise
        return size_bytes

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
        if record.suspect:
            await self._uploader.lose(record, record.last_error)
        self._must_be_sound(staged_id)
        size_bytes = await self._sync_data(staged_id) if sync else self._staging.measure(staged_id)
        record = self._journal.get(staged_id)
        if record is None or record.state not in (StagedState.STAGED, StagedState.CONFLICT):
            return record
        if sync:
            record = _synced(record, size_bytes, attributes)
        sealed = self._sealed(record, size_bytes, attributes)
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
        sealed = self._sealed(record, self._staging.measure(staged_id), attributes)
        if not self._journal.note_now([sealed, *self._with_it(sealed)]):
            return False
        self._on_its_way(staged_id)
        return True

    def _sealed(self, record: StagedRecord, size_bytes: int, attributes: Attributes | None) -> StagedRecord:
        return record._replace(
            state=StagedState.SEALED,
            published=True,
            size_bytes=size_bytes,
            attributes=attributes or record.attributes,
            upload_id=next_upload_id(record.upload_id),
            file_inode=self._staging.open(record.id).inode,
            sealed_ns=time.time_ns(),
            taken=self._staging.new_id(),
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

    async def unseal(self, staged_id: int) -> bool:
        """Open a sealed file for writing again. False while it is being sent (or is gone): write a second one then,
        which will follow. Lost if there is nothing sound to write to."""
        record = self._journal.get(staged_id)
        if record is None or record.state is StagedState.UPLOADING or record.committed_etag:
            return False
        self._must_be_sound(staged_id)
        if record.state is StagedState.STAGED:
            return True
        self._uploader.forget(staged_id)
        self._staging.wake(staged_id)
        opened = record._replace(state=StagedState.STAGED)
        # Durable before the first write: the sealed size is no longer what the file must have.
        await self._journal.put(opened)
        self._uploader.state_changed(opened)
        return True


def _synced(record: StagedRecord, size_bytes: int, attributes: Attributes | None) -> StagedRecord:
    if record.state is not StagedState.STAGED:
        return record._replace(synced_bytes=size_bytes)
    return record._replace(synced_bytes=size_bytes, size_bytes=size_bytes, attributes=attributes or record.attributes)
