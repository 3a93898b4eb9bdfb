"""A name parts from its file: unlinked, renamed away, or taken by another file."""

from __future__ import annotations

from tiercache.engine.entries import now_ns
from tiercache.engine.files import Files
from tiercache.engine.live import LiveInode
from tiercache.engine.names import Names
from tiercache.engine.tree import Tree
from tiercache.engine.writes import Writes
from tiercache.model import Entry, Key, is_below, parent_of


class Parting:
    """``settle`` or ``prepare`` before the origin is changed, ``done`` when the catalog has what the name stands for
    now. The caller holds the name."""

    def __init__(self, tree: Tree, names: Names, files: Files, writes: Writes) -> None:
        self._tree = tree
        self._names = names
        self._files = files
        self._writes = writes

    async def settle(self, key: Key, entry: Entry, *, arrive: bool = False) -> Entry:
        """What is staged of a file with further names is theirs too: it stays with one of them, or goes to the origin
        when we know none or they have to ``arrive``. Returns the entry of what remains to be done with the name."""
        others = [name for name in self._tree.names_of(entry.inode) if name != key]
        if not entry.staged or (entry.link_count == 1 and not others):
            return entry
        if others and not arrive and await self._writes.closes.leave_with(others[0], key, entry):
            return entry._replace(staged=0)
        await self._writes.closes.write_through(key)
        return await self._names.lookup(key)

    async def prepare(self, key: Key, entry: Entry, *, arrive: bool = False) -> Entry:
        """The same for a file that loses the name for good: who has it open goes on reading it."""
        entry = await self.settle(key, entry, arrive=arrive)
        live = self._tree.live.get(entry.inode)
        if live is not None:
            await self.keep_readable(live)
        return entry

    async def keep_readable(self, live: LiveInode) -> None:
        """What a file's name stands for at the origin is about to go: who has it open goes on reading it."""
        await self._files.keep_readable(live)

    def lost(self, live: LiveInode, directory: Key) -> None:
        """An open file that was below a directory which is gone from the catalog: it lives on under a name elsewhere,
        or for its handles."""
        if live.key is None or not is_below(live.key, directory):
            return
        names = self._tree.names_of(live.inode)
        live.key = names[0] if names else None
        live.entry = live.entry._replace(link_count=len(names), ctime_ns=now_ns())
        self._tree.changed(directory, live.inode)

    def done(self, key: Key, entry: Entry) -> None:
        """``key`` does not stand for the file of ``entry`` any more; the inode lives on under its other names, or for
        its open handles. Its staged file stays for ``drop``."""
        tree = self._tree
        others = [name for name in tree.names_of(entry.inode) if name != key]
        live = tree.live.get(entry.inode)
        if others:
            self._keep_others(key, entry, others)
        else:
            tree.place_staged(entry.inode, None)
            if live is not None and live.key == key:
                live.key = None
                live.entry = live.entry._replace(link_count=0, ctime_ns=now_ns())
        tree.touch_directory(parent_of(key))
        tree.changed(key, entry.inode)

    def _keep_others(self, key: Key, entry: Entry, others: list[Key]) -> None:
        tree = self._tree
        live = tree.live.get(entry.inode)
        left = max(1, entry.link_count - 1)
        known = tree.entry(others[0])
        if known is not None:
            kept = known._replace(link_count=left, ctime_ns=now_ns())
            tree.put_names(others[0], kept)
        if live is not None:
            live.entry = live.entry._replace(link_count=left, ctime_ns=now_ns())
            if live.key == key:
                live.key = others[0]

    def drop(self, entry: Entry) -> None:
        """The file of ``entry`` is gone for good if no name and no handle is left of it."""
        live = self._tree.live.get(entry.inode)
        if live is not None:
            if live.key is None and not live.handles:
                self._writes.closes.drop_staged(live)
            self._tree.live.release(live)
