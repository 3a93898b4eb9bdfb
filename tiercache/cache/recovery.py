"""Recovery at start: records and files that an earlier run left are brought in step, and accounts and policies rebuilt.

What a kill -9 can leave: a file without record (deleted), a record without file (dropped), an incomplete file with more
bytes than its record says (they are fetched again), a RAM tier (emptied).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import trio

from tiercache.cache.copies import Copies
from tiercache.cache.records import copy_in
from tiercache.cache.residency import Residency
from tiercache.catalog import VersionRecord
from tiercache.model import BLOCK_SIZE_BYTES, Tier, VersionId
from tiercache.tier import FileTier
from tiercache.tier.files import FoundFile, unlink_quietly
from tiercache.tier.tier import charge_bytes

STEP = 1000
"""Versions handled between two chances for other tasks to run."""

log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """What recovery found."""

    kept_versions: int
    dropped_records: int
    deleted_files: int


class _Kept(NamedTuple):
    used_ns: int
    version: VersionId
    charged_bytes: int
    name: bytes


async def recover(copies: Copies) -> Recovered:
    """Run once, before the first read. Policies learn the versions in order of their last use."""
    nvme = copies.tiers.get(Tier.NVME)
    found = await trio.to_thread.run_sync(_scan, nvme) if nvme is not None else {}
    kept, dropped = await _match(copies, found)
    garbage = [files.path(version) for files in _working(nvme) for version in found if version not in kept]
    ram = copies.tiers.get(Tier.RAM)
    for files in _working(ram):
        leftovers = await trio.to_thread.run_sync(_scan, files)
        garbage += [files.path(version) for version in leftovers]
    await trio.to_thread.run_sync(_delete, garbage)
    for files in _working(nvme):
        for entry in sorted(kept.values()):
            files.restore(entry.version, entry.charged_bytes, name=entry.name)
        files.trim()
    return Recovered(len(kept), dropped, len(garbage))


async def _match(copies: Copies, found: dict[VersionId, FoundFile]) -> tuple[dict[VersionId, _Kept], int]:
    kept: dict[VersionId, _Kept] = {}
    dropped = 0
    records = list(copies.records.all())
    for start in range(0, len(records), STEP):
        with copies.records.batch():
            for version, record in records[start : start + STEP]:
                entry = _settle(copies, version, record, found.get(version))
                if entry is None:
                    dropped += 1
                else:
                    kept[version] = entry
        await trio.lowlevel.checkpoint()
    return kept, dropped


def _settle(copies: Copies, version: VersionId, record: VersionRecord, file: FoundFile | None) -> _Kept | None:
    """Keep the NVMe copy of a record when its file can be the recorded one; RAM copies are gone with their engine."""
    copy = copy_in(record, Tier.NVME)
    fits = file is not None and copy is not None and file.identity.size_bytes == record.size_bytes
    if file is None or copy is None or not fits or not (record.complete or file.identity.inode == copy.inode):
        if copy is not None:
            copies.damaged(version, Tier.NVME, "its file is gone, cut or replaced")
        copies.records.drop(version)
        return None
    if record.copies != (copy,):
        copies.records.put(version, record._replace(copies=(copy,)))
    return _Kept(file.used_ns, version, _charge(record), record.key)


def _charge(record: VersionRecord) -> int:
    if record.complete:
        return charge_bytes(record.size_bytes)
    residency = Residency.recorded(record.size_bytes, complete=False, blocks=record.blocks, checksums=record.checksums)
    return sum(
        charge_bytes(residency.length_of(block))
        for block in range(-(-record.size_bytes // BLOCK_SIZE_BYTES))
        if residency.has(block)
    )


def _working(tier: FileTier | None) -> list[FileTier]:
    return [tier] if tier is not None and tier.works else []


def _scan(tier: FileTier) -> dict[VersionId, FoundFile]:
    if not tier.works:
        return {}
    try:
        return dict(tier.scan())
    except OSError as error:
        log.warning("%s tier: cannot read %s: %s", tier.tier.label, tier.directory, error)
        return {}


def _delete(paths: list[str]) -> None:
    for path in paths:
        try:
            unlink_quietly(path)
        except OSError as error:
            log.warning("cannot remove the leftover %s: %s", path, error)
