"""Entries and version records as bytes: a fixed struct header, then a variable tail.

The formats are part of the catalog's format number (``state.FORMAT``): change one, count up the other.
"""

from __future__ import annotations

import struct

from tiercache.catalog.records import Copy, VersionRecord
from tiercache.model import Entry, Kind, OriginId, Tier, VersionId

# Entry header: flags, kind, etag length, link target length, number of xattrs, then the fixed fields of Entry in order.
# Tail: etag, link target, then per xattr (name length, value length, name, value).
_ENTRY = struct.Struct("<BBHHHQQIIIqqqIqQ16s")
_XATTR = struct.Struct("<HI")
_HAS_VERSION = 1
_ATTRIBUTES_KNOWN = 2

# Version header: complete, number of copies, etag length, key length, blocks length, checksums length, size, origin.
# Tail: copies, etag, key, blocks, checksums.
_VERSION = struct.Struct("<BBHHIIQ8s")
_COPY = struct.Struct("<BQqQ")

# Tuples instead of ``Kind(n)`` and ``Entry(...)``: 4 times faster, and this is the path of every hit.
_KINDS = tuple(Kind)
_TIERS = tuple(Tier)
_NO_VERSION = VersionId(b"")
_unpack_entry = _ENTRY.unpack_from
_unpack_version = _VERSION.unpack_from
_unpack_copy = _COPY.unpack_from
_ENTRY_SIZE_BYTES = _ENTRY.size
_VERSION_SIZE_BYTES = _VERSION.size
_COPY_SIZE_BYTES = _COPY.size


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
    ) = _unpack_entry(data)
    etag_end = _ENTRY_SIZE_BYTES + etag_length
    target_end = etag_end + target_length
    return tuple.__new__(
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
            data[_ENTRY_SIZE_BYTES:etag_end].decode("utf-8", "surrogateescape"),
            staged,
            flags & _ATTRIBUTES_KNOWN != 0,
            data[etag_end:target_end],
            _decode_xattrs(data, target_end, xattr_total) if xattr_total else (),
        ),
    )


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
    header = _VERSION.pack(
        record.complete,
        len(record.copies),
        len(etag),
        len(record.key),
        len(record.blocks),
        len(record.checksums),
        record.size_bytes,
        record.origin,
    )
    copies = [_COPY.pack(*copy) for copy in record.copies]
    return b"".join((header, *copies, etag, record.key, record.blocks, record.checksums))


def decode_version(data: bytes) -> VersionRecord:
    """The record that ``encode_version`` stored."""
    complete, copy_total, etag_length, key_length, blocks_length, _, size, origin = _unpack_version(data)
    position = _VERSION_SIZE_BYTES
    copies = []
    for _ in range(copy_total):
        tier, inode, ctime, run = _unpack_copy(data, position)
        copies.append(tuple.__new__(Copy, (_TIERS[tier], inode, ctime, run)))
        position += _COPY_SIZE_BYTES
    key_start = position + etag_length
    blocks_start = key_start + key_length
    checksums_start = blocks_start + blocks_length
    return tuple.__new__(
        VersionRecord,
        (
            OriginId(origin),
            data[key_start:blocks_start],
            data[position:key_start].decode("utf-8", "surrogateescape"),
            size,
            complete != 0,
            tuple(copies),
            data[blocks_start:checksums_start],
            data[checksums_start:],
        ),
    )
