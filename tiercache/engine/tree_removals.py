"""Removing a directory with all that is in it, object by object."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import trio

from tiercache.engine.bulk import for_each
from tiercache.engine.entries import absent_entry, now_ns
from tiercache.engine.giving_way import GivingWay
from tiercache.engine.live import LiveInode
from tiercache.engine.names import Names
from tiercache.engine.object_moves import levels_of, member_of, paths_of_directories, walked
from tiercache.engine.tree import Tree
from tiercache.engine.writes import Writes
from tiercache.errors import Absent, Changed
from tiercache.journal import Intent, Member, Phase
from tiercache.model import Key, Kind, is_below
from tiercache.writeback import WriteBack


class Unlink(Protocol):
    """Removes one name, which the caller holds."""

    def __call__(self, key: Key, *, keep_directory: bool) -> Awaitable[None]: ...


class TreeRemovals:
    """Of one namespace. The caller holds the directory."""

    def __init__(
        self,
        tree: Tree,
        names: Names,
        writes: Writes,
        giving_way: GivingWay,
        writeback: WriteBack,
        unlink: Unlink,
    ) -> None:
        self._tree = tree
        self._names = names
        self._writes = writes
        self._giving_way = giving_way
        self._writeback = writeback
        self._unlink = unlink

    async def remove(self, directory: Key) -> None:
        """Delete what is there now, at the origin and in staging; what tells a reader of other files goes before them.
        What others write meanwhile stays. After a failure the names that are gone are absent, and the rest is there."""
        for live in self._staged_below(directory):
            await self._stay_elsewhere(live, directory)
        held_ids = [live.staged.id for live in self._staged_below(directory) if live.staged is not None]
        try:
            # Those that arrive before they can be held back are objects like the others.
            for staged_id in held_ids:
                await self._writeback.hold_back(staged_id)
            await self._remove_held(directory)
        finally:
            with trio.CancelScope(shield=True):
                await self._giving_way.send_after_all(*held_ids)

    async def _remove_held(self, directory: Key) -> None:
        tree, trees = self._tree, self._writeback.trees
        stats = await walked(tree, directory)
        intent = await trees.intend(
            Intent(
                0,
                Phase.REMOVING,
                tree.origin_id,
                tree.source,
                directory,
                members=tuple(member_of(stat, directory) for stat in stats if stat.kind is not Kind.DIRECTORY),
                directories=paths_of_directories(stats, directory),
            )
        )
        gone: list[Key] = []
        try:
            await self._remove(intent, gone)
        except Exception:
            trees.done(intent)  # it is told, and can be asked for again
            self._told(directory, gone)
            raise
        trees.done(intent)

    async def _remove(self, intent: Intent, gone: list[Key]) -> None:
        tree = self._tree

        def delete(member: Member) -> None:
            key = intent.directory + member.path
            try:
                tree.origin.delete(key, member.etag)
            except Changed:
                return  # written since by somebody else, after this removal
            except Absent:
                pass
            gone.append(key)

        announcing, others = self._writeback.trees.in_order(intent.members)
        await for_each(tree, announcing, delete)
        staged = self._staged_below(intent.directory)
        for live in sorted(staged, key=lambda live: not self._writeback.trees.announces(live.key or b"")):
            await self._unlink_staged(live, intent.directory)
        await for_each(tree, others, delete)
        # What cancelled uploads bring late, and renamed files left, would make a real directory look full.
        await self._writeback.settle_below(tree.origin_id, intent.directory, make_room=True)
        for level in levels_of(intent.directories, intent.directory):
            await for_each(tree, level, tree.origin.remove_directory)

    def _staged_below(self, directory: Key) -> list[LiveInode]:
        return [live for live in self._tree.live if live.staged and live.key and is_below(live.key, directory)]

    async def _stay_elsewhere(self, live: LiveInode, directory: Key) -> None:
        """The staged bytes of a file that has a name elsewhere stay with that."""
        key = live.key
        if key is None:
            return
        outside = [name for name in self._tree.names_of(live.inode) if not is_below(name, directory)]
        entry = await self._names.find(key) if outside else None
        if entry is not None:
            stays = await self._writes.closes.leave_with(outside[0], key, entry)
            if not stays:
                await self._writes.closes.write_through(key)

    async def _unlink_staged(self, live: LiveInode, directory: Key) -> None:
        """Once for each of its names."""
        key = None
        while live.staged and live.key != key and live.key is not None and is_below(live.key, directory):
            key = live.key
            if await self._names.find(key) is not None:
                await self._unlink(key, keep_directory=False)

    def _told(self, directory: Key, gone: list[Key]) -> None:
        """The removal came to a part of them."""
        tree = self._tree
        with tree.catalog.batch():
            for key in gone:
                tree.put(key, absent_entry(now_ns()))
        for key in gone:
            tree.changed(key)
        for parent in {directory, *(key.rpartition(b"/")[0] for key in gone)}:
            tree.catalog.forget_listing(tree.origin_id, parent)
        tree.doubt(directory)
        tree.trees_changed += 1
