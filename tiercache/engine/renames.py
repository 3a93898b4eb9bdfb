"""Moving, exchanging and copying names; whole directories are moved by ``directory_moves``."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext

from tiercache.engine.bulk import ignoring
from tiercache.engine.changes import Changes
from tiercache.engine.client_files import ClientFiles
from tiercache.engine.directory_moves import DirectoryMoves
from tiercache.engine.entries import absent_entry, entry_of, now_ns
from tiercache.engine.files import Files
from tiercache.engine.giving_way import GivingWay
from tiercache.engine.names import Names, require_bytes, show
from tiercache.engine.parting import Parting
from tiercache.engine.parts import Parts
from tiercache.engine.tree import Tree
from tiercache.engine.writes import Writes
from tiercache.errors import (
    Absent,
    Changed,
    Exists,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotEmpty,
)
from tiercache.model import Capability, Entry, Key, Kind, StagedState, VersionId, is_below, parent_of, version_id


class Renames:
    """Rename, exchange and copy."""

    def __init__(
        self,
        tree: Tree,
        names: Names,
        files: Files,
        writes: Writes,
        client_files: ClientFiles,
        changes: Changes,
        parting: Parting,
        parts: Parts,
    ) -> None:
        self._tree = tree
        self._names = names
        self._files = files
        self._writes = writes
        self._client_files = client_files
        self._changes = changes
        self._parting = parting
        self._journal = parts.journal
        self._writeback = parts.writeback
        self._giving_way = GivingWay(tree, writes, parts)
        self.directories = DirectoryMoves(tree, files, self._giving_way, parts)

    async def rename(
        self,
        source: Key,
        target: Key,
        *,
        no_replace: bool,
        exchange: bool,
        keep_directory: bool,
        begun: AbstractContextManager[object] | None = None,
    ) -> None:
        """Move a file or a directory. On an origin without rename a directory is moved object by object. ``begun`` is
        entered when all has been judged, before anything changes."""
        if source == target:
            await self._names.lookup(source)
            return
        async with self._tree.hold(source, target):
            entry, replaced = await self._judge(
                source, target, no_replace=no_replace, exchange=exchange, keep_directory=keep_directory
            )
            if replaced is not None and replaced.inode == entry.inode:
                return  # two names of one file: POSIX says nothing happens
            with begun or nullcontext():
                await self._rename_held(source, target, entry, replaced, exchange=exchange, keep=keep_directory)

    async def _judge(
        self, source: Key, target: Key, *, no_replace: bool, exchange: bool, keep_directory: bool
    ) -> tuple[Entry, Entry | None]:
        """What the two names stand for; raises for what must not be."""
        tree = self._tree
        entry = await self._names.lookup(source)
        if entry.kind is Kind.DIRECTORY and is_below(target, source):
            raise InvalidArgument(f"{show(source)}: cannot be moved into itself")
        if keep_directory or tree.can(Capability.EMPTY_DIRECTORIES):
            # Elsewhere a directory is there as soon as something is in it.
            parent = await self._names.lookup(parent_of(target))
            if parent.kind is not Kind.DIRECTORY:
                raise NotDirectory(f"{show(parent_of(target))}: not a directory")
        if no_replace:
            tree.doubt(target)  # a remembered absence would let us replace what others made meanwhile
        replaced = await self._names.find(target)
        if exchange:
            if replaced is None:
                raise Absent(f"{show(target)}: no such file or directory")
            if not tree.can(Capability.EXCHANGE):
                raise InvalidArgument(f"{show(target)}: this origin cannot exchange names")
        elif replaced is not None and no_replace:
            raise Exists(f"{show(target)}: exists already")
        elif replaced is not None and replaced.inode != entry.inode:
            await self._judge_replaced(target, replaced, by=entry)
        return entry, replaced

    async def _judge_replaced(self, target: Key, replaced: Entry, *, by: Entry) -> None:
        if by.kind is not Kind.DIRECTORY:
            if replaced.kind is Kind.DIRECTORY:
                raise IsDirectory(f"{show(target)}: is a directory")
        elif replaced.kind is not Kind.DIRECTORY:
            raise NotDirectory(f"{show(target)}: not a directory")
        elif target in self._tree.staged_below or await self._names.children(target, posix=False):
            raise NotEmpty(f"{show(target)}: directory not empty")

    async def _rename_held(
        self, source: Key, target: Key, entry: Entry, replaced: Entry | None, *, exchange: bool, keep: bool
    ) -> None:
        if exchange:
            await self._exchange(source, target)
            return
        if entry.kind is Kind.DIRECTORY:
            await self.directories.move(source, target)
        else:
            await self._rename_file(source, target, entry, replaced, keep=keep)
        if keep:
            self._changes.keep(parent_of(source))
        else:
            self._tree.doubt_parents(source)
        self.told(source, target, entry, replaced)
        if keep:
            await self._changes.mark(parent_of(source), source)

    def told(self, source: Key, target: Key, entry: Entry, replaced: Entry | None) -> None:
        """The catalog has the new names: the directories' times move, and listeners hear of it."""
        self._touch_both(source, target, entry, replaced)
        self._tree.changed(source, entry.inode)
        self._tree.changed(target, replaced.inode if replaced else 0)

    def _touch_both(self, source: Key, target: Key, came: Entry, went: Entry | None) -> None:
        """``came`` moved from the source's directory to the target's, where ``went`` was and is no more."""
        directories = Counter({parent_of(source): 0, parent_of(target): 0})
        if came.kind is Kind.DIRECTORY:
            directories[parent_of(source)] -= 1
            directories[parent_of(target)] += 1
        if went is not None and went.kind is Kind.DIRECTORY:
            directories[parent_of(target)] -= 1
        for directory, change in directories.items():
            self._tree.touch_directory(directory, change)

    async def _exchange(self, source: Key, target: Key) -> None:
        tree = self._tree
        for key in (source, target):
            await self._writes.closes.write_through_below(key)
        await tree.call(lambda: tree.origin.rename(source, target, exchange=True))
        self.exchange_names(source, target, await self._names.lookup(source), await self._names.lookup(target))

    def exchange_names(self, source: Key, target: Key, entry: Entry, other: Entry) -> None:
        """The origin has exchanged two names; the catalog follows, at once: a crash leaves both to do, or neither.
        ``entry`` was the source, ``other`` the target."""
        tree = self._tree
        with tree.catalog.batch():
            self._touch_both(source, target, entry, None)
            self._touch_both(target, source, other, None)
            for key, now in ((source, other), (target, entry)):
                tree.catalog.drop_tree(tree.origin_id, key)
                tree.put(key, now._replace(checked_ns=0))
        for key, now in ((source, other), (target, entry)):
            live = tree.live.get(now.inode)
            if live is not None and live.key in (source, target):
                live.key = key
            tree.changed(key, now.inode)
        tree.trees_changed += 1

    # -- files --------------------------------------------------------------------------------------

    async def _rename_file(self, source: Key, target: Key, entry: Entry, replaced: Entry | None, *, keep: bool) -> None:
        if replaced is not None:
            replaced = await self._parting.prepare(target, replaced)
        entry = await self._parting.settle(source, entry)
        if entry.staged:
            if await self._move_staged(source, target, entry, replaced, keep=keep):
                return
            entry = await self._names.lookup(source)  # its upload ended just now: it is a clean object
        if self._has_to_wait(entry, target):
            await self._move_later(source, target, entry, replaced, keep=keep)
        else:
            await self._move_object(source, target, entry, replaced)

    def _has_to_wait(self, entry: Entry, target: Key) -> bool:
        """Whether the origin must not have a file under this name yet (see ``Order`` and ``Heirs``)."""
        return entry.kind is Kind.FILE and self._writeback.would_wait(self._tree.origin_id, target)

    async def _move_later(self, source: Key, target: Key, entry: Entry, replaced: Entry | None, *, keep: bool) -> None:
        """A manifest that was written under another name, and arrived before what it tells of, goes up again; so does
        a file that would replace the last of one that was renamed."""
        with self._tree.live.using(entry.inode, source, entry) as live:
            await self._writes.stages.make_dirty(live)
            moved = await self._move_staged(source, target, live.entry, replaced, keep=keep)
            assert moved, "nothing seals a file while its name is held"
            if not live.writers:
                await self._writes.closes.seal_held(live)

    async def _move_staged(self, source: Key, target: Key, entry: Entry, replaced: Entry | None, *, keep: bool) -> bool:
        """A dirty file moves in the journal, which sees to it that what the origin has under the old name goes when it
        has the new one. ``keep``: the directory that it leaves stands on. False, and nothing has moved, when its upload
        ended meanwhile."""
        record = self._journal.get(entry.staged)
        in_conflict = record is not None and record.state is StagedState.CONFLICT
        left_etag = await self._left_behind(source, entry)
        needs_marker = keep and bool(parent_of(source)) and not self._tree.can(Capability.EMPTY_DIRECTORIES)
        if not await self._writeback.rename(entry.staged, target, left_etag=left_etag, keeps_directory=needs_marker):
            return False
        moved = entry._replace(version=VersionId(b""), etag=replaced.etag if replaced else "", ctime_ns=now_ns())
        self.move_name(source, target, moved, replaced)
        if in_conflict:
            self._tree.doubt(source)  # what others wrote has the name
        return True

    async def _left_behind(self, source: Key, entry: Entry) -> str:
        """The etag of what the origin has under the name of a dirty file, "" if nothing. Of another file than the one
        that has the name there we do not know it, and the origin is asked: a rename that it cannot answer is refused,
        and has changed nothing."""
        while True:
            record = self._journal.get(entry.staged)
            if record is None:
                return ""
            if record.state is StagedState.CONFLICT or (record.in_place and record.base_etag):
                return record.base_etag  # in a conflict the object is another one, and somebody else's
            found = await self._etag_at_origin(source)
            if self._journal.get(entry.staged) == record:
                return found
            # An earlier state of the file arrived meanwhile: before or after the origin looked is not known.

    async def _etag_at_origin(self, key: Key) -> str:
        try:
            stat = await self._tree.call(self._tree.origin.stat, key)
        except (Absent, NotDirectory):
            return ""
        return stat.etag if stat.kind is not Kind.DIRECTORY else ""

    async def _move_object(self, source: Key, target: Key, entry: Entry, replaced: Entry | None) -> None:
        tree = self._tree
        await self._writeback.settle(tree.origin_id, target)
        async with self._giving_way.during(replaced, entry):
            if tree.can(Capability.RENAME):
                await tree.call(lambda: tree.origin.rename(source, target))
                stat = await tree.call(tree.origin.stat, target)
            else:
                stat = await tree.call(tree.origin.copy, source, target, entry.etag)
        self._writeback.taken(tree.origin_id, target)
        others_are_there = False
        if not tree.can(Capability.RENAME):
            try:
                # By its etag: what somebody else wrote since the copy stays.
                await ignoring(Absent, tree, tree.origin.delete, source, entry.etag)
            except Changed:
                others_are_there = True
        moved = entry_of(stat, origin=tree.origin_id, inode=entry.inode, old=entry, at_ns=now_ns())
        moved = self._as_linked(moved, source, target)
        self._files.rebind(source, entry, target, moved)
        self.move_name(source, target, moved, replaced)
        if others_are_there:
            tree.doubt(source)

    def _as_linked(self, moved: Entry, source: Key, target: Key) -> Entry:
        """Another name of a hard-linked file knows of bytes that are staged, or that arrived while one was moved."""
        tree = self._tree
        others = [name for name in tree.names_of(moved.inode) if name not in (source, target)]
        known = tree.entry(others[0]) if others else None
        if known is None:
            return moved
        version = version_id(tree.origin_id, target, known.etag) if known.version else known.version
        return known._replace(version=version, link_count=moved.link_count, ctime_ns=moved.ctime_ns)

    def move_name(self, source: Key, target: Key, moved: Entry, replaced: Entry | None) -> None:
        tree = self._tree
        live = tree.live.get(moved.inode)
        if moved.staged and live is not None and live.key == source:
            tree.place_staged(moved.inode, target)
        # The new name first, and never absent: who reads the catalog in between finds the file under both.
        tree.put_names(target, moved)
        tree.put(source, absent_entry(now_ns()))
        if live is not None and live.key == source:
            live.key = target
            live.entry = moved
        if replaced is not None:
            self._parting.done(target, replaced)
            self._parting.drop(replaced)

    # -- copies -------------------------------------------------------------------------------------

    async def copy(self, source: Key, target: Key) -> Entry:
        """Copy a file inside the origin; of one that is dirty, or must not be there yet, make a dirty one."""
        async with self._tree.hold(target):
            entry = await self._names.lookup(source)
            require_bytes(source, entry)
            if source == target:
                return entry
            if not entry.staged and not self._has_to_wait(entry, target):
                return await self._copy_held(source, target, entry)
        return await self._client_files.copy_staged(source, target)

    async def _copy_held(self, source: Key, target: Key, entry: Entry) -> Entry:
        tree = self._tree
        replaced = await self._names.find(target)
        if replaced is not None and replaced.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(target)}: is a directory")
        if replaced is not None:
            replaced = await self._parting.prepare(target, replaced)
        await self._writeback.settle(tree.origin_id, target)
        async with self._giving_way.during(replaced):
            stat = await tree.call(tree.origin.copy, source, target, entry.etag)
        self._writeback.taken(tree.origin_id, target)
        made = entry_of(stat, origin=tree.origin_id, inode=tree.catalog.new_inode(), old=None, at_ns=now_ns())
        tree.put(target, made)
        if replaced is not None:
            self._parting.done(target, replaced)
            self._parting.drop(replaced)
        tree.touch_directory(parent_of(target))
        tree.changed(target, replaced.inode if replaced else 0)
        return made
