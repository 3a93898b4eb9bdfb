"""Promotion: complete versions are copied from NVMe into the RAM tier when they are read again."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict

import trio

from tiercache.cache.copies import Copies
from tiercache.cache.records import copy_in
from tiercache.catalog import Copy, VersionRecord
from tiercache.checksum import CHECKSUM_BYTES, block_checksum
from tiercache.decisions import Decisions, Topic
from tiercache.memory import Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES, Tier, VersionId
from tiercache.tier import FileIdentity, FileTier, Reservation, read_extent, write_extent
from tiercache.tier.files import open_for_read

MAX_PROMOTIONS = 2
"""Copies at a time; further wishes are dropped, the next hit asks again."""
REMEMBERED_HITS = 4096

log = logging.getLogger(__name__)


class Promoter:
    """Promotes at a hit while the RAM tier has room, and for the price of an eviction only at a second hit.

    So one pass over a data set larger than the RAM tier does not copy every file of it.
    """

    def __init__(
        self, copies: Copies, *, memory: Memory, decisions: Decisions, metrics: Metrics, nursery: trio.Nursery
    ) -> None:
        self._copies = copies
        self._memory = memory
        self._ram = copies.tiers.get(Tier.RAM)
        self._nursery = nursery
        self._note = decisions.note
        self._hits_once: OrderedDict[VersionId, None] = OrderedDict()
        self._running: set[VersionId] = set()
        self._count_fill_bytes = metrics.fill_bytes.labels(tier=Tier.RAM.label)
        self._count_fills = metrics.fills.labels(tier=Tier.RAM.label)

    def is_running(self, version: VersionId) -> bool:
        return version in self._running

    def is_promoted(self, version: VersionId) -> bool:
        """Whether there is nothing left to do for it: it is in RAM, or there is no RAM tier."""
        return self._ram is None or version in self._ram

    def consider(self, version: VersionId, size_bytes: int) -> None:
        """An NVMe copy was read. Never blocks, never raises."""
        ram = self._ram
        if ram is None or version in ram or not ram.takes(size_bytes, b""):
            return
        if len(self._running) >= MAX_PROMOTIONS or not (ram.has_room(size_bytes) or self._second_hit(version)):
            return
        if version in self._running:
            return
        record = self._copies.records.find(version)
        source = copy_in(record, Tier.NVME)
        if record is None or source is None or source.verified_run != self._copies.run_id:
            return
        buffer_bytes = min(size_bytes, BLOCK_SIZE_BYTES)
        if not self._memory.try_take(Purpose.PROMOTION, buffer_bytes):
            return
        reservation = ram.reserve(version, size_bytes, object_bytes=size_bytes, name=bytes(record.key))
        if reservation is None:
            self._memory.release(Purpose.PROMOTION, buffer_bytes)
            return
        self._running.add(version)
        self._nursery.start_soon(self._promote, version, record, ram, reservation)

    def _second_hit(self, version: VersionId) -> bool:
        if version in self._hits_once:
            del self._hits_once[version]
            return True
        self._hits_once[version] = None
        self._note(version, Topic.ADMISSION, Tier.RAM, "first hit")
        if len(self._hits_once) > REMEMBERED_HITS:
            self._hits_once.popitem(last=False)
        return False

    async def _promote(
        self, version: VersionId, record: VersionRecord, ram: FileTier, reservation: Reservation
    ) -> None:
        done = False
        try:
            source = self._copies.tiers[Tier.NVME].path(version)
            identity = await trio.to_thread.run_sync(_copy_checked, source, ram.path(version), record)
            if identity is not None:
                done = self._record(version, record, identity)
            elif self._unchanged(version, record):
                self._copies.damaged(version, Tier.NVME, "a checksum differs")
        except OSError as error:
            if self._unchanged(version, record):
                ram.failed(error, "a promotion")
        except Exception:
            log.exception("promoting %s failed in an unforeseen way", version.hex())
        finally:
            self._running.discard(version)
            self._memory.release(Purpose.PROMOTION, min(record.size_bytes, BLOCK_SIZE_BYTES))
            if done:
                reservation.settle()
                self._count_fill_bytes.inc(record.size_bytes)
                self._count_fills.inc()
            else:
                reservation.cancel()

    def _unchanged(self, version: VersionId, before: VersionRecord) -> VersionRecord | None:
        """The record, unless its copy was dropped, or taken by a writer, since the promotion began."""
        now = self._copies.records.find(version)
        return now if now is not None and copy_in(now, Tier.NVME) == copy_in(before, Tier.NVME) else None

    def _record(self, version: VersionId, before: VersionRecord, identity: FileIdentity) -> bool:
        now = self._unchanged(version, before)
        if now is None or copy_in(now, Tier.RAM):
            return False
        fast = Copy(Tier.RAM, identity.inode, identity.ctime_ns, self._copies.stamp)
        self._copies.files.close(version)
        return self._copies.records.put(version, now._replace(copies=(fast, *now.copies)))


def _copy_checked(source: str, target: str, record: VersionRecord) -> FileIdentity | None:
    """Copy block by block, each compared with its checksum; None when one differs."""
    fd = open_for_read(source)
    try:
        identity = write_extent(target, 0, b"", size_bytes=record.size_bytes)
        for number, offset in enumerate(range(0, record.size_bytes, BLOCK_SIZE_BYTES)):
            data = read_extent(fd, offset, min(BLOCK_SIZE_BYTES, record.size_bytes - offset))
            checksum = record.checksums[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]
            if block_checksum(data) != checksum:
                return None
            identity = write_extent(target, offset, data, size_bytes=record.size_bytes)
        return identity
    finally:
        os.close(fd)
