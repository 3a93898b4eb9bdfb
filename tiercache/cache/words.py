"""What callers of the cache hold: a version they want, and where its bytes lie."""

from __future__ import annotations

from typing import NamedTuple

from tiercache.model import Key, ObjectStat, OriginId, Tier, VersionId, version_id
from tiercache.origins.base import Origin


class VersionRef(NamedTuple):
    """One version and the origin that can give its bytes (with retries inside: the cache itself asks once)."""

    origin: Origin
    origin_id: OriginId
    key: Key
    etag: str
    size_bytes: int
    id: VersionId


class Location(NamedTuple):
    """A local file that holds bytes of a version. Whoever opens it compares the inode: another one is a miss."""

    path: str
    inode: int
    tier: Tier


def version_ref(origin: Origin, origin_id: OriginId, stat: ObjectStat) -> VersionRef:
    """The version that ``stat`` describes."""
    identity = version_id(origin_id, stat.key, stat.etag)
    return VersionRef(origin, origin_id, stat.key, stat.etag, stat.size_bytes, identity)
