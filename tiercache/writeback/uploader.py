"""The service that works off sealed files and retractions, and what the outcome of each means."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import trio

from tiercache.config import UploadConfig
from tiercache.errors import Lost, TierCacheError
from tiercache.journal import Journal, StagedRecord, next_upload_id
from tiercache.memory import Memory
from tiercache.metrics import Metrics
from tiercache.model import ObjectStat, StagedState
from tiercache.origins.base import Origin, Spoiled
from tiercache.staging import Staging
from tiercache.writeback.attempt import Attempt, UploadCancelled
from tiercache.writeback.attempts import Attempts
from tiercache.writeback.bell import Bell
from tiercache.writeback.commit import Adopts, Commits
from tiercache.writeback.heirs import Heirs
from tiercache.writeback.held_back import HeldBack
from tiercache.writeback.hurries import Hurries
from tiercache.writeback.order import Order
from tiercache.writeback.pace import Pace
from tiercache.writeback.retractions import Retractions
from tiercache.writeback.retry import Backoff, Failure
from tiercache.writeback.succession import inherit, inherited, newest_sealed, one_line, overtaken, retraction_of
from tiercache.writeback.turns import Turns
from tiercache.writeback.unwanted import Unwanted
from tiercache.writeback.upload import Clash, Damaged, Moved, Outcome, Replaced, Sent, Torn, Unsent, upload

log = logging.getLogger(__name__)


class Uploader:
    """Runs in the engine's thread; origin calls in worker threads. One upload or retraction per lane at a time."""

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
        on_state: Callable[[StagedRecord], None],
        on_replaced: Callable[[StagedRecord], None],
        on_moved: Callable[[StagedRecord], None],
        on_kept: Callable[[StagedRecord], None],
        order: Order,
        delay_s: float,
        rng: random.Random,
    ) -> None:
        self._journal = journal
        self._staging = staging
        self._resolve_origin = resolve_origin
        self._memory = memory
        self._metrics = metrics
        self._on_state = on_state
        self._on_replaced = on_replaced
        self._on_moved = on_moved
        self._delay_s = delay_s
        self._backoff = Backoff(upload.retry_base_s, upload.retry_cap_s, rng)
        self.pace = Pace.of(upload, metrics)
        self._threads = trio.CapacityLimiter(upload.concurrency)
        self.changed = Bell()
        """Rings at every change of a record's state, and when a lane falls free."""
        self.failures: dict[int, Failure] = {}
        self._held_back = HeldBack(journal, order, self.failures, self.changed)
        self.turns = Turns(journal, slots=upload.concurrency, changed=self.changed, ahead=self._has_others_ahead)
        self.heirs = Heirs(journal, order, self.failures)
        self._hurries = Hurries(journal, order, self.heirs, self.turns)
        self.hurrying = self._hurries.hurrying
        self.retractions = Retractions(
            journal,
            resolve_origin,
            self.turns,
            self.failures,
            self._threads,
            self.heirs,
            memory,
            on_moved=on_moved,
            on_kept=on_kept,
        )
        self.attempts = Attempts(staging)
        self._commits = Commits(
            journal, staging, cache, resolve_origin, metrics=metrics, on_commit=on_commit, on_clean=self._clean
        )
        self.finish = self._commits.finish
        # Records that made an earlier one of the same file give way: they are not stopped in their turn, so that a
        # file that is rewritten all the time gets up at last.
        self._displacing: set[int] = set()
        self.running = False
        self.on_superseded: Callable[[int, int], None] = lambda older, newer: None
        """Called when the bytes of the first id travel as part of the second from now on."""
        self.secure: Callable[[int, Iterable[StagedRecord]], Awaitable[None]]
        """Set by whoever composes this: see ``Seals.secure``."""

    # -- what others ask for --------------------------------------------------------------------------------------

    def enqueue_sealed(self, record: StagedRecord) -> None:
        """Let a sealed file have its turn, after the delay that spares temporary files the way to the origin."""
        self.failures.pop(record.id, None)
        delay_s = 0.0 if self._hurries.concern(record) else self._delay_s
        self.turns.add(record, due_s=trio.current_time() + delay_s if delay_s else 0.0)
        for older in self._journal.at(*record.lane):
            attempt = self.attempts.get(older.id)
            if attempt is not None and older.rank < record.rank:
                self._stop_for(attempt, record)

    def _stop_for(self, attempt: Attempt, newer: StagedRecord) -> None:
        if attempt.record.id not in self._displacing:
            self._displacing.add(newer.id)
            attempt.cancel()

    def forget(self, staged_id: int) -> None:
        """The record is gone: stop its upload and everything that was remembered of it."""
        self.turns.remove(staged_id)
        self.failures.pop(staged_id, None)
        self._displacing.discard(staged_id)
        self._held_back.forget(staged_id)
        self.attempts.stop(staged_id)

    def _has_others_ahead(self, record: StagedRecord) -> bool:
        if record.state is StagedState.CANCELLED:
            return self.retractions.is_held(record)
        held = (
            self._held_back.has_others_ahead(record)
            or self.heirs.ahead_of(record) is not None
            or self.retractions.has_copy_of(record)
        )
        if held:
            self._hurries.held(record)
        return held

    def state_changed(self, record: StagedRecord) -> None:
        """Tell everybody who waits or watches."""
        self._on_state(record)
        self._staging.budget.recheck()
        self.changed.ring()

    # -- the service ----------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. What is under way then is told to stop and taken up again by the next start."""
        try:
            async with trio.open_nursery() as nursery:
                self.running = True
                task_status.started()
                await self.turns.give(nursery, self._work_off)
        finally:
            self.running = False

    async def _work_off(self, record: StagedRecord) -> None:
        try:
            if record.state is StagedState.CANCELLED:
                if await self.retractions.work_off(record):
                    self.failures.pop(record.id, None)
            elif record.state in (StagedState.SEALED, StagedState.UPLOADING):
                await self._upload(record)
        except Exception as error:
            # Also what nobody foresaw: one file's trouble must not end the service, and is never forgotten.
            if not isinstance(error, TierCacheError):
                log.exception("upload of %r failed in an unforeseen way", record.key)
            self._failed(record.id, error)

    # -- one upload -----------------------------------------------------------------------------------------------

    async def _upload(self, record: StagedRecord) -> None:
        if record.suspect:
            await self.lose(record, record.last_error)
            return
        newer = newest_sealed(self._journal.at(*record.lane), record)
        if newer is not None:
            await self._give_way(record, newer)
            return
        while older := overtaken(self._journal.at(*record.lane), record):
            await self._give_way(older[0], record)
            current = self._journal.get(record.id)
            if current is None or not self.turns.is_wanted(current, record.lane):
                return  # its name changed, or it was opened again, while the older one gave way
            record = current  # it may stand on what the older one stood on now
        if record.committed_etag:
            await self.finish(record, b"")
            return
        record = record._replace(state=StagedState.UPLOADING, attempts=record.attempts + 1)
        # Not durable by itself: recovery takes every sealed file for one that may have been sent.
        self._journal.put_later(put=(record,))
        attempt = self.attempts.begin(self._attempt(record))
        self._metrics.uploads_in_flight.inc()
        self.state_changed(record)
        try:
            outcome = await self._send(attempt)
        except UploadCancelled:
            await self._stopped(record)
        except trio.Cancelled:
            # The service ends: whoever runs it again goes on with this, and with the parts that are there by then.
            attempt.suspend()
            if self._is_current(record):
                self._back_to_sealed(record)
            raise
        except Exception:
            if self._is_current(record):
                if not self.retractions.was_renewed(record, attempt.origin):
                    raise
                self._back_to_sealed(record)
        else:
            if self._is_current(record):
                await self._settle(record, outcome)
        finally:
            self._metrics.uploads_in_flight.dec()
            self._metrics.upload_bytes.inc(attempt.sent_bytes)
            self.attempts.ended(attempt)

    def _attempt(self, record: StagedRecord) -> Attempt:
        token = trio.lowlevel.current_trio_token()

        def save(attempt: Attempt) -> None:
            trio.from_thread.run(self._save_parted, attempt, trio_token=token)

        def note(attempt: Attempt) -> None:
            with suppress(trio.RunFinishedError):  # an upload that outlives the engine: the store tells the next one
                token.run_sync_soon(self._note_parted, attempt)

        return Attempt(record, save=save, note=note, pace=self.pace)

    async def _save_parted(self, attempt: Attempt) -> None:
        """Durable before the first part goes: only whoever has the store's id can go on with them, or abort them."""
        attempt.check()
        if not self._note_parted(attempt):
            raise UploadCancelled
        await self._journal.flush()

    def _note_parted(self, attempt: Attempt) -> bool:
        current = self._journal.get(attempt.record.id)
        if not self.running or current is None or not self._is_current(attempt.record):
            return False
        self._journal.put_later(put=(current._replace(parted=attempt.parted, parted_digest=attempt.parted_digest),))
        return True

    async def _send(self, attempt: Attempt) -> Outcome:
        record = attempt.record
        origin = attempt.origin = self._resolve_origin(record)
        # Durable before anything of it is sent: whatever happens, recovery must know the id that was stored with it.
        await self._journal.flush()
        unwanted = Unwanted.of(self._journal.retractions(*record.lane))
        path = self._staging.path(record.id)
        return await trio.to_thread.run_sync(
            upload, origin, path, attempt, unwanted, self._memory, limiter=self._threads, abandon_on_cancel=True
        )

    def _still_due(self, record: StagedRecord) -> StagedRecord | None:
        """The record as it is now, unless it was cancelled, renamed, opened again or lost meanwhile."""
        now = self._journal.get(record.id)
        due = now is not None and now.lane == record.lane and now.state in (StagedState.SEALED, StagedState.UPLOADING)
        return now if due else None

    def _is_current(self, record: StagedRecord) -> bool:
        """Whether the record still wants what this attempt sent: not cancelled, renamed or sealed anew meanwhile."""
        now = self._journal.get(record.id)
        return now is not None and now.upload_id == record.upload_id and now.key == record.key

    async def _settle(self, record: StagedRecord, outcome: Outcome) -> None:
        match outcome:
            case Sent(stat, checksums):
                await self._confirm(record, stat, checksums)
            case Clash(found):
                what = "it is gone there" if found is None else "somebody else changed it there"
                await self._end(record, StagedState.CONFLICT, f"not uploaded over the origin's copy: {what}")
            case Replaced():
                await self._withdraw(record)
            case Moved():
                self._wait_for_name(record)
            case Damaged(reason):
                await self.lose(record, reason)
            case Torn():
                await self._seal_again(record)
            case Unsent():
                await self._keep_torn(record)

    async def _confirm(self, record: StagedRecord, stat: ObjectStat, checksums: bytes) -> None:
        confirmed = await self._commits.confirm(record, stat)
        # Renamed or unlinked while that was written: the retraction that this left behind sees to the origin's copy.
        if self._is_current(record):
            await self.finish(confirmed, checksums)

    def _clean(self, staged_id: int) -> None:
        self.failures.pop(staged_id, None)
        self._displacing.discard(staged_id)
        self._held_back.forget(staged_id)
        self._staging.budget.recheck()
        self.changed.ring()

    # -- other ends -----------------------------------------------------------------------------------------------

    async def _give_way(self, record: StagedRecord, newer: StagedRecord) -> None:
        """A newer sealed file of the name holds all the bytes that count: this one never goes up."""
        try:
            await self.secure(newer.id, [record])
        except Lost as error:
            await self.lose(newer, str(error))
        older, heir = self._still_due(record), self._still_due(newer)
        if older is None or heir is None:
            if older is not None:
                self._back_to_sealed(older)
            return
        record, newer = older, heir
        put = [inherit(newer, record), *inherited(self._journal.left_by(record.id), newer)]
        if record.attempts:
            put.append(retraction_of(record, self._staging.new_id(), replaced_by=newer.id))
        self._journal.put_later(put=put, drop=[record.id])
        self._metrics.uploads.labels(outcome="obsolete").inc()
        self.on_superseded(record.id, newer.id)
        self.failures.pop(record.id, None)
        self._displacing.discard(record.id)
        await self._journal.flush()
        self._commits.discard_bytes(record.id)
        self.changed.ring()

    async def _withdraw(self, record: StagedRecord) -> None:
        """Another file was renamed over the name, and the engine ended before it could note that: these bytes are those
        of a file without a name."""
        self._metrics.uploads.labels(outcome="obsolete").inc()
        self._on_replaced(record)
        self._journal.put_later(drop=[record.id])
        self.failures.pop(record.id, None)
        self._displacing.discard(record.id)
        await self._journal.flush()
        self._commits.discard_bytes(record.id)
        self._staging.budget.recheck()
        self.changed.ring()

    def _wait_for_name(self, record: StagedRecord) -> None:
        """A directory above the name was renamed, and the engine ended before it could note that: the file goes up
        when it has its new name, or when ``try_again`` says so."""
        record = self._sealed_again(record.id)
        self._on_moved(record)

    def try_again(self, staged_id: int, error: Exception) -> None:
        """What a sealed file waited for has failed."""
        self._failed(staged_id, error)

    async def _stopped(self, record: StagedRecord) -> None:
        self._metrics.uploads.labels(outcome="cancelled").inc()
        if not self._is_current(record):
            return
        current = self._journal.get(record.id)
        assert current is not None
        newer = newest_sealed(self._journal.at(*current.lane), current)
        if newer is not None:
            await self._give_way(current, newer)
        else:
            # Stopped for a newer one that was opened again for writing: this is the newest sealed state once more.
            self._back_to_sealed(current)

    def resume(self, records: Iterable[StagedRecord]) -> None:
        """A change for which these files were stopped did not come about."""
        for record in records:
            current = self._journal.get(record.id)
            idle = current is not None and self.attempts.get(current.id) is None
            if current is not None and idle and current.state in (StagedState.SEALED, StagedState.UPLOADING):
                self._back_to_sealed(current)

    def _back_to_sealed(self, record: StagedRecord) -> None:
        self.turns.add(self._sealed_again(record.id))

    def _sealed_again(self, staged_id: int) -> StagedRecord:
        # As it is now: the attempt has noted what the store has of it.
        current = self._journal.get(staged_id)
        assert current is not None
        sealed = current._replace(state=StagedState.SEALED)
        self._journal.put_later(put=(sealed,))
        self.state_changed(sealed)
        return sealed

    async def _seal_again(self, record: StagedRecord) -> None:
        """Somebody wrote to the file after its seal: what was sent counts as an earlier state of it."""
        current = self._journal.get(record.id)
        assert current is not None
        sealed = current._replace(
            state=StagedState.SEALED,
            upload_id=next_upload_id(current.upload_id),
            size_bytes=self._staging.measure(record.id),
            unsynced=True,
            digest=b"",
        )
        await self._journal.put(sealed)
        log.warning("%r was written while it was uploaded; it is uploaded again", record.key)
        failure = self._backoff.next(self.failures.get(record.id), TierCacheError("written"), trio.current_time())
        self.failures[record.id] = failure
        self.state_changed(sealed)
        self.turns.add(sealed, due_s=failure.due_s)

    async def lose(self, record: StagedRecord, reason: str) -> None:
        """The staged bytes are gone or damaged: told, and what is left of them kept aside."""
        log.error("%r is lost: %s", record.key, reason)
        await self._end(record, StagedState.LOST, reason)
        self._staging.set_aside(record.id)

    async def _keep_torn(self, record: StagedRecord) -> None:
        """A power cut tore it, and the origin does not have it: what there is of it stays here, and is told."""
        current = self._journal.get(record.id)
        if current is not None:
            self._journal.put_later(put=[current._replace(size_bytes=self._staging.measure(record.id))])
            await self._end(record, StagedState.CONFLICT, record.last_error)

    async def _end(self, record: StagedRecord, state: StagedState, reason: str) -> None:
        current = self._journal.get(record.id)
        if current is None:
            return
        ended = current._replace(state=state, last_error=reason)
        self._metrics.uploads.labels(outcome=state.value).inc()
        self.failures.pop(record.id, None)
        try:
            await self._journal.put(ended)
        finally:
            if state is StagedState.LOST:
                self.retractions.give_back(ended.id)
            self.state_changed(ended)
            self.retractions.wake(ended.lane)

    def _failed(self, staged_id: int, error: Exception) -> None:
        record = self._journal.get(staged_id) or self._journal.retraction(staged_id)
        if record is None:
            return
        failure = self._backoff.next(self.failures.get(staged_id), error, trio.current_time())
        self.failures[staged_id] = failure
        self._metrics.uploads.labels(outcome="failed").inc()
        state = StagedState.SEALED if record.state is StagedState.UPLOADING else record.state
        spoiled = error.etag if isinstance(error, Spoiled) else record.spoiled
        record = record._replace(state=state, last_error=one_line(error), spoiled=spoiled)
        self._journal.put_later(put=(record,))
        log.warning("upload of %r failed, try again: %s", record.key, record.last_error)
        self.state_changed(record)
        if state in (StagedState.SEALED, StagedState.CANCELLED):
            self.turns.add(record, due_s=failure.due_s)
