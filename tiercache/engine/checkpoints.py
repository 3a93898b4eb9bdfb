"""The checkpoints in a directory: what each has reached, and which complete one is the latest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tiercache.config import CheckpointsConfig
from tiercache.engine.entries import now_ns
from tiercache.errors import Absent, NotDirectory
from tiercache.model import Durability, Entry, Key, Kind, join, name_of, parent_of
from tiercache.policies.checkpoints import Checkpoint, SavedFile, Settling, has_manifest, in_order, judge, matches

if TYPE_CHECKING:
    from tiercache.engine.namespace import Namespace

LATEST = b"latest-complete"
"""In a directory of a mount: a link to its latest complete checkpoint, which no listing shows."""

LOOKED_INTO_MAX = 256
"""Directories whose name tells nothing are looked into for a manifest, unless there are more of them than this."""


class Checkpoints:
    """Of one namespace. Looks at names and the journal; changes nothing."""

    def __init__(self, namespace: Namespace, settings: CheckpointsConfig, announces: Callable[[Key], bool]) -> None:
        """``announces``: whether a name tells that others are there."""
        self._namespace = namespace
        self._settings = settings
        self._announces = announces

    async def list(self, directory: Key) -> list[Checkpoint]:
        """All checkpoints directly in ``directory``, the latest first. Absent, NotDirectory."""
        found = await self._candidates(directory)
        return [await self._judged(directory, name, found[name]) for name in _latest_first(found)]

    async def at(self, key: Key, called: bytes) -> Sequence[Checkpoint]:
        """The same for a name that may be a checkpoint itself, which comes first then, under the name that it is
        ``called``. Absent, NotDirectory."""
        entry = await self._namespace.lookup(key)
        own = []
        if entry.kind in (Kind.DIRECTORY, Kind.FILE) and await self._is_checkpoint(key, entry):
            own = [(await self._judged(parent_of(key), name_of(key), entry))._replace(name=called)]
        return own if own and entry.kind is Kind.FILE else [*own, *await self.list(key)]

    async def _is_checkpoint(self, key: Key, entry: Entry) -> bool:
        if matches(name_of(key), self._settings.patterns):
            return True
        if entry.kind is not Kind.DIRECTORY:
            return False
        return has_manifest([name for name, _ in await _children(self._namespace, key)])

    async def latest(self, directory: Key) -> Checkpoint | None:
        """The latest complete one; None if there is none. Looks into no more of them than it must."""
        found = await self._candidates(directory)
        for name in _latest_first(found):
            checkpoint = await self._judged(directory, name, found[name])
            if checkpoint.complete:
                return checkpoint
        return None

    async def _candidates(self, directory: Key) -> dict[bytes, Entry]:
        if (await self._namespace.lookup(directory)).kind is not Kind.DIRECTORY:
            raise NotDirectory(f"/{directory.decode('utf-8', 'backslashreplace')}: not a directory")
        children = {n: e for n, e in await self._namespace.list(directory) if e.kind in (Kind.DIRECTORY, Kind.FILE)}
        found = {n: e for n, e in children.items() if matches(n, self._settings.patterns)}
        others = [n for n, e in children.items() if e.kind is Kind.DIRECTORY and n not in found]
        if len(others) <= LOOKED_INTO_MAX:
            for name in others:
                if has_manifest([inner for inner, _ in await _children(self._namespace, join(directory, name))]):
                    found[name] = children[name]
        return found

    async def _judged(self, directory: Key, name: bytes, entry: Entry) -> Checkpoint:
        root = join(directory, name)
        level = Durability[self._settings.level.upper()]
        if entry.kind is Kind.FILE:
            return judge(name, [self._saved(name, entry)], level=level)
        below = await _below(self._namespace, root)
        start = len(root) + 1 if root else 0
        files = [self._saved(k[start:], e) for k, e in below if e.kind is Kind.FILE]
        return judge(name, files, level=level, settling=Settling(self._settings.settle_s, now_ns()))

    def _saved(self, name: bytes, entry: Entry) -> SavedFile:
        writes = self._namespace.writes
        live = self._namespace.tree.live.get(entry.inode)
        return SavedFile(
            name,
            entry.size_bytes,
            entry.mtime_ns,
            writes.durable(entry),
            writes.state(entry),
            writing=live is not None and live.writers > 0,
            announces=self._announces(name),
            changed_ns=max(entry.mtime_ns, entry.ctime_ns),
        )


def told(checkpoint: Checkpoint) -> dict[str, Any]:
    """For clients; sizes in bytes, ``saved`` in seconds since the epoch."""
    return {
        "name": checkpoint.name,
        "complete": checkpoint.complete,
        "lacks": checkpoint.lacks,
        "level": checkpoint.level.label,
        "files": checkpoint.files,
        "size_bytes": checkpoint.size_bytes,
        "saved": checkpoint.saved_ns / 1e9,
    }


def _latest_first(found: dict[bytes, Entry]) -> list[bytes]:
    return in_order(found, {name: entry.mtime_ns for name, entry in found.items()})


async def _children(namespace: Namespace, directory: Key) -> list[tuple[bytes, Entry]]:
    try:
        return await namespace.list(directory)
    except (Absent, NotDirectory):
        return []  # it went while we looked


async def _below(namespace: Namespace, directory: Key) -> list[tuple[Key, Entry]]:
    try:
        return await namespace.walk(directory)
    except (Absent, NotDirectory):
        return []
