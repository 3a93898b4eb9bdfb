"""Merging a directory's listing from the origin into what the catalog knows of its children."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tiercache.catalog import changes, queries
from tiercache.catalog.codec import decode_entry
from tiercache.catalog.environment import Tables, Transaction
from tiercache.model import Entry, Key, Kind, OriginId, join


def put_listing(
    txn: Transaction,
    tables: Tables,
    origin: OriginId,
    directory: Key,
    entries: Iterable[tuple[bytes, Entry]],
    *,
    listed_ns: int,
    new_inode: Callable[[], int],
) -> list[tuple[bytes, Entry]]:
    """Make the children what the listing says, but for those that the node knows better. Returns those that exist.

    A child that is staged, or was confirmed after ``listed_ns`` (created, deleted or looked up while the listing
    ran), stays as it is. Other children keep their inode number while their kind stays, and their attributes while
    their etag stays. Children that the listing lacks are forgotten with everything below them, but a directory that
    holds staged files stays, also where the listing has a file of its name.
    """
    known = {name: decode_entry(value) for name, value in queries.scan_children(txn, tables, origin, directory)}
    result: list[tuple[bytes, Entry]] = []
    bulk = changes.Bulk()
    for name, listed in _unique(entries).items():
        old = known.pop(name, None)
        if old is not None and _is_newer(txn, tables, origin, join(directory, name), old, listed, listed_ns):
            if old.kind is not Kind.ABSENT:
                result.append((name, old))
            continue
        entry = _merge(old, listed) if old is not None else listed
        if not entry.inode:
            entry = _with_inode(entry, new_inode())
        key = join(directory, name)
        if old is not None and old.kind is Kind.DIRECTORY and entry.kind is not Kind.DIRECTORY:
            changes.drop_tree(txn, tables, origin, key)
            old = None
        bulk.add(origin, key, entry, old_inode=old.inode if old is not None else 0)
        result.append((name, entry))
    bulk.put(txn, tables)
    for name, old in known.items():
        if _is_newer(txn, tables, origin, join(directory, name), old, None, listed_ns):
            if old.kind is not Kind.ABSENT:
                result.append((name, old))
        elif old.kind is Kind.DIRECTORY:
            changes.drop_tree(txn, tables, origin, join(directory, name))
        else:
            changes.drop_entry(txn, tables, origin, join(directory, name))
    changes.put_listed(txn, tables, origin, directory, listed_ns)
    return result


def _unique(entries: Iterable[tuple[bytes, Entry]]) -> dict[bytes, Entry]:
    """The listing by name; where an object and a prefix share one, the directory wins."""
    unique: dict[bytes, Entry] = {}
    for name, entry in entries:
        if name not in unique or entry.kind is Kind.DIRECTORY:
            unique[name] = entry
    return unique


def _is_newer(
    txn: Transaction, tables: Tables, origin: OriginId, key: Key, old: Entry, listed: Entry | None, listed_ns: int
) -> bool:
    """Whether the node knows better than the listing, which has ``listed`` or nothing under this name."""
    if old.staged or old.checked_ns > listed_ns:
        return True
    if old.kind is not Kind.DIRECTORY or (listed is not None and listed.kind is Kind.DIRECTORY):
        return False
    return any(decode_entry(value).staged for _, value in queries.scan_below(txn, tables, origin, key))


def _merge(old: Entry, listed: Entry) -> Entry:
    """The listed child, with what the old entry of the same name has to give."""
    inode = listed.inode or (old.inode if _same_kind(old, listed) else 0)
    if listed.attributes_known or not old.attributes_known or old.etag != listed.etag or not _same_kind(old, listed):
        return _with_inode(listed, inode)
    return listed._replace(
        inode=inode,
        kind=old.kind,
        mode=old.mode,
        uid=old.uid,
        gid=old.gid,
        mtime_ns=old.mtime_ns,
        atime_ns=old.atime_ns,
        ctime_ns=old.ctime_ns,
        link_count=old.link_count,
        attributes_known=True,
        link_target=old.link_target,
        xattrs=old.xattrs,
    )


def _with_inode(entry: Entry, inode: int) -> Entry:
    """``entry._replace(inode=inode)``, ten times faster."""
    return Entry(entry.kind, inode, *entry[2:])


def _same_kind(old: Entry, listed: Entry) -> bool:
    """Whether both can be one object: a listing of an object store shows a symlink as the file that stores it."""
    if old.kind is listed.kind:
        return True
    unchanged = old.etag == listed.etag and not listed.attributes_known
    return unchanged and old.kind is Kind.SYMLINK and listed.kind is Kind.FILE
