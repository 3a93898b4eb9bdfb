"""Files that enter or leave the tiers by their name alone: a staged file after its upload, a copy that is written to,
and a version whose etag changed."""

from __future__ import annotations

import os

from tiercache.cache.copies import Copies
from tiercache.cache.records import copy_in
from tiercache.cache.residency import Residency
from tiercache.cache.words import VersionRef
from tiercache.catalog import Copy
from tiercache.checksum import CHECKSUM_BYTES
from tiercache.model import Tier, VersionId, block_count
from tiercache.tier import FileIdentity, FileTier


def adopt(copies: Copies, version: VersionRef, path: str, checksums: bytes) -> bool:
    """Rename ``path`` into the NVMe tier as a complete version; False when the tier does not take it."""
    nvme = copies.tiers.get(Tier.NVME)
    if nvme is None or not _is_whole(version, path, checksums):
        return False
    copies.drop(version.id)
    reservation = nvme.reserve(
        version.id, version.size_bytes, object_bytes=version.size_bytes, name=version.key, is_there=True
    )
    if reservation is None:
        return False
    try:
        identity = _rename(path, nvme.path(version.id))
    except OSError as error:
        nvme.failed(error, "adopting a file")
        reservation.cancel()
        return False
    if not _record(copies, version, identity, checksums):
        reservation.cancel()
        return False
    reservation.settle()
    return True


def take_out(copies: Copies, version: VersionRef, path: str, *, file_inode: int) -> bytes | None:
    """Rename the complete NVMe copy to ``path`` and forget the version; its checksums, None when that is not to be."""
    nvme = copies.tiers.get(Tier.NVME)
    record = copies.records.find(version.id)
    copy = None if record is None or not record.complete else copy_in(record, Tier.NVME)
    if nvme is None or record is None or copy is None or copy.inode != file_inode:
        return None
    try:
        os.rename(nvme.path(version.id), path)
    except OSError as error:
        nvme.failed(error, "taking a file out")
        return None
    copies.drop(version.id)
    return record.checksums


def rebind(copies: Copies, old: VersionId, new: VersionRef) -> None:
    """Give the files of ``old`` to ``new``. Whatever cannot be moved is dropped: it can be fetched again."""
    record = copies.records.find(old)
    if record is None or old == new.id:
        return
    if record.size_bytes != new.size_bytes or copies.records.find(new.id) is not None:
        copies.drop(old)
        return
    copies.records.drop(old)
    copies.close_files(old)
    copies.on_lost(old)
    moved = [copy for copy in record.copies if copy.tier in copies.tiers]
    moved = [now for copy in moved if (now := _move(copies.tiers[copy.tier], old, new, copy)) is not None]
    if moved:
        named = record._replace(origin=new.origin_id, key=new.key, etag=new.etag, copies=tuple(moved))
        copies.records.put(new.id, named)


def _is_whole(version: VersionRef, path: str, checksums: bytes) -> bool:
    try:
        size_bytes = os.lstat(path).st_size
    except OSError:
        return False
    return size_bytes == version.size_bytes and len(checksums) == block_count(size_bytes) * CHECKSUM_BYTES


def _rename(source: str, target: str) -> FileIdentity:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        os.rename(source, target)
    return FileIdentity.of(os.lstat(target))


def _record(copies: Copies, version: VersionRef, identity: FileIdentity, checksums: bytes) -> bool:
    residency = Residency(version.size_bytes)
    residency.add(0, checksums)
    copy = Copy(Tier.NVME, identity.inode, identity.ctime_ns, copies.stamp)
    return copies.record(version, complete=True, residency=residency, copies=[copy])


def _move(tier: FileTier, old: VersionId, new: VersionRef, copy: Copy) -> Copy | None:
    try:
        before = os.lstat(tier.path(old))
        identity = _rename(tier.path(old), tier.path(new.id))
    except OSError as error:
        tier.failed(error, "renaming a file")
        tier.drop(old)
        return None
    if not tier.rename(old, new.id, name=new.key):
        return None
    unchanged = FileIdentity.of(before)[:2] == (copy.inode, copy.ctime_ns)
    # The rename changes the ctime. A file that somebody else had changed before stays distrusted.
    return copy._replace(ctime_ns=identity.ctime_ns if unchanged else 0)
