"""Operations on names: attach, look up, list, make, remove, move."""

from __future__ import annotations

import os
from typing import Any

import trio

from tiercache.engine.checkpoints import told
from tiercache.engine.requests.registry import Call, Nature, operation
from tiercache.engine.tree import Tree
from tiercache.ipc import PART_ENTRIES
from tiercache.model import Entry, Key, Kind, join, parent_of


@operation(Nature.READ)
async def attach(call: Call, *, url: str, client: str, options: dict[str, Any], profile: str) -> dict[str, Any]:
    namespace, root = await call.engine.attach(url, client, options, profile)
    return {
        "namespace": call.shared.number_of(namespace),
        "origin": namespace.origin_id,
        "root": root,
        "capabilities": namespace.capabilities.value,
        "read_only": namespace.read_only,
        "ttl_s": namespace.profile.ttl_s,
        "negative_ttl_s": namespace.profile.negative_ttl_s,
        "promises": namespace.promises.plain(),
    }


@operation(Nature.READ)
async def lookup(call: Call, *, namespace: int, key: bytes) -> Entry:
    return await call.namespace(namespace).lookup(key)


@operation(Nature.READ)
async def list_(call: Call, *, namespace: int, key: bytes) -> int:
    """Sends parts of ``[name, entry]`` and answers with their number."""
    return await _send_parts(call, await call.namespace(namespace).list(key, posix=False))


@operation(Nature.READ)
async def walk(call: Call, *, namespace: int, key: bytes) -> int:
    """The same with whole keys, of everything below."""
    return await _send_parts(call, await call.namespace(namespace).walk(key))


@operation(Nature.READ)
async def checkpoints(call: Call, *, namespace: int, key: bytes) -> list[dict[str, Any]]:
    """The checkpoints in a directory, the latest first."""
    found = await call.namespace(namespace).checkpoints.list(key)
    return [told(checkpoint) for checkpoint in found]


@operation(Nature.READ)
async def latest_checkpoint(call: Call, *, namespace: int, key: bytes) -> bytes:
    """The name of the latest complete checkpoint in a directory; empty if there is none."""
    found = await call.namespace(namespace).checkpoints.latest(key)
    return found.name if found is not None else b""


async def _send_parts(call: Call, entries: list[tuple[bytes, Entry]]) -> int:
    for start in range(0, len(entries), PART_ENTRIES):
        await call.send("part", entries[start : start + PART_ENTRIES])
    return len(entries)


@operation(Nature.CHANGE)
async def mkdir(call: Call, *, namespace: int, key: bytes, mode: int) -> Entry:
    return await call.namespace(namespace).mkdir(key, mode=mode, uid=os.getuid(), gid=os.getgid())


@operation(Nature.CHANGE)
async def rmdir(call: Call, *, namespace: int, key: bytes) -> None:
    await call.namespace(namespace).rmdir(key)


@operation(Nature.CHANGE)
async def unlink(call: Call, *, namespace: int, key: bytes) -> None:
    # An object store's user expects the prefix to go with its last object; POSIX semantics are the mount's.
    await call.namespace(namespace).unlink(key, keep_directory=False)


@operation(Nature.CHANGE)
async def remove_tree(call: Call, *, namespace: int, key: bytes) -> None:
    await call.namespace(namespace).remove_tree(key)


@operation(Nature.CHANGE)
async def rename(call: Call, *, namespace: int, source: bytes, target: bytes, no_replace: bool) -> None:
    await call.namespace(namespace).rename(source, target, no_replace=no_replace, keep_directory=False)


@operation(Nature.CHANGE)
async def copy(call: Call, *, namespace: int, source: bytes, target: bytes) -> Entry:
    return await call.namespace(namespace).copy(source, target)


@operation(Nature.CHANGE)
async def setattr_(call: Call, *, namespace: int, key: bytes, changes: dict[str, int]) -> Entry:
    """``changes``: mode, uid, gid, mtime_ns, atime_ns, size."""
    space = call.namespace(namespace)
    entry = await space.lookup(key)
    return await space.setattr(entry.inode, **changes)


@operation(Nature.READ)
async def state(call: Call, *, namespace: int, key: bytes) -> str:
    """What the bytes of a name have reached, as ``user.tiercache.state`` tells it."""
    space = call.namespace(namespace)
    return space.writes.state(await space.lookup(key))


@operation(Nature.READ)
async def reached(call: Call, *, namespace: int, key: bytes) -> dict[str, str]:
    """What the bytes of a name have reached: ``state`` and ``durable`` as the attributes of these names tell them, and
    the ``error`` that keeps them from the origin."""
    space = call.namespace(namespace)
    entry = await space.lookup(key)
    return {
        "state": space.writes.state(entry),
        "durable": space.writes.durable(entry).label,
        "error": space.writes.error(entry),
    }


@operation(Nature.CHANGE)
async def invalidate(call: Call, *, namespace: int, key: bytes) -> None:
    """Ask the origin again at the next use of any name at or below ``key``."""
    tree = call.namespace(namespace).tree
    await expire_below(tree, key)


def expire(tree: Tree, key: Key) -> None:
    """The origin may have another answer for ``key`` than the catalog: ask at its next use."""
    entry = tree.entry(key)
    if entry is not None and not entry.staged:
        tree.put(key, entry._replace(checked_ns=0))
    tree.catalog.forget_listing(tree.origin_id, parent_of(key))


async def expire_below(tree: Tree, key: Key) -> None:
    """The same for everything at and below ``key``; one directory at a time, other tasks in between."""
    expire(tree, key)
    pending = [key]
    while pending:
        directory = pending.pop()
        tree.catalog.forget_listing(tree.origin_id, directory)
        with tree.catalog.batch():
            for name, entry in tree.catalog.children(tree.origin_id, directory):
                child = join(directory, name)
                if entry.kind is Kind.DIRECTORY:
                    pending.append(child)
                if not entry.staged:
                    tree.put(child, entry._replace(checked_ns=0))
        await trio.lowlevel.checkpoint()
