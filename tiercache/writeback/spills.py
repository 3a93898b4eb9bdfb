"""Files that do not fit in staging go to the origin while they are written.

The origin takes what was written as the parts of a *stream*, of which nothing shows before it is completed; staging
gives up the room of each part that the origin has. So such a file is not whole here, and is never sealed, read or
recovered: its writer waits at close until the origin has all of it, and a crash before that leaves its parts to be
aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from tiercache.errors import Busy, Changed, Unsupported
from tiercache.journal import Journal, StagedRecord, next_upload_id
from tiercache.metrics import Metrics
from tiercache.model import Key, ObjectStat, PartedUpload
from tiercache.origins.base import Condition, Origin, Part, Source, Stream, StreamingOrigin, Suspended, Upload
from tiercache.staging import Staging
from tiercache.units import format_size
from tiercache.writeback.pace import Pace
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


class Spill:
    """One file on its way."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.stream: Stream | None = None
        self.parts = 0
        self.sent_bytes = 0
        self.sending = False
        self.stopped = False

    def check(self, sent_bytes: int) -> None:
        """Between parts: whoever waited for them is gone."""
        if self.stopped:
            raise Suspended


class Spills:
    """All of an engine. Used from its thread; the calls of one file never overlap."""

    def __init__(
        self,
        journal: Journal,
        staging: Staging,
        pace: Pace,
        metrics: Metrics,
        on_retraction: Callable[[StagedRecord], None],
    ) -> None:
        self._journal = journal
        self._staging = staging
        self._pace = pace
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

    async def make_room(self, origin: Origin, staged_id: int, end: int, step_bytes: int) -> Spilled:
        """Send what is below ``end`` as far as it fills parts. From then on the file always has room for its next part
        and a step more: so it never waits for those who wait for it. NoSpace if there is not even that; Unsupported
        where the origin or the disk cannot; what the origin raises, Busy after ``staging.wait_max_s`` of trying."""
        spill = self._spills.get(staged_id) or await self._begin(origin, staged_id)
        assert spill.stream is not None
        freed_bytes = await self._send(staged_id, spill, _parts(spill, end, rest=False))
        charged_bytes = self._staging.charged_bytes(staged_id) - freed_bytes
        missing_bytes = max(0, spill.stream.part_bytes(spill.parts + 1) + step_bytes - charged_bytes)
        self._staging.release(staged_id, max(0, freed_bytes - missing_bytes))
        if missing_bytes > freed_bytes:
            await self._staging.reserve(staged_id, missing_bytes - freed_bytes)
        return Spilled(spill.sent_bytes, missing_bytes)

    async def send_all(self, staged_id: int) -> None:
        """The file is written: send what is left of it."""
        spill = self._spills[staged_id]
        parts = _parts(spill, self._staging.open(staged_id).size_bytes, rest=True)
        self._staging.release(staged_id, await self._send(staged_id, spill, parts))

    async def _send(self, staged_id: int, spill: Spill, parts: list[Part]) -> int:
        """Send parts, and give their room on the disk back; how many bytes that is of the budget."""
        if not parts:
            return 0
        assert spill.stream is not None
        self._require_same_name(staged_id, spill)
        spill.sending = True
        try:
            await self._persistently(partial(_in_thread, spill, partial(spill.stream.send, parts)))
        finally:
            spill.sending = False
            self._staging.budget.recheck()
        file, sent_bytes = self._staging.open(staged_id), sum(part.length for part in parts)
        with file.held():
            await trio.to_thread.run_sync(file.give_back, spill.sent_bytes, sent_bytes)
        spill.parts += len(parts)
        spill.sent_bytes += sent_bytes
        self._count_bytes(sent_bytes)
        return sent_bytes

    async def complete(self, staged_id: int, condition: Condition) -> ObjectStat:
        """All of the file was sent: it takes its name at the origin. Changed if the condition fails, or the name is not
        the one any more that it was begun under."""
        spill = self._spills[staged_id]
        assert spill.stream is not None
        self._require_same_name(staged_id, spill)
        complete = partial(spill.stream.complete, spill.sent_bytes, condition)
        return await self._persistently(partial(_in_thread, spill, complete))

    def _require_same_name(self, staged_id: int, spill: Spill) -> None:
        record = self._journal.get(staged_id)
        if record is None or record.key != spill.key:
            raise Changed(f"{spill.key!r}: renamed while it was written and sent, for want of room in staging")

    async def end(self, staged_id: int, *, completed: bool) -> None:
        """The file is at the origin, or given up: then its parts are aborted, by a later run if need be."""
        spill = self._spills.pop(staged_id)
        record = self._journal.get(staged_id)
        try:
            if record is not None and completed:
                await self._journal.drop(staged_id)
            elif record is not None and spill.stream is not None:
                # Nothing but the parts: what an unheard answer may have completed replaced the older object already.
                begun = record._replace(key=spill.key, parted=PartedUpload(spill.stream.id, 0))
                retraction = retraction_of_parts(begun, self._staging.new_id())
                await self._journal.apply(put=[retraction], drop=[staged_id])
                self._on_retraction(retraction)
        finally:
            self._staging.delete(staged_id)

    async def _begin(self, origin: Origin, staged_id: int) -> Spill:
        record = self._journal.get(staged_id)
        if record is None or not isinstance(origin, StreamingOrigin):
            raise Unsupported(f"{origin.identity} takes no file while it is written")
        spill = Spill(record.key)
        upload = Upload(
            Source(self._staging.path(staged_id), 0),
            record.attributes,
            upload_id=next_upload_id(record.upload_id),
            progress=spill.check,
            pace=partial(self._wait_turn, spill),
        )
        await self._persistently(partial(self._open, spill, origin, record, upload))
        log.warning(
            "%s does not fit in staging (%s of %s are taken): it goes to the origin while it is written",
            shown(record),
            format_size(self._staging.used_bytes),
            format_size(self._staging.capacity_bytes),
        )
        return spill

    async def _open(self, spill: Spill, origin: StreamingOrigin, record: StagedRecord, upload: Upload) -> None:
        with trio.CancelScope(shield=True):  # a begun one is never forgotten
            part_max_bytes = self._staging.capacity_bytes // PARTS_IN_STAGING
            begin = partial(origin.stream, record.key, upload, part_max_bytes=part_max_bytes)
            spill.stream = await trio.to_thread.run_sync(begin)
            self._spills[record.id] = spill
            # Durable before the first part: a later run has to know what to abort.
            parted = PartedUpload(spill.stream.id, 0)
            await self._journal.put(record._replace(upload_id=upload.upload_id, attempts=1, parted=parted))

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


async def _in_thread(spill: Spill, call: Callable[[], Result]) -> Result:
    """The result of a blocking call. A cancelled caller waits for the parts that are under way; no more are begun."""
    failure: Exception | None = None
    result: list[Result] = []

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            spill.stopped = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            result.append(await trio.to_thread.run_sync(call))
        except Exception as error:  # out of the nursery as it is, not in a group
            failure = error
        nursery.cancel_scope.cancel()
    spill.stopped = False  # the watch ended because the call did
    if failure is not None:
        raise failure
    return result[0]


def _parts(spill: Spill, end: int, *, rest: bool) -> list[Part]:
    """What can be sent now: whole parts, and the ``rest`` as a shorter one."""
    assert spill.stream is not None
    parts: list[Part] = []
    offset, number = spill.sent_bytes, spill.parts + 1
    while offset < end:
        length = spill.stream.part_bytes(number)
        if offset + length > end:
            if not rest:
                break
            length = end - offset
        parts.append(Part(number, offset, length))
        offset, number = offset + length, number + 1
    return parts
