"""Renames that an engine was killed in: what it did at origin, journal and catalog is brought together.

The kernel asks for this: it holds both directories until the rename is answered, so that nobody else on this machine
changed the two names meanwhile. Where nobody asks, the dirty files of a renamed directory do: see ``follow``.
"""

from __future__ import annotations

from tiercache.engine.changes import Changes
from tiercache.engine.entries import absent_entry, entry_of, now_ns
from tiercache.engine.files import Files
from tiercache.engine.names import Names
from tiercache.engine.parts import Parts
from tiercache.engine.renames import Renames
from tiercache.engine.tree import Tree
from tiercache.errors import Absent
from tiercache.journal import DirectoryMove
from tiercache.model import Capability, Entry, Key, Kind, ObjectStat, parent_of


class Resumption:
    """Finishes what ``Renames`` began in an earlier engine."""

    def __init__(
        self, tree: Tree, names: Names, files: Files, changes: Changes, renames: Renames, parts: Parts
    ) -> None:
        self._tree = tree
        self._names = names
        self._files = files
        self._changes = changes
        self._renames = renames
        self._journal = parts.journal
        self._writeback = parts.writeback

    async def rename(self, source: Key, target: Key, *, inode: int, exchange: bool) -> bool:
        """Finish the rename of ``inode`` (0 when the engine had not begun it, or had ended it). False when nothing of
        it was done: then it is to be done as any other."""
        tree = self._tree
        async with tree.hold(source, target):
            at_target = tree.entry(target)
            if inode and at_target is not None and at_target.inode == inode:
                self._remove_leftover(source, target, at_target)
                await self._changes.was_removed(source)
                return True
            # What the catalog believes, first: the origin may not have the old name any more.
            entry = tree.entry(source)
            if entry is None or not inode or entry.inode != inode:
                entry = await self._names.find(source)
            if entry is None or (inode and entry.inode != inode):
                await self._changes.was_removed(source)
                return await self._names.find(target) is not None
            if not inode or entry.staged:
                # A staged file moves in the journal first: recovery would have given it the new name.
                return False
            if exchange:
                return await self._finish_exchange(source, target, entry, at_target)
            return await self._finish_move(source, target, entry, at_target)

    def _remove_leftover(self, source: Key, target: Key, moved: Entry) -> None:
        """The catalog has the new name; it may have the old one as well."""
        tree = self._tree
        left = tree.entry(source)
        if left is not None and left.inode == moved.inode and moved.link_count == 1:
            tree.put(source, absent_entry(now_ns()))
            live = tree.live.get(moved.inode)
            if live is not None and live.key == source:
                live.key = target

    async def _finish_exchange(self, source: Key, target: Key, entry: Entry, other: Entry | None) -> bool:
        stat = await self._stat(source)
        if stat is None or other is None or stat.etag == entry.etag:
            return False
        self._renames.exchange_names(source, target, entry, other)
        return True

    async def _finish_move(self, source: Key, target: Key, entry: Entry, at_target: Entry | None) -> bool:
        replaced = at_target if at_target is not None and at_target.kind is not Kind.ABSENT else None
        if entry.kind is Kind.DIRECTORY and not self._tree.can(Capability.RENAME):
            return False  # the start has made nothing of it, or all
        stat = await self._stat(target)
        if stat is None or await self._stat(source) is not None:
            return False
        if entry.kind is Kind.DIRECTORY:
            await self._renames.directories.move(source, target, resumed=True)
        else:
            await self._finish_file(source, target, entry, replaced, stat)
        self._changes.keep(parent_of(source))
        self._renames.told(source, target, entry, replaced)
        await self._changes.mark(parent_of(source), source)
        return True

    async def _finish_file(
        self, source: Key, target: Key, entry: Entry, replaced: Entry | None, stat: ObjectStat
    ) -> None:
        if replaced is not None and replaced.staged:
            await self._writeback.cancel(replaced.staged, wait=False)
        moved = entry_of(stat, origin=self._tree.origin_id, inode=entry.inode, old=entry, at_ns=now_ns())
        self._files.rebind(source, entry, target, moved)
        self._renames.move_name(source, target, moved, replaced)

    async def follow(self, move: DirectoryMove) -> None:
        """The origin had renamed a directory when an engine was killed, and nobody has come back to the rename: the
        journal and the catalog follow, so that what is dirty in it goes up under its new name."""
        tree = self._tree
        async with tree.hold(move.source, move.target):
            noted = [*self._journal.records(), *self._journal.retractions()]
            left = [record for record in noted if record.origin == tree.origin_id and record.moves == move]
            if not left:
                return  # somebody was faster
            entry = tree.entry(move.source)
            await self._renames.directories.move(move.source, move.target, resumed=True)
            for key in (move.source, move.target):
                tree.doubt(parent_of(key))
                tree.changed(key, entry.inode if entry is not None else 0)

    async def _stat(self, key: Key) -> ObjectStat | None:
        try:
            return await self._tree.call(self._tree.origin.stat, key)
        except Absent:
            return None
