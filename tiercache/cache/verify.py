"""Compare cached bytes with their checksums: at their first use in a run, or at each read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

import trio

from tiercache.cache.copies import Copies
from tiercache.cache.residency import Residency, blocks_of
from tiercache.cache.state import VersionState, VersionStates
from tiercache.cache.words import VersionRef
from tiercache.checksum import block_checksum, file_checksum
from tiercache.model import BLOCK_SIZE_BYTES, Tier
from tiercache.tier import FileIdentity, read_extent
from tiercache.tier.files import open_for_read

BLOCKS_PER_CHECK = 16
"""A check of a large file goes in such steps, so that a reader of its first block need not wait for the last."""
MAX_DOUBTS = 3
"""A file that others change this often while we check it is given up as damaged."""
CHECK_THREADS = 4

log = logging.getLogger(__name__)


class Checked(NamedTuple):
    """The outcome for some blocks of a file, and the file's identity if it stayed the same meanwhile."""

    good: bool
    identity: FileIdentity | None


class Verifier:
    """Runs checks in worker threads; a check of a version is shared by all who wait for it."""

    def __init__(self, copies: Copies, states: VersionStates, *, nursery: trio.Nursery) -> None:
        self._copies = copies
        self._states = states
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(CHECK_THREADS)

    async def check(self, version: VersionRef, state: VersionState, blocks: range) -> None:
        """Make sure that those of ``blocks`` that are resident are right; a bad file is dropped, its blocks missing."""
        while unchecked := state.residency.unchecked(blocks):
            if state.checking is None:
                state.checking = trio.Event()
                self._nursery.start_soon(self._check, version, unchecked[:BLOCKS_PER_CHECK])
            await state.checking.wait()
        if state.unverified and state.residency.all_checked:
            self._finish(version, state)

    async def read_checked(
        self, version: VersionRef, tier: Tier, residency: Residency, offset: int, length: int
    ) -> bytes | None:
        """Bytes of blocks that were compared with their checksums in this very read; None after dropping a bad copy."""
        path = self._copies.tiers[tier].path(version.id)
        try:
            data = await trio.to_thread.run_sync(_read_blocks, path, residency, offset, length, limiter=self._limiter)
        except OSError as error:
            self._copies.unreadable(version.id, tier, error)
            return None
        if data is None:
            self._copies.damaged(version.id, tier, "a checksum differs")
        return data

    async def _check(self, version: VersionRef, blocks: list[int]) -> None:
        with self._states.use(version) as state:
            try:
                await self._check_blocks(version, state, state.residency.unchecked(blocks))
            except Exception:
                log.exception("checking %s failed in an unforeseen way", version.id.hex())
                self._copies.drop_copy(version.id, Tier.NVME)
            finally:
                checking, state.checking = state.checking, None
                if checking is not None:
                    checking.set()

    async def _check_blocks(self, version: VersionRef, state: VersionState, blocks: list[int]) -> None:
        generation = state.generation
        files = self._copies.tiers[Tier.NVME]
        path = files.path(version.id)
        wanted = [(block, state.residency.length_of(block), state.residency.checksum_of(block)) for block in blocks]
        try:
            checked, took_s = await trio.to_thread.run_sync(
                _timed_check, files.clock, path, wanted, limiter=self._limiter
            )
        except OSError as error:
            if state.generation == generation:
                self._copies.unreadable(version.id, Tier.NVME, error)
            return
        files.took(took_s, len(wanted))
        if state.generation == generation:
            self._judge(version, state, blocks, checked)

    def _judge(self, version: VersionRef, state: VersionState, blocks: list[int], checked: Checked) -> None:
        if not checked.good:
            self._copies.damaged(version.id, Tier.NVME, "a checksum differs")
            return
        if not state.in_flight:
            if checked.identity is None or state.written_ns not in (0, checked.identity.ctime_ns):
                state.doubt()
                if state.doubts > MAX_DOUBTS:
                    self._copies.damaged(version.id, Tier.NVME, "others keep changing its file")
                    return
            if checked.identity is not None:
                state.inode, state.written_ns = checked.identity.inode, checked.identity.ctime_ns
        if checked.identity is not None:
            state.residency.mark_checked(blocks)

    def _finish(self, version: VersionRef, state: VersionState) -> None:
        """Every block of a complete copy was checked: hits need no check any more in this run."""
        state.unverified = False
        if not state.written_ns:  # an empty object has no block whose check would have told the identity
            opened = self._copies.open_partial(version, state)
            if opened is None:
                return
            state.wrote(opened.identity.inode, opened.identity.ctime_ns)
        identity = FileIdentity(state.inode, state.written_ns, version.size_bytes)
        self._copies.verified(version.id, identity)


def _timed_check(clock: Callable[[], float], path: str, wanted: list[tuple[int, int, bytes]]) -> tuple[Checked, float]:
    began_s = clock()
    return _check_blocks(path, wanted), clock() - began_s


def _check_blocks(path: str, wanted: list[tuple[int, int, bytes]]) -> Checked:
    fd = open_for_read(path)
    try:
        before = FileIdentity.of(os.fstat(fd))
        for block, length, checksum in wanted:
            if file_checksum(fd, block * BLOCK_SIZE_BYTES, length) != checksum:
                return Checked(False, None)
        after = FileIdentity.of(os.fstat(fd))
        return Checked(True, after if before == after else None)
    finally:
        os.close(fd)


def _read_blocks(path: str, residency: Residency, offset: int, length: int) -> bytes | None:
    parts: list[bytes] = []
    fd = open_for_read(path)
    try:
        for block in blocks_of(offset, length):
            start = block * BLOCK_SIZE_BYTES
            data = read_extent(fd, start, residency.length_of(block))
            if len(data) != residency.length_of(block) or block_checksum(data) != residency.checksum_of(block):
                return None
            parts.append(data[max(0, offset - start) : offset + length - start])
    finally:
        os.close(fd)
    return b"".join(parts)
