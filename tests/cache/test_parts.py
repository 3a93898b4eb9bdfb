"""The small parts of the cache by themselves: residency, overflow, open files."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rig.cache_rig import BS
from tiercache.cache.open_files import OpenFile, OpenFiles
from tiercache.cache.overflow import IDLE_ROUNDS, Overflow
from tiercache.cache.residency import Residency, blocks_of, runs
from tiercache.checksum import block_checksums
from tiercache.memory import Memory, Purpose
from tiercache.model import Tier, VersionId
from tiercache.tier import FileIdentity
from tiercache.units import MIB

ONE = VersionId(b"1" * 16)
TWO = VersionId(b"2" * 16)


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_residency_survives_the_catalog(block_count: int, blocks: set[int]) -> None:
    """Blocks and checksums come back from a record as they were, none of them checked."""
    size_bytes = block_count * BS - 7
    blocks = {block for block in blocks if block < block_count}
    residency = Residency(size_bytes)
    for block in blocks:
        residency.add(block, block.to_bytes(8, "big"))
    again = Residency.recorded(
        size_bytes, complete=residency.complete, blocks=residency.blocks, checksums=residency.checksums
    )
    assert {block for block in range(block_count) if again.has(block)} == blocks
    assert again.unchecked(range(block_count)) == sorted(blocks)
    assert all(again.checksum_of(block) == block.to_bytes(8, "big") for block in blocks)
    assert again.resident_bytes == sum(BS if block < block_count - 1 else BS - 7 for block in blocks)


@given(st.integers(0, 10 * BS), st.integers(0, 5 * BS))
def test_blocks_of_a_range_cover_it_exactly(offset: int, length: int) -> None:
    """The first and the last block hold bytes of the range; an empty range has none."""
    blocks = blocks_of(offset, length)
    if not length:
        assert not blocks
        return
    assert blocks.start * BS <= offset < (blocks.start + 1) * BS
    assert (blocks.stop - 1) * BS < offset + length <= blocks.stop * BS


@given(st.sets(st.integers(0, 50)), st.integers(1, 5))
def test_runs_join_neighbours_up_to_the_limit(blocks: set[int], limit: int) -> None:
    """Every block is in exactly one run, in order, and two runs are joined unless the limit forbids it."""
    found = runs(sorted(blocks), limit)
    assert [block for run in found for block in run] == sorted(blocks)
    assert all(len(run) <= limit for run in found)
    assert all(before.stop < after.start or len(before) == limit for before, after in itertools.pairwise(found))


def test_checksums_are_one_per_block() -> None:
    """Each block by itself, so that one can be checked without the others."""
    data = os.urandom(BS + 5)
    assert block_checksums(data) == block_checksums(data[:BS]) + block_checksums(data[BS:])
    assert block_checksums(b"") == b""


def test_overflow_keeps_the_last_blocks_within_its_bound() -> None:
    """The oldest go first, a used one last; one version's can be dropped together."""
    overflow = Overflow(Memory(1024 * MIB), 3 * BS)
    overflow.put(ONE, 0, memoryview(bytes(2 * BS)))
    overflow.put(TWO, 5, memoryview(b"x" * BS))
    assert overflow.get(ONE, 0) == bytes(BS)
    overflow.put(TWO, 6, memoryview(b"y"))
    assert overflow.get(ONE, 1) is None
    assert overflow.get(TWO, 5) == b"x" * BS
    assert overflow.used_bytes == 2 * BS + 1
    overflow.drop(TWO)
    assert (overflow.get(TWO, 5), overflow.get(TWO, 6), overflow.used_bytes) == (None, None, BS)


def test_what_overflows_goes_when_nobody_comes_back_to_it() -> None:
    """Its memory is free for others then; a look at it in time keeps it."""
    memory = Memory(1024 * MIB)
    overflow = Overflow(memory)
    overflow.put(ONE, 0, memoryview(bytes(BS)))
    for _ in range(IDLE_ROUNDS - 1):
        overflow.age()
    assert overflow.get(ONE, 0) == bytes(BS)
    for _ in range(IDLE_ROUNDS - 1):
        overflow.age()
    assert memory.used_bytes() == BS
    overflow.age()
    assert (overflow.get(ONE, 0), memory.used_bytes()) == (None, 0)


def test_unread_blocks_are_not_pushed_out_by_promises() -> None:
    """There is room for as many as fit beside those that somebody still reads; blocks read to their end make way."""
    overflow = Overflow(Memory(1024 * MIB), 3 * BS)
    assert overflow.promise(2 * BS)
    assert not overflow.promise(2 * BS)
    overflow.put(ONE, 0, memoryview(bytes(2 * BS)))
    overflow.settle(2 * BS)
    assert not overflow.promise(2 * BS)
    overflow.read_to_end(ONE, 1)
    assert overflow.promise(2 * BS)
    overflow.put(TWO, 0, memoryview(bytes(2 * BS)))
    overflow.settle(2 * BS)
    assert overflow.get(ONE, 0) is not None
    assert overflow.get(ONE, 1) is None
    assert overflow.used_bytes == 3 * BS


def test_overflow_gives_back_what_is_beyond_its_share() -> None:
    """When somebody would have to wait, the oldest blocks beyond the guaranteed share go, and no more than needed."""
    memory = Memory(128 * MIB)
    overflow = Overflow(memory)
    overflow.put(ONE, 0, memoryview(bytes(8 * BS)))
    assert memory.piece_bytes(Purpose.OVERFLOW) == 4 * BS
    overflow.give_back(BS + 1)
    assert overflow.used_bytes == memory.used_bytes() == 6 * BS
    assert overflow.get(ONE, 1) is None
    overflow.give_back(100 * BS)
    assert overflow.used_bytes == memory.used_bytes() == 4 * BS


def test_open_files_are_bounded_and_closed(tmp_path: Path) -> None:
    """Beyond the limit the least recently used descriptor is closed, and all of them at the end."""
    files = OpenFiles(limit=2)
    fds = []
    for number in range(3):
        (tmp_path / "f").write_bytes(b"")
        fds.append(os.open(tmp_path / "f", os.O_RDONLY))
        identity = FileIdentity.of(os.fstat(fds[-1]))
        files.put(VersionId(bytes([number])), OpenFile(fds[-1], identity, Tier.NVME, complete=True))
    assert [is_open(fd) for fd in fds] == [False, True, True]
    files.close_all()
    assert not any(map(is_open, fds))


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")
