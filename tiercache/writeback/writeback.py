"""What the engine asks of write-back: seal, unseal, cancel, rename, sync, wait, drain, recover, status."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Set

import trio

from tiercache.config import PROFILES, UploadConfig
from tiercache.errors import Conflict, Lost, TierCacheError, UploadFailed
from tiercache.journal import ConditionKind, Journal, StagedRecord, next_upload_id
from tiercache.memory import Memory
from tiercache.metrics import Metrics
from tiercache.model import Attributes, Key, ObjectStat, OriginId, StagedState, is_below
from tiercache.origins.base import Origin
from tiercache.staging import Hope, Staging
from tiercache.writeback.commit import Adopts
from tiercache.writeback.drain import Drain, DrainProgress, DrainResult
from tiercache.writeback.recovery import Plan, RecoveryReport, make_plan
from tiercache.writeback.status import FileStatus, status_of
from tiercache.writeback.succession import retraction_of
from tiercache.writeback.uploader import Uploader

log = logging.getLogger(__name__)


def profile_uploads(record: StagedRecord) -> bool:
    """Whether the files of this record's profile go to the origin at all."""
    return all(profile.upload for name, profile in PROFILES.items() if name == record.profile)


class WriteBack:
    """Composes journal, staging and uploader. Used from one trio thread.

    ``on_commit`` is called when the origin has a record's bytes and the cache its file (or not), just before the row
    goes; the name may have a newer staged file by then. At recovery it may come for a second time. ``on_state`` is
    called at every change of a record's state, ``on_replaced`` when a file turns out to have been replaced just before
    a crash. None of them must block, nor must ``resolve_origin``.
    """

    def __init__(
        self,
        journal: Journal,
        staging: Staging,
        cache: Adopts,
        resolve_origin: Callable[[StagedRecord], Origin],
        *,
        upload: UploadConfig,
        memory: Memory,
        metrics: Metrics,
        on_commit: Callable[[StagedRecord, ObjectStat], None],
        on_state: Callable[[StagedRecord], None] = lambda record: None,
        on_replaced: Callable[[StagedRecord], None] = lambda record: None,
        upload_delay_s: float = 0.0,
        uploads: Callable[[StagedRecord], bool] = profile_uploads,
        rng: random.Random | None = None,
    ) -> None:
        self._journal = journal
        self._staging = staging
        self._uploads = uploads
        self._uploader = Uploader(
            journal,
            staging,
            cache,
            resolve_origin,
            upload=upload,
            memory=memory,
            metrics=metrics,
            on_commit=on_commit,
            on_state=on_state,
            on_replaced=on_replaced,
            delay_s=upload_delay_s,
            rng=rng or random.Random(),
        )
        self._uploader.on_superseded = self._superseded
        # Ids somebody waits for, and where their bytes went if a newer seal took them over.
        self._awaited: Counter[int] = Counter()
        self._successors: dict[int, int] = {}
        staging.ids_after(journal.last_id)
        staging.budget.hope = self._hope

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Upload what is sealed, until cancelled."""
        await self._uploader.run(task_status=task_status)

    # -- the state of one file ------------------------------------------------------------------------------------

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
            raise Lost(f"{_name(record)}: {record.last_error}")

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
        sealed = record._replace(
            state=StagedState.SEALED,
            published=True,
            size_bytes=size_bytes,
            attributes=attributes or record.attributes,
            upload_id=next_upload_id(record.upload_id),
            file_inode=self._staging.open(staged_id).inode,
            sealed_ns=time.time_ns(),
            taken=self._staging.new_id(),
            last_error="",
            yields_to="",
        )
        try:
            if sync or record.synced_bytes >= 0:
                await self._journal.apply(put=[sealed, *self._replacing(sealed)])
                await self._sync_name(staged_id)
            else:
                # Nobody ever asked that this file should survive a power cut, and close promises it for none.
                await self._journal.note(put=[sealed, *self._replacing(sealed)])
        finally:  # also when it is not durable: whoever closes the file is told, and the bytes are on their way
            current = self._journal.get(staged_id)
            if current is not None and current.state is StagedState.SEALED:
                self._staging.rest(staged_id)
                self._uploader.enqueue_sealed(current)
                self._uploader.state_changed(current)
        return current

    def _replacing(self, heir: StagedRecord) -> list[StagedRecord]:
        """What cancelled uploads may have left under this name needs no deletion: the heir's upload replaces it."""
        return [record._replace(replaced_by=heir.id) for record in self._journal.retractions(*heir.lane)]

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

    async def cancel(self, staged_id: int, *, wait: bool = True, durable: bool = True) -> bool:
        """The name is unlinked or replaced: its bytes never go up, and what is going up now does not stay.

        The file's name in staging goes as well; whoever has it open keeps it until ``Staging.delete``. With ``wait``
        it returns when no upload of ours can land under the key any more, as one must know before writing the key at
        the origin; an origin that hangs makes it wait for the origin's timeout. Without, what lands late is removed
        when it does. Not ``durable``: the origin's change tells after a crash what has happened, and the journal
        follows with its next commit. False if the record is gone already. When the journal fails, nothing has happened.
        """
        record = self._journal.get(staged_id)
        if record is None:
            return False
        family = self._family(record)
        retractions = [self._retraction(member) for member in family if member.attempts]
        self._forget(family)
        if durable:
            await self._change(put=retractions, drop=family, stopped=family)
        else:
            self._journal.put_later(put=retractions, drop=[member.id for member in family])
        self._remove_files(family)
        self._uploader.wake_retractions(record.lane)
        if wait:
            await self.settle(record.origin, record.key)
        return True

    async def _change(
        self, *, put: Iterable[StagedRecord], drop: Iterable[StagedRecord], stopped: Iterable[StagedRecord]
    ) -> None:
        """Change the journal for files whose uploads were stopped for it: all of it, or nothing and they go on."""
        try:
            await self._journal.apply(put=put, drop=[record.id for record in drop], undo=True)
        except BaseException:
            self._uploader.resume(stopped)
            raise

    async def hold_back(self, staged_id: int, *, yields_to: str = "") -> bool:
        """Nothing of this file goes up until it is sealed again: returns when nothing of it can land any more, which a
        hanging origin makes last until its timeout. ``yields_to``: the etag of what is about to be renamed over it.
        False if it has arrived, or is gone."""
        held = await self._hold_back(staged_id)
        record = self._journal.get(staged_id)
        if held and yields_to and record is not None:
            await self._journal.put(record._replace(yields_to=yields_to))
        return held

    async def _hold_back(self, staged_id: int) -> bool:
        while (record := self._journal.get(staged_id)) is not None:
            if record.state is StagedState.UPLOADING or record.committed_etag:
                self._uploader.attempts.stop(staged_id)
                await self._uploader.changed.heard()
            elif record.state is not StagedState.SEALED or await self.unseal(staged_id):
                return True
        return False

    async def rename(
        self, staged_id: int, key: Key, *, base_etag: str = "", left_etag: str = "", durable: bool = True
    ) -> bool:
        """The file has another name: it goes up there, and what is going up to the old one does not stay.

        ``base_etag``: the origin has moved what the bytes were made from along, and this is its etag there. Else the
        upload replaces whatever it finds; only a client's file that must be new still must be. ``left_etag``: the
        origin has this version under the old name, which is to be removed; until it is, ``retractions`` tells the name.
        Other staged files of the new name are replaced in the same transaction, as by ``cancel``. Returns without
        waiting for any upload's end. ``durable`` as with ``cancel``. False if the record is gone: then the object is to
        be moved; when the journal fails, nothing has happened.
        """
        record = self._journal.get(staged_id)
        if record is None:
            return False
        if key == record.key:
            return True
        family = self._family(record)
        replaced = [other for other in self._journal.at(record.origin, key) if other.published]
        moved = [_moved(member, key, taken=self._staging.new_id(), base_etag=base_etag) for member in family]
        heir = moved[-1]
        left = [
            self._retraction(member) for member in family if member.attempts and (member != record or not left_etag)
        ]
        left += [self._retraction(record, left_etag=left_etag)] if left_etag else []
        left += [self._retraction(member, replaced_by=heir.id) for member in replaced if member.attempts]
        left += self._replacing(heir)
        stopped = [*family, *replaced]
        self._forget(stopped)
        if durable:
            await self._change(put=[*moved, *left], drop=replaced, stopped=stopped)
        else:
            self._journal.put_later(put=[*moved, *left], drop=[member.id for member in replaced])
        self._remove_files(replaced)
        for member in moved:
            current = self._journal.get(member.id)
            if current is not None and current.state is StagedState.SEALED:
                self._uploader.enqueue_sealed(current)
            self._uploader.state_changed(current or member)
        self._uploader.wake_retractions(record.lane)
        return True

    async def relocate(self, staged_id: int, key: Key) -> bool:
        """The bytes go to the origin under another name of the same file, once they are sealed again. False when more
        of the file is on its way, or all of it has arrived."""
        record = self._journal.get(staged_id)
        if record is None or len(self._family(record)) > 1 or not await self._hold_back(staged_id):
            return False
        record = self._journal.get(staged_id)
        if record is None:
            return False
        await self._journal.apply(put=[record._replace(key=key)], undo=True)
        return True

    def _forget(self, records: Iterable[StagedRecord]) -> None:
        for record in records:
            self._uploader.forget(record.id)
        self._uploader.changed.ring()
        self._staging.budget.recheck()

    def _remove_files(self, records: Iterable[StagedRecord]) -> None:
        for record in records:
            self._uploader.attempts.unlink_when_idle(record.id)

    def _retraction(self, record: StagedRecord, *, replaced_by: int = 0, left_etag: str = "") -> StagedRecord:
        return retraction_of(record, self._staging.new_id(), replaced_by=replaced_by, left_etag=left_etag)

    def _family(self, record: StagedRecord) -> list[StagedRecord]:
        """The staged files of one inode under one name: at most one that is going up and one that follows."""
        return [
            other
            for other in self._journal.at(*record.lane)
            if other.inode == record.inode and (other.published or other.id == record.id)
        ]

    async def settle(self, origin: OriginId, key: Key) -> None:
        """Return when no upload of ours to ``key`` is under way, and what a cancelled one left has been tried to be
        removed. To be called before the key is changed at the origin directly; at once when there is nothing."""
        lane = (origin, key)
        while self._uploader.turns.is_busy(lane) or self._retraction_is_due(lane):
            await self._uploader.changed.heard()

    async def settle_below(self, origin: OriginId, directory: Key) -> None:
        """The same for every key under a directory that is about to be removed."""
        keys = {key for lane_origin, key in self._uploader.turns.busy_lanes if lane_origin == origin}
        keys |= {record.key for record in self._journal.retractions() if record.origin == origin}
        for key in sorted(keys):
            if is_below(key, directory):
                await self.settle(origin, key)

    def _retraction_is_due(self, lane: tuple[OriginId, Key]) -> bool:
        return self._uploader.running and any(
            record.id not in self._uploader.failures and self._uploader.turns.waits(record)
            for record in self._journal.retractions(*lane)
        )

    async def flush(self) -> None:
        """The origin was changed, and the journal's records follow: durable on return, unless the journal fails. Then
        they are with its next commit."""
        try:
            await self._journal.flush()
        except TierCacheError as error:
            log.error("the journal could not be written yet: %s", error)

    async def changed(self) -> None:
        """Return at the next change of any record's state."""
        await self._uploader.changed.heard()

    # -- waiting --------------------------------------------------------------------------------------------------

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
                    raise UploadFailed(f"{_name(record)}: is open for writing and not on its way to the origin")
                await self._uploader.changed.heard()
            successor = self._successors.get(staged_id)
        finally:
            self._awaited[staged_id] -= 1
            if not self._awaited[staged_id]:
                del self._awaited[staged_id]
                self._successors.pop(staged_id, None)
        if successor is not None:
            await self._wait_for(successor)

    def _superseded(self, staged_id: int, newer_id: int) -> None:
        if staged_id in self._awaited:
            self._successors[staged_id] = newer_id

    async def drain(
        self,
        deadline_s: float,
        ids: Iterable[int] | None = None,
        *,
        progress: Callable[[DrainProgress], None] | None = None,
    ) -> DrainResult:
        """Wait until the sealed files (all, or ``ids``) are clean, or have ended otherwise, or have been refused by the
        origin since the call; no longer than the deadline. Files open for writing are not waited for: seal them first.
        Files of profiles that never upload are left out."""
        everything = ids is None
        chosen = [record.id for record in self._journal.records() if record.published] if ids is None else list(ids)
        chosen = [i for i in chosen if (record := self._journal.get(i)) is None or self._uploads(record)]
        return await Drain(self._journal, self._uploader, chosen, retractions=everything).run(deadline_s, progress)

    def error_of(self, staged_id: int) -> TierCacheError | None:
        """What has to be told at the next fsync or close of this file: Conflict, Lost, UploadFailed, or nothing."""
        record = self._journal.get(staged_id)
        if record is None:
            return None
        if record.state is StagedState.CONFLICT:
            return Conflict(f"{_name(record)}: {record.last_error}; your bytes are in {self._staging.path(record.id)}")
        if record.state is StagedState.LOST or record.suspect:
            return Lost(f"{_name(record)}: {record.last_error}")
        if record.last_error:
            return UploadFailed(
                f"{_name(record)}: not yet at the origin after {record.attempts} tries ({record.last_error}); "
                "its bytes are staged"
            )
        return None

    def _hope(self, waiting: Set[int]) -> Hope:
        """Whether room in staging is to be expected, while the writers of these files wait for it."""
        hope = Hope.NONE
        for record in self._journal.records():
            if record.state in (StagedState.SEALED, StagedState.UPLOADING):
                failure = self._uploader.failures.get(record.id)
                if failure is None or not failure.permanent:
                    return Hope.UPLOADS
            elif record.state is StagedState.STAGED and record.id not in waiting and self._uploads(record):
                hope = Hope.OPEN_FILES
        return hope

    # -- start and status -----------------------------------------------------------------------------------------

    async def recover(self) -> RecoveryReport:
        """Take up what an earlier run left; to be called once, before ``run`` and before anything is staged.
        Idempotent. It asks nothing of the origins: that is the first thing each upload does."""
        files = await trio.to_thread.run_sync(self._staging.scan)
        plan = make_plan(
            self._journal.records(),
            files,
            rebooted=self._journal.rebooted,
            uploads=self._uploads,
            now_ns=time.time_ns(),
        )
        for staged_id, file in files.items():
            self._staging.found(staged_id, file)
        if plan.put or plan.drop:
            await self._journal.apply(put=plan.put, drop=plan.drop)
        await trio.to_thread.run_sync(self._move_files, plan)
        for staged_id in [*plan.set_aside, *plan.delete]:
            self._staging.closed(staged_id)
        for record in plan.committed:
            await self._uploader.finish(record, b"")
        for record in [*plan.queued, *self._journal.retractions()]:
            self._uploader.turns.add(record)
        for record in plan.lost:
            self._uploader.state_changed(record)
        return RecoveryReport(plan.queued, plan.committed, plan.lost, plan.discarded, plan.removed_files)

    def _move_files(self, plan: Plan) -> None:
        for staged_id in plan.set_aside:
            self._staging.move_aside(staged_id)
        for staged_id in plan.delete:
            self._staging.remove_name(staged_id)

    def status(self) -> list[FileStatus]:
        """Every staged file, oldest first."""
        now_s = trio.current_time()
        return [self._status(record, now_s) for record in self._journal.records()]

    def _status(self, record: StagedRecord, now_s: float) -> FileStatus:
        attempt = self._uploader.attempts.get(record.id)
        failure = self._uploader.failures.get(record.id)
        file = self._staging.opened(record.id)
        live = record.state is StagedState.STAGED and file is not None
        return status_of(
            record,
            size_bytes=file.size_bytes if live and file is not None else record.size_bytes,
            sent_bytes=min(attempt.sent_bytes, record.size_bytes) if attempt is not None else 0,
            retry_in_s=max(0.0, failure.due_s - now_s) if failure is not None else 0.0,
        )


def _synced(record: StagedRecord, size_bytes: int, attributes: Attributes | None) -> StagedRecord:
    if record.state is not StagedState.STAGED:
        return record._replace(synced_bytes=size_bytes)
    return record._replace(synced_bytes=size_bytes, size_bytes=size_bytes, attributes=attributes or record.attributes)


def _moved(record: StagedRecord, key: Key, *, taken: int, base_etag: str) -> StagedRecord:
    """The record under another name, where nothing of it was ever sent."""
    moved = record._replace(
        key=key, taken=taken, base_etag=base_etag, attempts=0, committed_etag="", committed_ns=0, yields_to=""
    )
    if not base_etag:
        exclusive = not record.published and record.condition is ConditionKind.IF_ABSENT
        moved = moved._replace(condition=record.condition if exclusive else ConditionKind.ALWAYS, in_place=False)
    if record.attempts:
        moved = moved._replace(upload_id=next_upload_id(record.upload_id))
    if record.state in (StagedState.UPLOADING, StagedState.CONFLICT):
        moved = moved._replace(state=StagedState.SEALED, last_error="")
    return moved


def _name(record: StagedRecord) -> str:
    return repr(record.key.decode("utf-8", "backslashreplace"))
