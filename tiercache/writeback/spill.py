"""One file that goes to its origin while it is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import trio

from tiercache.journal import StagedRecord
from tiercache.origins.base import Part, Source, Stream, Suspended
from tiercache.staging import StagedFile

Result = TypeVar("Result")


class Spill:
    """On its way."""

    def __init__(self, record: StagedRecord, file: StagedFile) -> None:
        self.record = record
        """As it was when this began."""
        self.file = file
        self.stream: Stream | None = None
        self.parts = 0
        self.sent_bytes = 0
        self.sending = False
        self.stopped = False
        self.is_private = not record.published
        """Nobody else has the staged file open, nor can open it."""
        self._fd = os.dup(file.fd)

    @property
    def source(self) -> Source:
        """The file's bytes for the stream, whatever becomes of its name."""
        return Source(f"/proc/self/fd/{self._fd}", 0)

    def check(self, sent_bytes: int) -> None:
        """Between parts: whoever waited for them is gone."""
        if self.stopped:
            raise Suspended

    def ready(self, end: int, *, rest: bool) -> list[Part]:
        """What of the bytes before ``end`` can be sent now: whole parts, and the ``rest`` as a shorter one."""
        assert self.stream is not None
        parts: list[Part] = []
        offset, number = self.sent_bytes, self.parts + 1
        while offset < end:
            length = self.stream.part_bytes(number)
            if offset + length > end:
                if not rest:
                    break
                length = end - offset
            parts.append(Part(number, offset, length))
            offset, number = offset + length, number + 1
        return parts

    def sent(self, parts: list[Part]) -> None:
        """The origin has these."""
        self.parts += len(parts)
        self.sent_bytes += sum(part.length for part in parts)

    def detach(self, path: str) -> None:
        """See ``StagedFile.detach``."""
        os.dup2(self.file.detach(path), self._fd, inheritable=False)
        self.is_private = True

    def close(self) -> None:
        """Nothing more is sent."""
        os.close(self._fd)


async def in_thread(spill: Spill, call: Callable[[], Result]) -> Result:
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
