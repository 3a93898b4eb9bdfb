"""Turn what an origin says into catalog entries, and judge how fresh they are."""

from __future__ import annotations

import os
import time

from tiercache.model import (
    SPECIAL_KINDS,
    Attributes,
    Entry,
    Key,
    Kind,
    ObjectStat,
    OriginId,
    VersionId,
    version_id,
)

DEFAULT_MODES = {Kind.FILE: 0o644, Kind.DIRECTORY: 0o755, Kind.SYMLINK: 0o777, **dict.fromkeys(SPECIAL_KINDS, 0o644)}


def now_ns() -> int:
    """The wall clock: entries are compared across processes and restarts."""
    return time.time_ns()


def is_fresh(entry: Entry, ttl_s: float, negative_ttl_s: float, at_ns: int) -> bool:
    """Whether ``entry`` may be believed without asking the origin."""
    if entry.staged:
        return True
    if not entry.checked_ns:
        return False  # in doubt, also for who believes names for ever
    ttl = negative_ttl_s if entry.kind is Kind.ABSENT else ttl_s
    age_s = (at_ns - entry.checked_ns) / 1e9
    # A clock that was set back must not make an entry fresh for ever.
    return -1.0 < age_s < ttl


def entry_of(stat: ObjectStat, *, origin: OriginId, inode: int, old: Entry | None, at_ns: int) -> Entry:
    """The entry for what the origin says now. Attributes that a listing leaves out are kept from ``old``
    while it is the same version, else they are defaults (``attributes_known`` is False)."""
    if stat.attributes is not None:
        attributes, known = stat.attributes, True
    elif old is not None and old.kind is stat.kind and old.etag == stat.etag and old.attributes_known:
        attributes, known = attributes_of(old), True
    else:
        attributes = Attributes(DEFAULT_MODES[stat.kind], os.getuid(), os.getgid(), stat.modified_ns)
        known = False
    return Entry(
        kind=stat.kind,
        inode=inode,
        size_bytes=stat.size_bytes,
        mode=attributes.mode & 0o7777,
        uid=attributes.uid,
        gid=attributes.gid,
        mtime_ns=attributes.mtime_ns,
        atime_ns=attributes.atime_ns or attributes.mtime_ns,
        ctime_ns=attributes.ctime_ns or attributes.mtime_ns,
        link_count=stat.link_count,
        checked_ns=at_ns,
        version=version_id(origin, stat.key, stat.etag) if stat.kind is Kind.FILE else VersionId(b""),
        etag=stat.etag,
        staged=0,
        attributes_known=known,
        link_target=stat.link_target,
        xattrs=attributes.xattrs,
        device=stat.device,
    )


def absent_entry(at_ns: int) -> Entry:
    """A remembered negative lookup."""
    return Entry(kind=Kind.ABSENT, inode=0, checked_ns=at_ns)


def directory_entry(inode: int, at_ns: int, *, known: bool = False) -> Entry:
    """A directory that only exists because of what lies, or lay, under it."""
    return Entry(
        kind=Kind.DIRECTORY,
        inode=inode,
        mode=DEFAULT_MODES[Kind.DIRECTORY],
        uid=os.getuid(),
        gid=os.getgid(),
        mtime_ns=at_ns,
        atime_ns=at_ns,
        ctime_ns=at_ns,
        checked_ns=at_ns,
        attributes_known=known,
    )


def attributes_of(entry: Entry) -> Attributes:
    """The part of an entry that an origin stores with the object."""
    return Attributes(
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        mtime_ns=entry.mtime_ns,
        atime_ns=entry.atime_ns,
        ctime_ns=entry.ctime_ns,
        xattrs=entry.xattrs,
    )


def with_attributes(entry: Entry, attributes: Attributes) -> Entry:
    """The entry with other attributes, which are known from now on."""
    return entry._replace(
        mode=attributes.mode & 0o7777,
        uid=attributes.uid,
        gid=attributes.gid,
        mtime_ns=attributes.mtime_ns,
        atime_ns=attributes.atime_ns,
        ctime_ns=attributes.ctime_ns,
        xattrs=attributes.xattrs,
        attributes_known=True,
    )


def staged_entry(attributes: Attributes, inode: int, *, staged: int, size_bytes: int) -> Entry:
    """A file whose newest bytes are staged."""
    return with_attributes(Entry(Kind.FILE, inode, size_bytes, staged=staged, checked_ns=now_ns()), attributes)


def child_name(key: Key, directory: Key) -> bytes:
    """The last component of a direct child's key (which may hold no further slash)."""
    return key[len(directory) + 1 :] if directory else key
