"""What the engine asks of write-back: the parts that know how, and drain, recovery and status over all of them."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable

import trio

from tiercache.config import PROFILES, UploadConfig
from tiercache.errors import TierCacheError
from tiercache.journal import Journal, StagedRecord
from tiercache.memory import Memory
from tiercache.metrics import Metrics
from tiercache.model import Durability, Key, ObjectStat, OriginId, StagedState
from tiercache.origins.base import Origin
from tiercache.staging import Staging
from tiercache.writeback.commit import Adopts
from tiercache.writeback.drain import Drain, DrainProgress, DrainResult
from tiercache.writeback.order import Order
from tiercache.writeback.recovery import Plan, RecoveryReport, make_plan
from tiercache.writeback.seals import Seals
from tiercache.writeback.spills import Spills
from tiercache.writeback.staged_names import StagedNames
from tiercache.writeback.status import FileStatus, status_of
from tiercache.writeback.succession import retraction_of_parts, shown
from tiercache.writeback.tree_changes import TreeChanges
from tiercache.writeback.uploader import Uploader
from tiercache.writeback.waits import Waits

log = logging.getLogger(__name__)


def profile_uploads(record: StagedRecord) -> bool:
    """Whether the files of this record's profile go to the origin at all."""
    return all(profile.upload for name, profile in PROFILES.items() if name == record.profile)


class WriteBack:
    """Composes journal, staging and uploader. Used from one trio thread. The operations on single files are those of
    ``Seals``, ``StagedNames`` and ``Waits``, those on whole directories of ``TreeChanges``.

    ``on_commit`` is called when the origin has a record's bytes and the cache its file (or not), just before the row
    goes; the name may have a newer staged file by then. At recovery it may come for a second time. ``on_state`` is
    called at every change of a record's state, ``on_replaced`` when a file turns out to have been replaced just before
    a crash, and ``on_moved`` when a directory above it turns out to have been renamed: the file then waits for
    ``rename`` or ``try_again``. ``on_kept`` is called when what a renamed file left under its old name is to stay
    there. None of them must block, nor must ``resolve_origin``. ``is_open`` tells whether a
    program has a file open for writing, ``locate`` what an absolute path on this node stands for inside an origin.
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
        on_moved: Callable[[StagedRecord], None] = lambda record: None,
        on_kept: Callable[[StagedRecord], None] = lambda record: None,
        upload_delay_s: float = 0.0,
        uploads: Callable[[StagedRecord], bool] = profile_uploads,
        is_open: Callable[[StagedRecord], bool] = lambda record: False,
        locate: Callable[[OriginId, bytes], Key | None] = lambda origin, path: None,
        rng: random.Random | None = None,
    ) -> None:
        self._journal = journal
        self._staging = staging
        self._uploads = uploads
        self._order = Order(journal, upload.last, uploads, is_open, locate)
        self.locate = locate
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
            on_moved=on_moved,
            on_kept=on_kept,
            order=self._order,
            delay_s=upload_delay_s,
            rng=rng or random.Random(),
        )
        seals = Seals(journal, staging, self._uploader)
        self.sync, self.unseal = seals.sync, seals.unseal
        self.seal, self.seal_now = seals.seal, seals.seal_now
        self.hurrying = self._uploader.hurrying
        self._uploader.secure = self.secure = seals.secure
        names = StagedNames(journal, staging, self._uploader, seals)
        self.insist = seals.insist
        self.cancel, self.rename, self.relocate = names.cancel, names.rename, names.relocate
        self.moving, self.try_again = names.moving, self._uploader.try_again
        self.hold_back, self.let_go, self.reopen = names.hold_back, names.let_go, names.reopen
        self.trees = TreeChanges(journal, staging, self._uploader, names, self._order)
        self.hold_leftovers, self.move_leftover = names.hold_leftovers, names.move_leftover
        self.replaced, self.taken, self.overwrites = names.replaced, names.taken, names.overwrites
        self.settle, self.settle_below, self.staged_ids = names.settle, names.settle_below, names.staged_ids
        waits = Waits(journal, staging, self._uploader, uploads)
        self.wait, self.error_of = waits.wait, waits.error_of
        self.give_back, self.removes_still = self._uploader.retractions.give_back, names.removes_still
        self.is_all_there_is = self._uploader.heirs.stand_in
        self._uploader.on_superseded = waits.superseded
        self.spills = Spills(journal, staging, self._uploader.pace, metrics, on_commit, self._uploader.turns.add)
        waits.is_spilling = lambda: self.spills.sending
        staging.ids_after(journal.last_id)
        staging.budget.hope = waits.hope

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Upload what is sealed, until cancelled."""
        await self._uploader.run(task_status=task_status)

    def would_wait(self, origin: OriginId, key: Key, link_target: bytes = b"") -> bool:
        """Whether a file, or a symlink to ``link_target``, that took this name now would have to wait for others."""
        return self._order.would_wait(origin, key, link_target) or self._uploader.heirs.are_awaited(origin, key)

    async def flush(self) -> None:
        """The origin was changed, and the journal's records follow: durable on return, unless the journal fails. Then
        they are with its next commit."""
        try:
            await self._journal.flush()
        except TierCacheError as error:
            log.error("the journal could not be written yet: %s", error)

    async def sync_names(self) -> None:
        """Make durable which files are staged under which names, though not their bytes. Broken, NoSpace."""
        await self._journal.flush()
        await self._staging.sync_new_names()

    async def changed(self) -> None:
        """Return at the next change of any record's state."""
        await self._uploader.changed.heard()

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

    # -- start and status -----------------------------------------------------------------------------------------

    async def recover(self, is_written: Callable[[StagedRecord], bool] = lambda record: False) -> RecoveryReport:
        """Take up what an earlier run left; to be called once, before ``run`` and before anything is staged.
        Idempotent. It asks nothing of the origins: that is the first thing each upload does. ``is_written``: a program
        still writes the file, through a mount that outlived its engine or a mapping: it stays as it is."""
        await self.trees.take_over(is_written)
        files = await trio.to_thread.run_sync(self._staging.scan)
        plan = make_plan(
            self._journal.records(),
            files,
            rebooted=self._journal.rebooted,
            uploads=self._uploads,
            now_ns=time.time_ns(),
            is_written=is_written,
        )
        if files:
            # A name that an earlier run made may not have been synced by it, and counts as durable from now on.
            await trio.to_thread.run_sync(self._staging.sync_names)
        for staged_id, file in files.items():
            self._staging.found(staged_id, file)
        without_file = [*plan.lost, *plan.discarded]
        parts_of = [retraction_of_parts(record, self._staging.new_id()) for record in without_file if record.parted]
        if plan.put or plan.drop or self._journal.rebooted:
            await self._journal.recovered(put=[*plan.put, *parts_of], drop=plan.drop)
        await trio.to_thread.run_sync(self._move_files, plan)
        for staged_id in [*plan.set_aside, *plan.delete]:
            self._staging.closed(staged_id)
        for record in plan.committed:
            await self._uploader.finish(record, b"")
        for record in self._journal.records():
            if record.state is StagedState.LOST:
                self.give_back(record.id)
        for record in [*plan.queued, *self._journal.retractions()]:
            self._uploader.turns.add(record)
        for record in plan.discarded:
            if record.spilled:
                log.warning(
                    "%s: was sent while it was written, and is given up: its engine ended before", shown(record)
                )
        for record in [*plan.lost, *plan.torn]:
            log.error("%r: %s", record.key, record.last_error)
            self._uploader.state_changed(record)
        return RecoveryReport(plan.queued, plan.committed, plan.lost, plan.discarded, plan.removed_files, plan.torn)

    def _move_files(self, plan: Plan) -> None:
        for staged_id in plan.set_aside:
            self._staging.move_aside(staged_id)
        for staged_id in plan.delete:
            self._staging.remove_name(staged_id)

    @property
    def bandwidth_max_bytes_s(self) -> int | None:
        """How fast uploads may go now; None: as fast as it goes."""
        return self._uploader.pace.limit_bytes_s

    def status(self) -> list[FileStatus]:
        """Every staged file, oldest first."""
        now_s = trio.current_time()
        return [self._status(record, now_s) for record in self._journal.records()]

    def sent_bytes(self, record: StagedRecord) -> int:
        """How much of a file its upload has sent."""
        attempt = self._uploader.attempts.get(record.id)
        return min(attempt.sent_bytes, record.size_bytes) if attempt is not None else 0

    def durable(self, staged_id: int) -> Durability:
        """The level that the bytes of a staged file have reached for certain."""
        record = self._journal.get(staged_id)
        if record is None:
            return Durability.ORIGIN
        # What was there when it was synced may have been written anew since.
        synced = (record.synced_bytes, record.synced_ns) == self._staging.state(staged_id)
        return Durability.LOCAL if synced and not record.suspect else Durability.MEMORY

    def _status(self, record: StagedRecord, now_s: float) -> FileStatus:
        failure = self._uploader.failures.get(record.id)
        file = self._staging.opened(record.id)
        live = record.state is StagedState.STAGED and file is not None
        return status_of(
            record,
            size_bytes=file.size_bytes if live and file is not None else record.size_bytes,
            sent_bytes=self.sent_bytes(record),
            retry_in_s=max(0.0, failure.due_s - now_s) if failure is not None else 0.0,
        )
