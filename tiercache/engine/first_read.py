"""The first read of a name of which nothing is known, or nothing fresh: one round trip describes it and, if it is small
and not here, fetches it."""

from __future__ import annotations

from tiercache.cache import Cache
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, IsDirectory
from tiercache.model import BLOCK_SIZE_BYTES, Entry, Key, Kind, ObjectStat, parent_of


async def first_read(space: Namespace, cache: Cache, key: Key, *, ahead: bool = False) -> Entry:
    """What the name stands for; the bytes of a small file are in the cache then, where that takes them. ``ahead``:
    nobody waits for it, so that it counts as no miss. Absent."""
    tree = space.tree
    before = tree.entry(key)
    if before is not None and before.kind is Kind.FILE and not _is_wanted(cache, before):
        return await space.lookup(key)
    generation = tree.generation(parent_of(key))
    retracted = tree.retracted(key)

    def believed(stat: ObjectStat) -> bool:
        known = tree.entry(key)
        changed = tree.generation(parent_of(key)) != generation
        return not changed and (known is None or known.kind is not Kind.DIRECTORY) and not is_leftover(stat)

    def is_leftover(stat: ObjectStat) -> bool:
        return not tree.without_leftovers([stat], retracted | tree.retracted(key))

    remembered: Entry | None = None

    def remember(stat: ObjectStat) -> None:
        nonlocal remembered
        if believed(stat):
            remembered = space.names.remember(key, stat)

    try:
        # Remembered before the request counts as ended: whoever comes next finds the name in the catalog.
        stat, _, _ = await cache.ensure_small(
            tree.origin, tree.origin_id, key, BLOCK_SIZE_BYTES, on_answer=remember, ahead=ahead
        )
    except (Absent, IsDirectory):
        return await space.lookup(key)
    entry = remembered
    if entry is None or tree.generation(parent_of(key)) != generation:
        # Somebody else asked, or the name changed since the answer came.
        if is_leftover(stat):
            raise Absent(f"/{key.decode('utf-8', 'backslashreplace')}: no such file or directory")
        entry = space.names.remember(key, stat) if believed(stat) else await space.lookup(key)
    return entry


def _is_wanted(cache: Cache, known: Entry) -> bool:
    """Whether its bytes should come with the answer: not where they are here, in all likelihood, or too many."""
    return known.size_bytes <= BLOCK_SIZE_BYTES and not cache.is_complete(known.version)
