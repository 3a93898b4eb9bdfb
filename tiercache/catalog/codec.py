"""Entries and version records as bytes: a fixed struct header, then a variable tail.

The formats are part of the catalog's format number (``state.FORMAT``): change one, count up the other.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import Any

from tiercache.catalog.records import Copy, Hit, VersionRecord
from tiercache.model import Entry, Kind, Tier, VersionId

# Entry header: flags, kind, etag length, link target length, number of xattrs, then the fixed fields of Entry in order.
# Tail: etag, link target, then per xattr (name length, value length, name, value).
_ENTRY = struct.Struct("<BBHHHQQIIIqqqIqQ16sI")
_XATTR = struct.Struct("<HI")
_HAS_VERSION = 1
_ATTRIBUTES_KNOWN = 2

# Version header: complete, number of copies, etag length, key length, blocks length, checksums length, size, origin.
# Tail: copies, etag, key, blocks, checksums.
_VERSION = "<BBHHIIQ8s"
_COPY = "BQqQ"
_COPIES_LIMIT = len(Tier)
_VERSION_WITH = [struct.Struct(_VERSION + total * _COPY) for total in range(_COPIES_LIMIT + 1)]
"""One struct for header and copies together, by the number of copies."""

# Tuples instead of ``Kind(n)`` and ``Entry(...)``: 4 times faster, and this is the path of every hit.
_new: Any = tuple.__new__
_KINDS = tuple(Kind)
_TIERS = tuple(Tier)
_NO_VERSION = VersionId(b"")
_unpack_entry = _ENTRY.unpack_from
# The same layouts with all but a hit's fields padded out: a third of the time.
_unpack_hit_entry = struct.Struct("<B63xqQ16s").unpack_from
_unpack_hit_version = struct.Struct("<14xQ8xBQqQ").unpack_from
_ENTRY_SIZE_BYTES = _ENTRY.size


def encode_entry(entry: Entry) -> bytes:
    """The stored form of ``entry``."""
    etag = entry.etag.encode("utf-8", "surrogateescape")
    header = _ENTRY.pack(
        (_HAS_VERSION if entry.version else 0) | (_ATTRIBUTES_KNOWN if entry.attributes_known else 0),
        entry.kind,
        len(etag),
        len(entry.link_target),
        len(entry.xattrs),
        entry.inode,
        entry.size_bytes,
        entry.mode,
        entry.uid,
        entry.gid,
        entry.mtime_ns,
        entry.atime_ns,
        entry.ctime_ns,
        entry.link_count,
        entry.checked_ns,
        entry.staged,
        entry.version,
        entry.device,
    )
    if not entry.xattrs:
        return header + etag + entry.link_target
    xattrs = [_XATTR.pack(len(name), len(value)) + name + value for name, value in entry.xattrs]
    return b"".join((header, etag, entry.link_target, *xattrs))


def decode_entry(data: bytes) -> Entry:
    """The entry that ``encode_entry`` stored."""
    (
        flags,
        kind,
        etag_length,
        target_length,
        xattr_total,
        inode,
        size,
        mode,
        uid,
        gid,
        mtime,
        atime,
        ctime,
        links,
        checked,
        staged,
        version,
        device,
    ) = _unpack_entry(data)
    etag_end = _ENTRY_SIZE_BYTES + etag_length
    target_end = etag_end + target_length
    entry: Entry = _new(
        Entry,
        (
            _KINDS[kind],
            inode,
            size,
            mode,
            uid,
            gid,
            mtime,
            atime,
            ctime,
            links,
            checked,
            version if flags & _HAS_VERSION else _NO_VERSION,
            _text(data[_ENTRY_SIZE_BYTES:etag_end]),
            staged,
            flags & _ATTRIBUTES_KNOWN != 0,
            data[etag_end:target_end],
            _decode_xattrs(data, target_end, xattr_total) if xattr_total else (),
            device,
        ),
    )
    return entry


def _decode_xattrs(data: bytes, position: int, total: int) -> tuple[tuple[bytes, bytes], ...]:
    xattrs = []
    for _ in range(total):
        name_length, value_length = _XATTR.unpack_from(data, position)
        name_start = position + _XATTR.size
        value_start = name_start + name_length
        position = value_start + value_length
        xattrs.append((data[name_start:value_start], data[value_start:position]))
    return tuple(xattrs)


def encode_version(record: VersionRecord) -> bytes:
    """The stored form of ``record``."""
    etag = record.etag.encode("utf-8", "surrogateescape")
    copies = record.copies
    header = _VERSION_WITH[len(copies)].pack(
        record.complete,
        len(copies),
        len(etag),
        len(record.key),
        len(record.blocks),
        len(record.checksums),
        record.size_bytes,
        record.origin,
        *chain.from_iterable(copies),
    )
    return b"".join((header, etag, record.key, record.blocks, record.checksums))


def decode_version(data: bytes) -> VersionRecord:
    """The record that ``encode_version`` stored."""
    layout = _VERSION_WITH[data[1]]
    complete, _, etag_length, key_length, blocks_length, _, size, origin, *copies = layout.unpack_from(data)
    etag_start = layout.size
    key_start = etag_start + etag_length
    blocks_start = key_start + key_length
    checksums_start = blocks_start + blocks_length
    if len(copies) == 4:  # on NVMe
        copies[0] = _TIERS[copies[0]]
        decoded: tuple[Copy, ...] = (_new(Copy, copies),)
    elif len(copies) == 8:  # in RAM too; a loop would take twice as long
        fast, fast_inode, fast_ctime, fast_run, slow, slow_inode, slow_ctime, slow_run = copies
        decoded = (
            _new(Copy, (_TIERS[fast], fast_inode, fast_ctime, fast_run)),
            _new(Copy, (_TIERS[slow], slow_inode, slow_ctime, slow_run)),
        )
    else:
        decoded = tuple(Copy(_TIERS[copies[at]], *copies[at + 1 : at + 4]) for at in range(0, len(copies), 4))
    record: VersionRecord = _new(
        VersionRecord,
        (
            origin,
            data[key_start:blocks_start],
            _text(data[etag_start:key_start]),
            size,
            complete != 0,
            decoded,
            data[blocks_start:checksums_start],
            data[checksums_start:],
        ),
    )
    return record


def decode_hit_version(data: bytes) -> tuple[VersionId, int] | None:
    """Version and ``checked_ns`` of a stored entry; None if it is staged or has no version."""
    flags, checked, staged, version = _unpack_hit_entry(data)
    return None if staged or not flags & _HAS_VERSION else (version, checked)


def decode_hit(version: VersionId, checked_ns: int, data: bytes) -> Hit | None:
    """A hit on the first copy of a stored version record; None unless it is complete and has one."""
    if not data[0] or not data[1]:
        return None
    size, tier, inode, ctime, run = _unpack_hit_version(data)
    hit: Hit = _new(Hit, (version, checked_ns, size, _TIERS[tier], inode, ctime, run))
    return hit


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:  # rare, so the common case pays for no error handler
        return data.decode("utf-8", "surrogateescape")
