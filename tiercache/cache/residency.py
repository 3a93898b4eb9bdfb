"""Which blocks of a version lie in its NVMe file, which of them are checked, and their checksums: no I/O."""

from __future__ import annotations

from collections.abc import Iterable

from tiercache.checksum import CHECKSUM_BYTES
from tiercache.model import BLOCK_SIZE_BYTES, block_count


class Residency:
    """Two sets of block numbers. A block is *checked* when this run wrote it or compared it with its checksum."""

    __slots__ = ("_checked", "_checksums", "_resident", "block_count", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.block_count = block_count(size_bytes)
        self._resident: set[int] = set()
        self._checked: set[int] = set()
        self._checksums = bytearray(self.block_count * CHECKSUM_BYTES)

    @classmethod
    def recorded(cls, size_bytes: int, *, complete: bool, blocks: bytes, checksums: bytes) -> Residency:
        """What a record of the catalog says; none of it is checked. A record without checksums tells nothing."""
        residency = cls(size_bytes)
        if len(checksums) == residency.block_count * CHECKSUM_BYTES:
            residency._checksums[:] = checksums
            residency._resident = set(range(residency.block_count)) if complete else set(_numbers(blocks))
        return residency

    @property
    def complete(self) -> bool:
        return len(self._resident) == self.block_count

    @property
    def empty(self) -> bool:
        return not self._resident

    @property
    def all_checked(self) -> bool:
        return len(self._checked) == len(self._resident)

    @property
    def resident_bytes(self) -> int:
        return sum(self.length_of(block) for block in self._resident)

    @property
    def checksums(self) -> bytes:
        """As the catalog stores them; zeros stand for blocks that are not resident."""
        return bytes(self._checksums)

    @property
    def blocks(self) -> bytes:
        """As the catalog stores them: a bitmap in little-endian bit order, empty when complete."""
        if self.complete:
            return b""
        bitmap = bytearray(-(-self.block_count // 8))
        for block in self._resident:
            bitmap[block >> 3] |= 1 << (block & 7)
        return bytes(bitmap)

    def has(self, block: int) -> bool:
        return block in self._resident

    def checksum_of(self, block: int) -> bytes:
        return bytes(self._checksums[block * CHECKSUM_BYTES : (block + 1) * CHECKSUM_BYTES])

    def length_of(self, block: int) -> int:
        return min(BLOCK_SIZE_BYTES, self.size_bytes - block * BLOCK_SIZE_BYTES)

    def unchecked(self, blocks: Iterable[int]) -> list[int]:
        """Those of ``blocks`` that are resident but not checked yet."""
        return [block for block in blocks if block in self._resident and block not in self._checked]

    def add(self, first: int, checksums: bytes) -> None:
        """Blocks from ``first`` on were written, with these checksums."""
        added = range(first, first + len(checksums) // CHECKSUM_BYTES)
        self._checksums[first * CHECKSUM_BYTES : first * CHECKSUM_BYTES + len(checksums)] = checksums
        self._resident.update(added)
        self._checked.update(added)

    def mark_checked(self, blocks: Iterable[int]) -> None:
        self._checked.update(blocks)

    def doubt(self) -> None:
        """The file changed behind our back: nothing is checked any more."""
        self._checked.clear()


def blocks_of(offset: int, length: int) -> range:
    """The numbers of the blocks that a range of bytes touches; none for an empty range."""
    if length <= 0:
        return range(0)
    return range(offset // BLOCK_SIZE_BYTES, (offset + length - 1) // BLOCK_SIZE_BYTES + 1)


def runs(blocks: Iterable[int], limit: int) -> list[range]:
    """Group ascending block numbers into runs of neighbours of at most ``limit`` blocks."""
    found: list[range] = []
    for block in blocks:
        if found and found[-1].stop == block and len(found[-1]) < limit:
            found[-1] = range(found[-1].start, block + 1)
        else:
            found.append(range(block, block + 1))
    return found


def _numbers(bitmap: bytes) -> list[int]:
    return [byte * 8 + bit for byte, value in enumerate(bitmap) if value for bit in range(8) if value >> bit & 1]
