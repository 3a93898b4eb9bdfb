"""Files that do not fit in staging go to the origin while they are written.

The origin takes what was written as the parts of a *stream*, of which nothing shows before it is completed; staging
gives up the room of each part that the origin has. So such a file is not whole here, and is never sealed, read or
recovered: its writer waits at close until the origin has all of it, and a crash before that leaves its parts to be
aborted. A client's file is invisible until then. A mount's has its name here at once, and so others may open it: before
the first bytes go, its staged file loses the name by which they do.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from tiercache.errors import Busy, Changed, Unsupported
from tiercache.journal import Journal, StagedRecord, next_upload_id
from tiercache.metrics import Metrics
from tiercache.model import ObjectStat, PartedUpload
from tiercache.origins.base import Condition, Origin, Part, StreamingOrigin, Upload
from tiercache.staging import Staging
from tiercache.units import format_size
from tiercache.writeback.pace import Pace
from tiercache.writeback.spill import Spill, in_thread
from tiercache.writeback.succession import retraction_of_parts, shown

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Between the tries of a part that the origin does not take, after those of the request itself."""

PARTS_IN_STAGING = 4
"""Whole parts alone give room, so several of them have to fit in there."""

Result = TypeVar("Result")


class Spilled(NamedTuple):
    """What became of a file for which there was no room."""

    sent_bytes: int
    """Up to here its bytes are at the origin, and not here any more."""
    granted_bytes: int
    """How many more it may have here."""


class Spills:
    """All of an engine. Used from its thread; the calls of one file never overlap."""

    def __init__(
        self,
        journal: Journal,
        staging: Staging,
        pace: Pace,
        metrics: Metrics,
        on_commit: Callable[[StagedRecord, ObjectStat], None],
        on_retraction: Callable[[StagedRecord], None],
    ) -> None:
        self._journal = journal
        self._staging = staging
        self._pace = pace
        self._on_commit = on_commit
        self._on_retraction = on_retraction
        self._count_bytes = metrics.spilled_bytes.inc
        self._spills: dict[int, Spill] = {}
        metrics.spills_in_flight.set_function(lambda: len(self._spills))

    def __contains__(self, staged_id: int) -> bool:
        return staged_id in self._spills

    @property
    def sending(self) -> bool:
        """Whether room is about to be given back."""
        return any(spill.sending for spill in self._spills.values())

    def may_have(self, staged_id: int, further_bytes: int) -> bool:
        """Whether that much more is a fair share: such files leave room for others, which have to begin."""
        share_bytes = self._staging.capacity_bytes // (len(self._spills) + 1)
        return staged_id not in self or self._staging.charged_bytes(staged_id) + further_bytes <= share_bytes

    def has_room(self, staged_id: int, further_bytes: int) -> bool:
        """Whether so many more bytes at the end of a file have room now: what it was granted, or a fair share more."""
        file = self._spills[staged_id].file
        missing_bytes = further_bytes + file.size_bytes - file.gone_bytes - self._staging.charged_bytes(staged_id)
        if missing_bytes <= 0:
            return True
        return self.may_have(staged_id, missing_bytes) and self._staging.reserve_now(staged_id, missing_bytes)

    async def make_room(self, origin: Origin, staged_id: int, end: int, step_bytes: int) -> Spilled:
        """Send what is below ``end`` as far as it fills parts. From then on the file always has room for its next part
        and a step more: so it never waits for those who wait for it. NoSpace if there is not even that; Unsupported
        where the origin or the disk cannot; what the origin raises, Busy after ``staging.wait_max_s`` of trying."""
        spill = self._spills.get(staged_id) or await self._begin(origin, staged_id)
        assert spill.stream is not None
        freed_bytes = await self._send(staged_id, spill, spill.ready(end, rest=False))
        charged_bytes = self._staging.charged_bytes(staged_id) - freed_bytes
        missing_bytes = max(0, spill.stream.part_bytes(spill.parts + 1) + step_bytes - charged_bytes)
        self._staging.release(staged_id, max(0, freed_bytes - missing_bytes))
        if missing_bytes > freed_bytes:
            await self._staging.reserve(staged_id, missing_bytes - freed_bytes)
        return Spilled(spill.sent_bytes, missing_bytes)

    async def send_all(self, staged_id: int) -> None:
        """The file is written: send what is left of it; if nothing was sent, see ``take_back``."""
        spill = self._spills[staged_id]
        if not spill.file.gone_bytes:
            await self.take_back(staged_id)
            return
        parts = spill.ready(spill.file.size_bytes, rest=True)
        self._staging.release(staged_id, await self._send(staged_id, spill, parts))

    async def _send(self, staged_id: int, spill: Spill, parts: list[Part]) -> int:
        """Send parts, and give their room on the disk back; how many bytes that is of the budget."""
        if not parts:
            return 0
        assert spill.stream is not None
        self._require_same_name(staged_id, spill)
        file, start, end = spill.file, spill.sent_bytes, parts[-1].offset + parts[-1].length
        file.gone_bytes = end  # from now on: what is on its way must not change
        spill.sending = True
        try:
            await self._persistently(partial(in_thread, spill, partial(spill.stream.send, parts)))
        finally:
            spill.sending = False
            self._staging.budget.recheck()
            if self._journal.get(staged_id) is None:
                with trio.CancelScope(shield=True):
                    await self._abort(spill)  # again: it was removed, and aborted, while the parts were on their way
        spill.sent(parts)
        self._count_bytes(end - start)
        if spill.is_private:
            with file.held():
                await trio.to_thread.run_sync(file.give_back, start, end - start)
        else:
            self._staging.room.found(partial(spill.detach, self._staging.path(self._staging.new_id())), end - start)
        return end - start

    async def complete(self, staged_id: int, condition: Condition) -> ObjectStat:
        """All of the file was sent: it takes its name at the origin. Changed if the condition fails, or the name is not
        the one any more that it was begun under."""
        spill = self._spills[staged_id]
        assert spill.stream is not None
        self._require_same_name(staged_id, spill)
        complete = partial(spill.stream.complete, spill.sent_bytes, condition)
        return await self._persistently(partial(in_thread, spill, complete))

    def _require_same_name(self, staged_id: int, spill: Spill) -> None:
        record = self._journal.get(staged_id)
        if record is None or record.key != spill.record.key:
            raise Changed(f"{spill.record.key!r}: renamed while it was written and sent, for want of room in staging")

    async def end(self, staged_id: int, *, completed: bool) -> None:
        """The file is at the origin, or given up: then its parts are aborted, by a later run if need be."""
        spill = self._spills.pop(staged_id)
        spill.close()
        record = self._journal.get(staged_id)
        try:
            if record is not None and completed:
                await self._journal.drop(staged_id)
            elif record is not None:
                await self._abort(spill, drop=[staged_id])
        finally:
            self._staging.delete(staged_id)

    async def _abort(self, spill: Spill, *, put: Iterable[StagedRecord] = (), drop: Iterable[int] = ()) -> None:
        """Nothing but the parts: what an unheard answer may have completed replaced the older object already."""
        assert spill.stream is not None
        begun = spill.record._replace(parted=PartedUpload(spill.stream.id, 0))
        retraction = retraction_of_parts(begun, self._staging.new_id())
        await self._journal.apply(put=[*put, retraction], drop=drop)
        self._on_retraction(retraction)

    async def take_back(self, staged_id: int) -> None:
        """Nothing of the file was sent, so all of it is here: it is one like any other again."""
        spill, record = self._spills.pop(staged_id), self._journal.get(staged_id)
        assert not spill.file.gone_bytes
        spill.close()
        spill.file.spilled = False
        if record is not None:
            kept = record._replace(parted=None, spilled=False, attempts=spill.record.attempts)
            await self._abort(spill, put=[kept])

    async def commit(self, staged_id: int, stat: ObjectStat) -> None:
        """A mount's file is at the origin, and clean."""
        record = self._journal.get(staged_id)
        if record is not None:
            self._on_commit(record, stat)
        await self.end(staged_id, completed=True)

    def forget(self, staged_id: int) -> None:
        """A mount's file lost its name, with which its parts went, and nobody has it open any more."""
        spill = self._spills.pop(staged_id, None)
        if spill is not None:
            spill.close()

    async def _begin(self, origin: Origin, staged_id: int) -> Spill:
        record = self._journal.get(staged_id)
        if record is None or not isinstance(origin, StreamingOrigin):
            raise Unsupported(f"{origin.identity} takes no file while it is written")
        spill = Spill(record, self._staging.open(staged_id))
        upload = Upload(
            spill.source,
            record.attributes,
            upload_id=next_upload_id(record.upload_id),
            progress=spill.check,
            pace=partial(self._wait_turn, spill),
        )
        try:
            await self._persistently(partial(self._open, spill, origin, upload))
        except BaseException:
            if staged_id not in self._spills:
                spill.close()
            raise
        log.warning(
            "%s does not fit in staging (%s of %s are taken): it goes to the origin while it is written",
            shown(record),
            format_size(self._staging.used_bytes),
            format_size(self._staging.capacity_bytes),
        )
        return spill

    async def _open(self, spill: Spill, origin: StreamingOrigin, upload: Upload) -> None:
        with trio.CancelScope(shield=True):  # a begun one is never forgotten
            part_max_bytes = self._staging.capacity_bytes // PARTS_IN_STAGING
            begin = partial(origin.stream, spill.record.key, upload, part_max_bytes=part_max_bytes)
            spill.stream = await trio.to_thread.run_sync(begin)
            record = self._journal.get(spill.record.id)
            if record is None or record.key != spill.record.key:
                await self._abort(spill)
                raise Changed(f"{spill.record.key!r}: lost its name while it was written")
            self._spills[record.id] = spill
            # Durable before the first part: a later run has to know what to abort.
            parted = PartedUpload(spill.stream.id, 0)
            begun = record._replace(
                upload_id=upload.upload_id, attempts=1, parted=parted, spilled=record.published, last_error=""
            )
            await self._journal.put(begun)
            spill.file.spilled = True

    def _wait_turn(self, spill: Spill, size_bytes: int) -> None:
        self._pace.wait(size_bytes, lambda: spill.check(0))

    async def _persistently(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of a call of the origin, made again while that is busy."""
        deadline_s: float | None = None
        while True:
            try:
                return await call()
            except Busy as error:
                deadline_s = deadline_s or trio.current_time() + self._staging.room.wait_max_s
                if trio.current_time() >= deadline_s:
                    raise
                log.warning("a file that does not fit in staging waits for its origin: %s", error)
            await trio.sleep(RETRY_S)
