"""The last fetched blocks that no tier keeps: so that a streamed object read in small steps is fetched once."""

from __future__ import annotations

from collections import OrderedDict

from tiercache.memory import Memory, Purpose
from tiercache.model import BLOCK_SIZE_BYTES, VersionId

OVERFLOW_BYTES = 64 * 1024 * 1024
IDLE_ROUNDS = 30
"""Blocks that nobody has come back to for so many rounds of ``age`` are of no use."""


class Overflow:
    """Blocks in this process's memory, oldest dropped first, bounded in bytes and by the engine's account."""

    def __init__(self, memory: Memory, capacity_bytes: int = OVERFLOW_BYTES) -> None:
        self._memory = memory
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._idle_rounds = 0
        self._blocks: OrderedDict[tuple[VersionId, int], bytes] = OrderedDict()

    def get(self, version: VersionId, block: int) -> bytes | None:
        data = self._blocks.get((version, block))
        if data is not None:
            self._idle_rounds = 0
            self._blocks.move_to_end((version, block))
        return data

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
            self._pop(next(iter(self._blocks)))

    def _put(self, version: VersionId, block: int, data: memoryview) -> None:
        if (version, block) in self._blocks:
            self._pop((version, block))
        self._idle_rounds = 0
        size_bytes = len(data)
        while self._blocks and self.used_bytes + size_bytes > self.capacity_bytes:
            self._pop(next(iter(self._blocks)))
        while not self._memory.try_take(Purpose.OVERFLOW, size_bytes):
            if not self._blocks:
                return
            self._pop(next(iter(self._blocks)))
        self.used_bytes += size_bytes
        self._blocks[version, block] = bytes(data)

    def _pop(self, place: tuple[VersionId, int]) -> None:
        size_bytes = len(self._blocks.pop(place))
        self.used_bytes -= size_bytes
        self._memory.release(Purpose.OVERFLOW, size_bytes)
