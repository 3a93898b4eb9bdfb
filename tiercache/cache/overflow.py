"""The last fetched blocks that no tier keeps: so that a streamed object read in small steps is fetched once."""

from __future__ import annotations

from collections import OrderedDict

from tiercache.model import BLOCK_SIZE_BYTES, VersionId

OVERFLOW_BYTES = 64 * 1024 * 1024


class Overflow:
    """Blocks in this process's memory, oldest dropped first, bounded in bytes."""

    def __init__(self, capacity_bytes: int = OVERFLOW_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._blocks: OrderedDict[tuple[VersionId, int], bytes] = OrderedDict()

    def get(self, version: VersionId, block: int) -> bytes | None:
        data = self._blocks.get((version, block))
        if data is not None:
            self._blocks.move_to_end((version, block))
        return data

    def put(self, version: VersionId, first: int, data: memoryview) -> None:
        """Keep the blocks of an extent that starts with block ``first``."""
        for number, start in enumerate(range(0, len(data), BLOCK_SIZE_BYTES)):
            self._put(version, first + number, bytes(data[start : start + BLOCK_SIZE_BYTES]))

    def drop(self, version: VersionId) -> None:
        for place in [place for place in self._blocks if place[0] == version]:
            self.used_bytes -= len(self._blocks.pop(place))

    def _put(self, version: VersionId, block: int, data: bytes) -> None:
        self.used_bytes += len(data) - len(self._blocks.pop((version, block), b""))
        self._blocks[version, block] = data
        while self.used_bytes > self.capacity_bytes:
            _, oldest = self._blocks.popitem(last=False)
            self.used_bytes -= len(oldest)
