"""Questions to one snapshot of the catalog: plain functions of a transaction and its tables."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from tiercache.catalog.codec import decode_entry, decode_hit, decode_hit_version, decode_version
from tiercache.catalog.environment import Tables, Transaction
from tiercache.catalog.names import (
    inode_prefix,
    key_of_short,
    listing_key,
    long_children,
    long_name,
    short_children,
    short_name,
    split,
)
from tiercache.catalog.records import Hit, VersionRecord
from tiercache.model import Entry, Key, Kind, OriginId, VersionId

CHILDREN_LOOKED_AT = 32
"""How many children at either end ``shows_a_child`` looks at."""


PASSED_OVER = 4096
"""How many children ``names_after`` looks at in vain."""


def find_value(txn: Transaction, tables: Tables, origin: OriginId, key: Key) -> bytes | None:
    """The stored form of an entry."""
    stored = short_name(origin, key)
    if stored:
        return txn.get(stored, None, tables.names)
    value = txn.get(long_name(origin, key), None, tables.long_names)
    return None if value is None else unwrap(value)[1]


def wrap(key: Key, value: bytes) -> bytes:
    """What the table of long names holds: the whole key, then the entry."""
    return len(key).to_bytes(2, "little") + key + value


def unwrap(value: bytes) -> tuple[Key, bytes]:
    """Key and stored entry out of the table of long names."""
    end = 2 + int.from_bytes(value[:2], "little")
    return value[2:end], value[end:]


def find_entry(txn: Transaction, tables: Tables, origin: OriginId, key: Key) -> Entry | None:
    """The entry of ``key``, ABSENT ones included."""
    value = find_value(txn, tables, origin, key)
    return None if value is None else decode_entry(value)


def find_version(txn: Transaction, tables: Tables, version: VersionId) -> VersionRecord | None:
    """The record of one version."""
    value = txn.get(version, db=tables.versions)
    return None if value is None else decode_version(value)


def resolve(txn: Transaction, tables: Tables, origin: OriginId, key: Key) -> tuple[Entry, VersionRecord | None] | None:
    """Entry and version record of ``key``: the path of every hit."""
    value = find_value(txn, tables, origin, key)
    if value is None:
        return None
    entry = decode_entry(value)
    if not entry.version:
        return entry, None
    value = txn.get(entry.version, None, tables.versions)
    return entry, None if value is None else decode_version(value)


def find_hit(txn: Transaction, tables: Tables, origin: OriginId, key: Key) -> Hit | None:
    """What ``resolve`` finds, as far as a hit on the first copy needs it."""
    value = find_value(txn, tables, origin, key)
    found = None if value is None else decode_hit_version(value)
    if found is None:
        return None
    version, checked_ns = found
    value = txn.get(version, None, tables.versions)
    return None if value is None else decode_hit(version, checked_ns, value)


def scan(txn: Transaction, table: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every record whose stored key starts with ``prefix``, in order."""
    return _scan_from(txn, table, prefix, prefix)


def scan_children(txn: Transaction, tables: Tables, origin: OriginId, directory: Key) -> Iterator[tuple[bytes, bytes]]:
    """Name and stored entry of each child, ABSENT ones included, short names in order, then long ones."""
    prefix = short_children(origin, directory)
    start = len(prefix)
    for stored, value in scan(txn, tables.names, prefix):
        if len(stored) > start or directory:  # the root has no child without a name: that is the root itself
            yield stored[start:], value
    for _, wrapped in scan(txn, tables.long_names, long_children(origin, directory)):
        key, value = unwrap(wrapped)
        yield split(key)[1], value


def names_after(
    txn: Transaction, tables: Tables, origin: OriginId, directory: Key, name: bytes, kind: Kind, *, most: int
) -> list[bytes]:
    """Up to ``most`` short names of children of one kind that come after ``name``, in order. No more than
    ``PASSED_OVER`` children of other kinds are looked at."""
    prefix = short_children(origin, directory)
    start, found = prefix + name, list[bytes]()
    for stored, value in islice(_scan_from(txn, tables.names, start, prefix), most + PASSED_OVER):
        if value[1] == kind and stored > start:  # the second byte of a stored entry is its kind
            found.append(stored[len(prefix) :])
            if len(found) == most:
                break
    return found


def _scan_from(txn: Transaction, table: Any, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor(table)
    if cursor.set_range(start):
        for stored, value in cursor.iternext():
            if not stored.startswith(prefix):
                return
            yield stored, value


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking a large directory again and again as it grows: half the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def list_children(txn: Transaction, tables: Tables, origin: OriginId, directory: Key) -> list[tuple[bytes, Entry]]:
    """The children that exist, as far as the catalog knows."""
    with collector_paused():
        children = ((name, decode_entry(value)) for name, value in scan_children(txn, tables, origin, directory))
        return [(name, entry) for name, entry in children if entry.kind is not Kind.ABSENT]


def shows_a_child(txn: Transaction, tables: Tables, origin: OriginId, directory: Key) -> bool:
    """Whether one of the first or last children is known to exist. False says nothing: removed names stay as ABSENT
    ones, and whoever removes one after the other must not read all of them each time."""
    first = (value for _, value in islice(scan_children(txn, tables, origin, directory), CHILDREN_LOOKED_AT))
    last = islice(_scan_back(txn, tables.names, short_children(origin, directory)), CHILDREN_LOOKED_AT)
    return any(decode_entry(value).kind is not Kind.ABSENT for value in chain(first, last))


def _scan_back(txn: Transaction, table: Any, prefix: bytes) -> Iterator[bytes]:
    """The records whose stored key starts with ``prefix``, which ends in NUL, from the last one on."""
    cursor = txn.cursor(table)
    found = cursor.prev() if cursor.set_range(prefix[:-1] + b"\1") else cursor.last()
    if found:
        for stored, value in cursor.iterprev():
            if not stored.startswith(prefix):
                return
            yield value


def scan_below(txn: Transaction, tables: Tables, origin: OriginId, directory: Key) -> Iterator[tuple[Key, bytes]]:
    """Key and stored entry of everything below ``directory``, at any depth; the directory itself is not among it."""
    if not directory:
        short = scan(txn, tables.names, bytes(origin))
    else:
        deeper = scan(txn, tables.names, origin + directory + b"/")
        short = chain(scan(txn, tables.names, short_children(origin, directory)), deeper)
    for stored, value in short:
        key = key_of_short(stored)
        if key:
            yield key, value
    prefix = directory + b"/" if directory else b""
    for _, wrapped in scan(txn, tables.long_names, bytes(origin)):
        key, value = unwrap(wrapped)
        if key.startswith(prefix):
            yield key, value


def listed_ns(txn: Transaction, tables: Tables, origin: OriginId, directory: Key) -> int:
    """Wall clock of the last complete listing; 0 if there is none."""
    value = txn.get(listing_key(origin, directory), db=tables.listings)
    return 0 if value is None else int.from_bytes(value[:8], "little")


def scan_listings_below(
    txn: Transaction, tables: Tables, origin: OriginId, directory: Key
) -> Iterator[tuple[bytes, Key, bytes]]:
    """Stored key, directory and value of the listing marks of ``directory`` and of all below it."""
    prefix = directory + b"/" if directory else b""
    starts = [bytes(origin)] if not directory else [origin + directory, origin + b"\0"]
    for start in starts:
        for stored, value in scan(txn, tables.listings, start):
            listed = value[8:]
            if listed == directory or listed.startswith(prefix):
                yield stored, listed, value


def name_of_inode(txn: Transaction, tables: Tables, inode: int) -> tuple[OriginId, Key] | None:
    """One name of ``inode``; a hard-linked one has more."""
    for _, value in scan(txn, tables.inodes, inode_prefix(inode)):
        return OriginId(value[:8]), value[8:]
    return None


def names_of_inode(txn: Transaction, tables: Tables, origin: OriginId, inode: int) -> list[Key]:
    """All names of ``inode`` in one origin."""
    found = [value for _, value in scan(txn, tables.inodes, inode_prefix(inode))]
    return [value[8:] for value in found if value[:8] == origin]


def read_meta(txn: Transaction, tables: Tables, name: bytes) -> int:
    """A number of the meta table; 0 if it is not set."""
    return int.from_bytes(txn.get(name, db=tables.meta) or b"", "little")


def write_meta(txn: Transaction, tables: Tables, name: bytes, value: int) -> None:
    """Set a number of the meta table."""
    txn.put(name, value.to_bytes(8, "little"), db=tables.meta)
