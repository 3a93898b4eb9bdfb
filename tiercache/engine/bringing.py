"""Bring a whole file into the cache for somebody who will read it, and into the kernel where a mount can do that."""

from __future__ import annotations

from tiercache.cache import Cache
from tiercache.engine.first_read import first_read
from tiercache.engine.names import require_bytes
from tiercache.engine.namespace import Namespace
from tiercache.model import Key, Kind, VersionId
from tiercache.readahead import Brought

NOTHING = Brought(VersionId(b""), 0, came=False, kept=True)
"""What lies in staging is here, and a link is followed by whoever reads."""


async def bring(space: Namespace, cache: Cache, key: Key, *, most_bytes: int) -> Brought:
    """Make up to ``most_bytes`` of a file resident, from its beginning. Absent, and what the origin raises."""
    entry = space.known(key)
    unknown = entry is None
    if entry is None:
        entry = await first_read(space, cache, key, ahead=True)
    elif entry.kind is Kind.ABSENT:
        entry = await space.lookup(key)
    if entry.kind is Kind.SYMLINK or entry.staged:
        return NOTHING
    require_bytes(key, entry)
    version = space.tree.version_ref(key, entry)
    size_bytes = min(entry.size_bytes, most_bytes)
    if unknown and cache.is_complete(version.id):
        return Brought(version.id, size_bytes, came=True, kept=True)
    if await cache.locate_verified(version) is not None:
        return Brought(version.id, size_bytes, came=unknown, kept=True)
    return Brought(version.id, size_bytes, came=True, kept=await cache.bring(version, size_bytes))


def push(space: Namespace, cache: Cache, key: Key) -> bool:
    """Have mounts show the kernel a file that is here; whether one of them will try. It counts as read then: nobody
    tells of a read that the kernel answers."""
    if not space.tree.pushers:
        return False
    entry = space.known(key)
    if entry is None or entry.kind is not Kind.FILE or entry.staged or not entry.version:
        return False
    version = space.tree.version_ref(key, entry)
    location = cache.locate(version)
    if location is None:
        return False
    queued = [push(entry, location) for push in space.tree.pushers]  # each of them, not the first one
    if not any(queued):
        return False
    cache.touched([version.id])
    return True
