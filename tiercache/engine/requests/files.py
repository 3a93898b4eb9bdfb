"""Operations on bytes: open, fetch and read versions, and files that a client writes itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import trio

from tiercache.cache import Location, VersionRef
from tiercache.engine.first_read import first_read
from tiercache.engine.names import require_bytes
from tiercache.engine.namespace import Namespace
from tiercache.engine.requests.names import expire
from tiercache.engine.requests.registry import Call, Nature, operation
from tiercache.errors import Absent, Changed, InvalidArgument, NoSpace, TierCacheError, Unsupported
from tiercache.ipc import DATA_CHUNK_BYTES, FETCH_MAX_BYTES, PREFETCH_KEYS_MAX, STAGING_GRANT_BYTES, STAGING_GRANT_SHARE
from tiercache.model import BLOCK_SIZE_BYTES, Entry, Key, Kind, Tier, VersionId, version_id

PREFETCH_AT_ONCE: Final = 64
"""Files of one prefetch that are opened at a time."""

log = logging.getLogger("tiercache.engine")


@operation(Nature.READ)
async def open_(call: Call, *, namespace: int, key: bytes) -> dict[str, Any]:
    """Describe a file and make a small one resident, in one round trip to the origin where that is possible.

    Answers ``entry`` and, if there are local bytes, ``path`` and ``inode``; ``data`` for a small object that cannot be
    kept. A large object is opened as it is: the client asks for what it reads.
    """
    space = call.namespace(namespace)
    space.files.note_missed(key)
    try:
        answer = await _open(call, space, key)
    except Changed:
        # What we knew of the name is out of date: the object was replaced since. Ask again, once.
        expire(space.tree, key)
        answer = await _open(call, space, key)
    entry: Entry = answer["entry"]
    if entry.version and not entry.staged:
        call.engine.trace.read(entry.version, entry.size_bytes)
    return answer


async def _open(call: Call, space: Namespace, key: Key) -> dict[str, Any]:
    entry = space.known(key)
    if entry is None:
        entry = await first_read(space, call.engine.cache, key)
    elif entry.kind is Kind.ABSENT:
        entry = await space.lookup(key)  # raises Absent with its words
    return await _open_entry(call, space, key, entry)


async def _open_entry(call: Call, space: Namespace, key: Key, entry: Entry) -> dict[str, Any]:
    require_bytes(key, entry)
    if entry.kind is Kind.SYMLINK:
        return {"entry": entry}  # whoever opens follows it
    if entry.staged:
        staged = call.engine.staging.open(entry.staged)
        staged.require_whole()
        return {"entry": entry, "path": staged.path, "inode": staged.inode, "complete": True}
    version = space.tree.version_ref(key, entry)
    location = await call.engine.cache.locate_verified(version)
    if location is None and entry.size_bytes <= BLOCK_SIZE_BYTES:
        return {"entry": entry, **await _small(call, version)}
    return {"entry": entry, **_where(location)}


async def _small(call: Call, version: VersionRef) -> dict[str, Any]:
    location = await call.engine.cache.ensure(version, 0, version.size_bytes)
    if location is not None:
        return _where(location)
    await call.hold_answer(version.size_bytes)
    return {"data": await call.engine.cache.read(version, 0, version.size_bytes)}


def _where(location: Location | None, *, complete: bool = True) -> dict[str, Any]:
    if location is None:
        return {}
    return {"path": location.path, "inode": location.inode, "complete": complete}


@operation(Nature.READ)
async def prefetch(call: Call, *, namespace: int, keys: list[bytes]) -> None:
    """Open many files at once, so that small ones are resident afterwards. Errors are left to the reads that follow."""
    if len(keys) > PREFETCH_KEYS_MAX:
        raise InvalidArgument(f"cannot prefetch {len(keys)} files at once")
    space = call.namespace(namespace)
    slots = trio.Semaphore(PREFETCH_AT_ONCE)

    async def one(key: Key) -> None:
        try:
            await _open(call, space, key)
        except TierCacheError as error:
            log.debug("prefetch: %s", error)
        finally:
            slots.release()

    async with trio.open_nursery() as nursery:
        for key in keys:
            await slots.acquire()
            nursery.start_soon(one, key)


@operation(Nature.READ)
async def fetch(
    call: Call, *, namespace: int, key: bytes, etag: str, size: int, offset: int, length: int, reader: bytes
) -> dict[str, Any]:
    """Make a range of one version resident and say in which file; empty when it cannot be kept: then use ``read``."""
    space = call.namespace(namespace)
    if not 0 <= offset <= offset + length <= size or length > FETCH_MAX_BYTES:
        raise InvalidArgument(f"cannot fetch {length} bytes at {offset} of an object of {size}")
    version = _version(space, key, etag, size)
    call.shared.windows.observe(call.engine, reader, version, offset, length)
    cache = call.engine.cache
    try:
        location = await cache.locate_verified(version)
        if location is not None:
            return _where(location)
        location = await cache.ensure(version, offset, length)
    except (Changed, Absent) as error:
        raise _gone(space, key) from error
    return _where(location, complete=cache.locate(version) is not None)


@operation(Nature.READ)
async def read(
    call: Call, *, namespace: int, key: bytes, etag: str, size: int, offset: int, length: int, reader: bytes
) -> bytes | memoryview:
    """Bytes of a version that no local file holds."""
    space = call.namespace(namespace)
    if not 0 <= offset <= offset + length <= size or length > DATA_CHUNK_BYTES:
        raise InvalidArgument(f"cannot read {length} bytes at {offset} of an object of {size}")
    version = _version(space, key, etag, size)
    call.shared.windows.observe(call.engine, reader, version, offset, length)
    await call.hold_answer(length)
    try:
        return await call.engine.cache.read(version, offset, length)
    except (Changed, Absent) as error:
        raise _gone(space, key) from error


@operation(Nature.READ)
async def advance(
    call: Call, *, namespace: int, key: bytes, etag: str, size: int, offset: int, length: int, reader: bytes
) -> None:
    """A notice: the reader goes on by itself in bytes that are resident, so read-ahead should too."""
    version = _version(call.namespace(namespace), key, etag, size)
    call.shared.windows.observe(call.engine, reader, version, offset, length)


@operation(Nature.READ)
async def leave(call: Call, *, reader: bytes) -> None:
    """A notice: the reader is closed."""
    call.shared.windows.forget(call.engine, reader)


@operation(Nature.READ)
async def touched(call: Call, *, ids: list[bytes], tiers: bytes) -> None:
    """A notice: versions that a client read without asking, with the tier of each."""
    call.engine.cache.touched(VersionId(identity) for identity in ids)
    for identity in ids:
        call.engine.planned.touched(VersionId(identity))
    call.engine.trace.touched(map(VersionId, ids))
    hits = call.engine.metrics.hits
    for tier in Tier:
        hits.labels(tier=tier.label).inc(tiers.count(tier))


def _version(space: Namespace, key: Key, etag: str, size: int) -> VersionRef:
    identity = version_id(space.origin_id, key, etag)
    return VersionRef(space.tree.origin, space.origin_id, key, etag, size, identity)


def _gone(space: Namespace, key: Key) -> Changed:
    expire(space.tree, key)
    return Changed(f"/{key.decode('utf-8', 'backslashreplace')}: changed at the origin while it was open")


# -- files that the client writes -------------------------------------------------------------------


# A change, not a read: once it has begun, the file must come into the list of what this connection leaves behind.
@operation(Nature.CHANGE)
async def create(call: Call, *, namespace: int, key: bytes, exclusive: bool, keep: bool) -> dict[str, Any]:
    """A staged file, invisible until ``publish``, that the client opens and writes; discarded when it leaves before."""
    space = call.namespace(namespace)
    staged, path, size_bytes = await space.stage(key, exclusive=exclusive, keep=keep)
    call.owner.staged[staged] = space
    return {"staged": staged, "path": path, "size": size_bytes}


@operation(Nature.LONG)
async def reserve(call: Call, *, staged: int, length: int) -> int:
    """Room in the staging budget for at least ``length`` further bytes of a file; answers with how many were granted.
    Waits while staging is full, however long that takes. NoSpace when waiting is in vain."""
    _space_of(call, staged)
    _require_grantable(length)
    staging = call.engine.staging
    # In steps, so that a stream of small writes asks seldom; small ones where the budget is small.
    granted = max(length, _step_bytes(staging.capacity_bytes))
    await staging.reserve(staged, granted)
    return granted


@operation(Nature.LONG)
async def room(call: Call, *, staged: int, position: int, length: int) -> dict[str, int]:
    """As ``reserve``, for a file that is written on from ``position``; less than ``length`` may be ``granted``. Where
    nothing is going to give room, what the file has before the position goes to the origin, and is not here any more
    below ``sent``."""
    space = _space_of(call, staged)
    _require_grantable(length)
    staging, spills = call.engine.staging, call.engine.writeback.spills
    step_bytes = _step_bytes(staging.capacity_bytes)
    granted = max(step_bytes, min(length, staging.capacity_bytes // 4))
    if spills.may_have(staged, granted) and staging.reserve_now(staged, granted):
        return {"sent": 0, "granted": granted}
    if staged not in spills:
        with suppress(NoSpace):
            await staging.reserve(staged, granted, hurried=True)
            return {"sent": 0, "granted": granted}
    try:
        spilled = await space.spill(staged, position, step_bytes)
    except Unsupported:
        await staging.reserve(staged, granted)
        return {"sent": 0, "granted": granted}
    return {"sent": spilled.sent_bytes, "granted": spilled.granted_bytes}


def _require_grantable(length: int) -> None:
    if not 0 < length <= STAGING_GRANT_BYTES:
        raise InvalidArgument(f"cannot reserve {length} bytes at once")


def _step_bytes(capacity_bytes: int) -> int:
    return max(1, min(STAGING_GRANT_BYTES, capacity_bytes // STAGING_GRANT_SHARE))


@operation(Nature.LONG)
async def allocate(call: Call, *, staged: int, offset: int, length: int) -> None:
    """Room on the disk for a range of a file whose writer found it full: the cache gives up what it can, then this
    waits for uploads. NoSpace when that is in vain."""
    _space_of(call, staged)
    await call.engine.staging.allocate(staged, offset, length)


@operation(Nature.CHANGE)
async def sync(call: Call, *, staged: int) -> None:
    """The client has synced the file's data: make its record durable too."""
    await _space_of(call, staged).sync_staged(staged)


@operation(Nature.CHANGE)
async def publish(call: Call, *, staged: int, sync: bool = False) -> Entry:
    """The file is whole: it takes its name here at once and goes to the origin. ``sync``: the client may have called
    fsync for it."""
    entry = await _space_of(call, staged).publish(staged, sync=sync)
    call.owner.staged.pop(staged, None)
    return entry


@operation(Nature.CHANGE)
async def discard(call: Call, *, staged: int) -> None:
    await _space_of(call, staged).discard(staged)
    call.owner.staged.pop(staged, None)


def _space_of(call: Call, staged: int) -> Namespace:
    try:
        return call.owner.staged[staged]
    except KeyError:
        raise Absent(f"the engine (pid {os.getpid()}) has no unpublished file {staged} of this connection") from None


async def discard_all(staged: Iterable[tuple[int, Namespace]]) -> None:
    """What a client left behind."""
    for identity, space in staged:
        await space.discard(identity)
