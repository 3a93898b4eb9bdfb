"""The last fetched blocks that no tier keeps: so that a streamed object read in small steps is fetched once."""

from __future__ import annotations

from collections import OrderedDict

from tiercache.memory import Memory, Purpose
from tiercache.model import BLOCK_SIZE_BYTES, VersionId

OVERFLOW_BYTES = 64 * 1024 * 1024
IDLE_ROUNDS = 30
"""Blocks that nobody has come back to for so many rounds of ``age`` are of no use."""


class Overflow:
    """Blocks in this process's memory, bounded in bytes and by the engine's account.

    Those that were read to their end go first, then the oldest. Whoever wants to stream an object by blocks promises
    room for them first; without room they would only push out each other's, each before it is used.
    """

    def __init__(self, memory: Memory, capacity_bytes: int = OVERFLOW_BYTES) -> None:
        self._memory = memory
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._idle_rounds = 0
        self._promised_bytes = 0
        self._blocks: OrderedDict[tuple[VersionId, int], bytes] = OrderedDict()
        self._read: OrderedDict[tuple[VersionId, int], None] = OrderedDict()
        """Those of them that were read to their end."""
        self._read_bytes = 0

    def get(self, version: VersionId, block: int) -> bytes | None:
        data = self._blocks.get((version, block))
        if data is not None:
            self._idle_rounds = 0
            self._blocks.move_to_end((version, block))
        return data

    def promise(self, size_bytes: int) -> bool:
        """Keep room for blocks that are about to be fetched; False when there is none but that of unread blocks."""
        room_bytes = min(self.capacity_bytes, self._memory.piece_bytes(Purpose.OVERFLOW))
        if self.used_bytes - self._read_bytes + self._promised_bytes + size_bytes > room_bytes:
            return False
        self._promised_bytes += size_bytes
        return True

    def settle(self, size_bytes: int) -> None:
        """What was promised has come, or does not come."""
        self._promised_bytes -= size_bytes

    def read_to_end(self, version: VersionId, block: int) -> None:
        """A reader has come to the end of a block: if it is here, it is the first to go."""
        place = (version, block)
        if place in self._blocks and place not in self._read:
            self._read[place] = None
            self._read_bytes += len(self._blocks[place])

    def put(self, version: VersionId, first: int, data: memoryview) -> None:
        """Keep the blocks of an extent that starts with block ``first``."""
        for number, start in enumerate(range(0, len(data), BLOCK_SIZE_BYTES)):
            self._put(version, first + number, data[start : start + BLOCK_SIZE_BYTES])

    def drop(self, version: VersionId) -> None:
        for place in [place for place in self._blocks if place[0] == version]:
            self._pop(place)

    def age(self) -> None:
        """A round went by. An idle engine does not go on holding what its last readers streamed."""
        self._idle_rounds += 1
        if self._idle_rounds >= IDLE_ROUNDS:
            for place in list(self._blocks):
                self._pop(place)

    def give_back(self, wanted_bytes: int) -> None:
        """Somebody has to wait for memory: drop what is kept beyond the share that is ours, oldest first."""
        own_bytes = self._memory.piece_bytes(Purpose.OVERFLOW)
        goal = max(own_bytes, self.used_bytes - wanted_bytes)
        while self.used_bytes > goal:
            self._drop_one()

    def _put(self, version: VersionId, block: int, data: memoryview) -> None:
        if (version, block) in self._blocks:
            self._pop((version, block))
        self._idle_rounds = 0
        size_bytes = len(data)
        while self._blocks and self.used_bytes + size_bytes > self.capacity_bytes:
            self._drop_one()
        while not self._memory.try_take(Purpose.OVERFLOW, size_bytes):
            if not self._blocks:
                return
            self._drop_one()
        self.used_bytes += size_bytes
        self._blocks[version, block] = bytes(data)

    def _drop_one(self) -> None:
        self._pop(next(iter(self._read or self._blocks)))

    def _pop(self, place: tuple[VersionId, int]) -> None:
        size_bytes = len(self._blocks.pop(place))
        if place in self._read:
            del self._read[place]
            self._read_bytes -= size_bytes
        self.used_bytes -= size_bytes
        self._memory.release(Purpose.OVERFLOW, size_bytes)
