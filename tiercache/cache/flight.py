"""A flight: one extent on its way from the origin, and an assembly: one reader's bytes, put together from flights."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tiercache.errors import TierCacheError
from tiercache.model import BLOCK_SIZE_BYTES


class Assembly:
    """The bytes that one reader wants. Flights hand their bytes over as they land, so none has to keep them.

    With ``wanted=False`` it only waits (for residency) and keeps nothing.
    """

    __slots__ = ("_done", "_error", "_flights", "_parts", "_wanted", "length", "offset")

    def __init__(self, offset: int, length: int, *, wanted: bool = True) -> None:
        self.offset = offset
        self.length = length
        self._wanted = wanted
        self._parts: list[tuple[int, memoryview]] = []
        self._flights: set[Flight] = set()
        self._error: TierCacheError | None = None
        self._done = trio.Event()

    def expect(self, flight: Flight) -> None:
        """Some of the bytes come with this flight."""
        if flight not in self._flights:
            self._flights.add(flight)
            flight.listeners.append(self)

    def put(self, offset: int, data: bytes | memoryview) -> None:
        """Take over what is wanted of the object's bytes that start at ``offset``."""
        start, stop = max(self.offset, offset), min(self.offset + self.length, offset + len(data))
        if self._wanted and start < stop:
            part = memoryview(data)[start - offset : stop - offset]
            # Whoever wants all of an extent shares it; a part of one must not keep the whole in memory.
            self._parts.append((start, part if len(part) == len(data) else memoryview(bytes(part))))

    def landed(self, flight: Flight, data: memoryview) -> None:
        self.put(flight.offset, data)
        self._flights.discard(flight)
        if not self._flights:
            self._done.set()

    def failed(self, flight: Flight, error: TierCacheError) -> None:
        self._flights.discard(flight)
        self._error = self._error or error
        self._done.set()

    async def wait(self) -> None:
        """Until every expected flight landed. Raises the error of the first that failed."""
        try:
            if self._flights and self._error is None:
                await self._done.wait()
        finally:
            self.abandon()
        if self._error is not None:
            # Each reader gets its own exception: one object raised in several tasks would mix their tracebacks.
            raise type(self._error)(*self._error.args) from self._error

    def abandon(self) -> None:
        """Expect nothing more: the flights go on for others, or for the cache."""
        for flight in self._flights:
            flight.listeners.remove(self)
        self._flights.clear()

    def forget(self) -> None:
        """Expect nothing more, and keep nothing."""
        self.abandon()
        self._parts.clear()

    @property
    def in_one_part(self) -> bool:
        """Whether ``result`` needs no copy."""
        return len(self._parts) == 1 and len(self._parts[0][1]) == self.length

    def result(self) -> memoryview:
        """All wanted bytes, read-only."""
        assert sum(len(part) for _, part in self._parts) == self.length, "every wanted byte was put exactly once"
        if len(self._parts) == 1:
            return self._parts[0][1].toreadonly()
        return memoryview(b"".join(part for _, part in sorted(self._parts, key=lambda placed: placed[0])))


class Flight:
    """The blocks ``blocks`` of one version on their way. It ends exactly once: it lands or it fails."""

    __slots__ = ("ahead", "blocks", "length", "listeners", "offset", "on_end")

    def __init__(self, blocks: range, size_bytes: int, *, ahead: bool = False) -> None:
        self.ahead = ahead
        """Nobody waited when it was sent: its bytes are those of read-ahead, and taken already."""
        self.on_end: Callable[[int], None] | None = None
        """Called with its length once it has ended, well or not."""
        self.blocks = blocks
        self.offset = blocks.start * BLOCK_SIZE_BYTES
        self.length = min(blocks.stop * BLOCK_SIZE_BYTES, size_bytes) - self.offset
        self.listeners: list[Assembly] = []

    def land(self, data: memoryview) -> None:
        """Hand the bytes to everybody who waits."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener.landed(self, data)

    def fail(self, error: TierCacheError) -> None:
        """Tell everybody who waits. Nothing is remembered: the next reader asks the origin again."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener.failed(self, error)
