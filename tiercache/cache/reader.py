"""Reads: from a complete copy, else block by block from what is resident, in flight, in memory or at the origin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from tiercache.cache.copies import Copies
from tiercache.cache.fetch import Fetcher
from tiercache.cache.flight import Assembly
from tiercache.cache.overflow import Overflow
from tiercache.cache.promote import Promoter
from tiercache.cache.residency import blocks_of, runs
from tiercache.cache.state import VersionState, VersionStates
from tiercache.cache.verify import Verifier
from tiercache.cache.words import Location, VersionRef
from tiercache.memory import Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES, Tier
from tiercache.tier import read_extent

INLINE_READ_BYTES = 4 * 1024 * 1024
"""Up to this length resident bytes are read in the engine's thread: a hop to another one costs more than the copy."""
MAX_ATTEMPTS = 4
"""How often a read starts again because a file turned out to be bad; then it goes past the tiers."""


class Ahead(NamedTuple):
    """What became of a wish to read ahead."""

    sent_bytes: int
    """How much was sent for; the rest of what is covered is here or on its way."""
    stop: int
    """The offset up to which the wish is covered."""


T = TypeVar("T")


class Reader:
    """Puts the bytes of one read together. ``trusting`` is False with ``verify="read"``."""

    def __init__(
        self,
        copies: Copies,
        states: VersionStates,
        fetcher: Fetcher,
        verifier: Verifier,
        promoter: Promoter,
        overflow: Overflow,
        *,
        memory: Memory,
        metrics: Metrics,
        trusting: bool,
    ) -> None:
        self._copies = copies
        self._states = states
        self._fetcher = fetcher
        self._verifier = verifier
        self._promoter = promoter
        self._overflow = overflow
        self._memory = memory
        self._trusting = trusting
        self._count_misses = metrics.misses
        self._count_expected = metrics.expected_reads.inc
        self._count_hits = {tier: metrics.hits.labels(tier=tier.label) for tier in Tier}
        self._count_bytes = {tier: metrics.read_bytes.labels(tier=tier.label) for tier in Tier}
        self._count_origin_bytes = metrics.read_bytes.labels(tier="origin")

    async def read(self, version: VersionRef, offset: int, length: int) -> bytes | memoryview:
        """``length`` bytes that lie inside the object."""
        data = await self._read_complete(version, offset, length)
        return data if data is not None else await self._read_blocks(version, offset, length)

    def open_local(self, version: VersionRef, *, on_nvme: bool) -> int | None:
        """A descriptor of a complete copy; see Cache.open_local."""
        file = self._copies.open_nvme(version) if on_nvme else self._copies.open(version)
        if file is None:
            return None
        self._hit(version, file.tier, 0)
        return file.fd

    def expect_read(self, version: VersionRef, length: int) -> bool:
        """Let the disk begin to read a complete copy; see Cache.expect_read."""
        file = self._copies.open(version)
        if file is None:
            return False
        os.posix_fadvise(file.fd, 0, length, os.POSIX_FADV_WILLNEED)
        self._count_expected()
        return True

    async def ensure(self, version: VersionRef, offset: int, length: int, *, ahead: bool) -> Location | None:
        """Make a range resident in a file; see Cache.ensure."""
        location = self._copies.locate(version)
        if location is not None:
            if not ahead:
                self._hit(version, location.tier, 0)
            return location
        nvme = self._copies.tiers.get(Tier.NVME)
        if nvme is None or not nvme.takes(version.size_bytes, version.key):
            return None
        blocks = blocks_of(offset, length)
        with self._states.use(version) as state:
            await self._verifier.check(version, state, blocks)
            resident = self._is_resident(state, blocks)
            if any(not state.residency.has(block) and self._overflow.get(version.id, block) for block in blocks):
                return None  # it was fetched a moment ago and could not be kept
            assembly = Assembly(offset, length, wanted=False)
            self._send_for(version, state, blocks, assembly)
            await assembly.wait()
            location = self._copies.locate(version)
            if location is None and self._is_resident(state, blocks):
                location = self._copies.partial_location(version, state)
            if location is not None and not ahead:
                self._count(version, 0, resident=resident)  # else whoever reads it otherwise is counted
            return location

    def prefetch(self, version: VersionRef, offset: int, length: int) -> Ahead:
        """Send for what is missing of a range, in order, until there is no memory to spare."""
        sent_bytes = 0
        if self._copies.is_complete(version.id):
            return Ahead(sent_bytes, offset + length)
        with self._states.use(version) as state:
            missing = [block for block in blocks_of(offset, length) if self._is_missing(version, state, block)]
            streamed = self._is_streamed(version)
            for run in runs(missing, 1 if streamed else self._fetcher.blocks_per_request):
                promised = streamed and self._overflow.promise(_length_of(version, run))
                flight = self._fetcher.start_ahead(version, state, run) if promised or not streamed else None
                if flight is None:
                    if promised:
                        self._overflow.settle(_length_of(version, run))
                    return Ahead(sent_bytes, max(offset, run.start * BLOCK_SIZE_BYTES))
                flight.on_end = self._overflow.settle if promised else None
                sent_bytes += flight.length
        return Ahead(sent_bytes, offset + length)

    # --- complete copies ----------------------------------------------------------------------------------------

    async def _read_complete(self, version: VersionRef, offset: int, length: int) -> bytes | None:
        if not self._trusting:
            return await self._read_complete_checked(version, offset, length)
        while (file := self._copies.open(version)) is not None:
            data = await self._pread(version, file.fd, file.tier, offset, length)
            if data is not None:
                self._hit(version, file.tier, length)
                return data
        return None

    async def _read_complete_checked(self, version: VersionRef, offset: int, length: int) -> bytes | None:
        if not self._copies.is_complete(version.id):
            return None
        charge = await self._memory.take(Purpose.READ, 2 * length + BLOCK_SIZE_BYTES)
        try:
            while (found := self._copies.first_complete(version)) is not None:
                tier, residency = found
                data = await self._verifier.read_checked(version, tier, residency, offset, length)
                if data is not None:
                    self._hit(version, tier, length)
                    return data
            return None
        finally:
            self._memory.release(Purpose.READ, charge)

    async def _pread(self, version: VersionRef, fd: int, tier: Tier, offset: int, length: int) -> bytes | None:
        """Resident bytes; None after dropping a copy that cannot give them."""
        files = self._copies.tiers[tier]
        read = partial(_timed, files.clock, offset, length)
        try:
            if length <= INLINE_READ_BYTES:
                data, took_s = read(fd)
            else:
                data, took_s = await trio.to_thread.run_sync(_and_close, read, os.dup(fd))
        except OSError as error:
            self._copies.unreadable(version.id, tier, error)
            return None
        files.took(took_s, len(blocks_of(offset, length)))
        if len(data) != length:
            self._copies.damaged(version.id, tier, "its file is cut")
            return None
        return data

    # --- blocks -------------------------------------------------------------------------------------------------

    async def _read_blocks(self, version: VersionRef, offset: int, length: int) -> bytes | memoryview:
        charge = await self._memory.take(Purpose.READ, self._cost_bytes(offset, length))
        try:
            return await self._assemble(version, offset, length)
        finally:
            # Whoever asked answers at once, or holds the bytes on an account of its own.
            self._memory.release(Purpose.READ, charge)

    def _cost_bytes(self, offset: int, length: int) -> int:
        """What a read takes of the memory: its bytes, once more where parts are joined, and a block that is checked."""
        joined = len(blocks_of(offset, length)) > 1
        return length + (length if joined else 0) + (0 if self._trusting else BLOCK_SIZE_BYTES)

    async def _assemble(self, version: VersionRef, offset: int, length: int) -> bytes | memoryview:
        blocks = blocks_of(offset, length)
        with self._states.use(version) as state:
            if state.residency.empty and self._is_streamed(version):
                return await self._stream(version, state, offset, length)
            for attempt in range(MAX_ATTEMPTS):
                await self._verifier.check(version, state, blocks)
                if not attempt:
                    self._count(version, length, resident=self._is_resident(state, blocks))
                assembly = Assembly(offset, length)
                try:
                    resident = [block for block in blocks if state.residency.has(block)]
                    self._send_for(version, state, blocks, assembly)
                    await assembly.wait()
                    data = await self._read_landed(version, state, assembly)
                    if data is not None:
                        return data
                    if await self._put_resident(version, state, resident, assembly):
                        return assembly.result()
                finally:
                    assembly.forget()
        return await self._read_past_tiers(version, offset, length)

    def _is_streamed(self, version: VersionRef) -> bool:
        """Whether no tier is for this object, so that its bytes only pass through memory."""
        return not any(tier.takes(version.size_bytes, version.key) for tier in self._copies.tiers.values())

    async def _stream(self, version: VersionRef, state: VersionState, offset: int, length: int) -> bytes | memoryview:
        """By whole blocks as long as there is memory to keep them for the next step of the reader; else these bytes and
        no more."""
        blocks = blocks_of(offset, length)
        self._count(version, length, resident=False)
        missing = [block for block in blocks if self._is_missing(version, state, block)]
        missing_bytes = sum(_length_of(version, range(block, block + 1)) for block in missing)
        if missing and not self._overflow.promise(missing_bytes):
            return await self._read_past_tiers(version, offset, length)
        assembly = Assembly(offset, length)
        try:
            self._send_for(version, state, blocks, assembly, on_end=self._overflow.settle)
            await assembly.wait()
            return assembly.result()
        finally:
            assembly.forget()
            for block in blocks:
                if (block + 1) * BLOCK_SIZE_BYTES <= offset + length:
                    self._overflow.read_to_end(version.id, block)

    async def _read_past_tiers(self, version: VersionRef, offset: int, length: int) -> memoryview:
        charge = await self._memory.take(Purpose.FETCH, length)
        try:
            return await self._fetcher.request(
                lambda: version.origin.read(version.key, offset, length, version.etag), memoryview.toreadonly
            )
        finally:
            self._memory.release(Purpose.FETCH, charge)

    async def _read_landed(
        self, version: VersionRef, state: VersionState, assembly: Assembly
    ) -> bytes | memoryview | None:
        """Bytes that need no joining. A large read in several parts comes from the file that they filled, in a thread:
        joining them here would hold up all other tasks."""
        if assembly.in_one_part:
            return assembly.result()
        if assembly.length <= INLINE_READ_BYTES:
            return None
        return await self._read_resident(version, state, assembly.offset, assembly.length)

    def _send_for(
        self,
        version: VersionRef,
        state: VersionState,
        blocks: range,
        assembly: Assembly,
        *,
        on_end: Callable[[int], None] | None = None,
    ) -> None:
        """Everything that is not in the file: join what is in flight, take what is in memory, fetch the rest."""
        missing: list[int] = []
        for block in blocks:
            if state.residency.has(block):
                continue
            if block in state.in_flight:
                assembly.expect(state.in_flight[block])
            elif (data := self._overflow.get(version.id, block)) is not None:
                assembly.put(block * BLOCK_SIZE_BYTES, data)
            else:
                missing.append(block)
        for run in runs(missing, self._fetcher.blocks_per_request):
            flight = self._fetcher.start(version, state, run)
            flight.on_end = on_end
            assembly.expect(flight)

    async def _put_resident(
        self, version: VersionRef, state: VersionState, resident: Iterable[int], assembly: Assembly
    ) -> bool:
        for run in runs(resident, self._fetcher.blocks_per_request):
            start = max(assembly.offset, run.start * BLOCK_SIZE_BYTES)
            length = min(assembly.offset + assembly.length, run.stop * BLOCK_SIZE_BYTES) - start
            data = await self._read_resident(version, state, start, length)
            if data is None:
                return False
            assembly.put(start, data)
        return True

    async def _read_resident(self, version: VersionRef, state: VersionState, offset: int, length: int) -> bytes | None:
        if not all(state.residency.has(block) for block in blocks_of(offset, length)):
            return None  # never came, or was evicted meanwhile
        if not self._trusting:
            return await self._verifier.read_checked(version, Tier.NVME, state.residency, offset, length)
        file = self._copies.open_partial(version, state)
        return None if file is None else await self._pread(version, file.fd, Tier.NVME, offset, length)

    def _is_missing(self, version: VersionRef, state: VersionState, block: int) -> bool:
        return not state.has_or_awaits(block) and self._overflow.get(version.id, block) is None

    # --- accounts -----------------------------------------------------------------------------------------------

    def _hit(self, version: VersionRef, tier: Tier, length: int) -> None:
        self._count_hits[tier].inc()
        self._count_bytes[tier].inc(length)
        for files in self._copies.tiers.values():
            files.accessed(version.id)
        if tier != Tier.RAM:
            self._promoter.consider(version.id, version.size_bytes)

    @staticmethod
    def _is_resident(state: VersionState, blocks: range) -> bool:
        return all(state.residency.has(block) for block in blocks)

    def _count(self, version: VersionRef, length: int, *, resident: bool) -> None:
        if resident:
            self._hit(version, Tier.NVME, length)
            return
        self._count_misses.inc()
        self._count_origin_bytes.inc(length)
        for files in self._copies.tiers.values():
            files.accessed(version.id)


def _length_of(version: VersionRef, blocks: range) -> int:
    start = blocks.start * BLOCK_SIZE_BYTES
    return min(blocks.stop * BLOCK_SIZE_BYTES, version.size_bytes) - start


def _timed(clock: Callable[[], float], offset: int, length: int, fd: int) -> tuple[bytes, float]:
    began_s = clock()
    return read_extent(fd, offset, length), clock() - began_s


def _and_close(read: Callable[[int], T], fd: int) -> T:
    try:
        return read(fd)
    finally:
        os.close(fd)
