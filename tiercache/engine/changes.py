"""Making and removing names, first at the origin and then in the catalog."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from tiercache.engine.bulk import ignoring
from tiercache.engine.entries import absent_entry, attributes_of, entry_of, now_ns, with_attributes
from tiercache.engine.files import Files
from tiercache.engine.giving_way import GivingWay
from tiercache.engine.names import Names, show
from tiercache.engine.parting import Parting
from tiercache.engine.promises import inherited
from tiercache.engine.tree import Tree
from tiercache.engine.tree_removals import TreeRemovals
from tiercache.engine.writes import Writes
from tiercache.errors import (
    Absent,
    Changed,
    Exists,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotEmpty,
    TierCacheError,
    Unsupported,
)
from tiercache.model import Attributes, Capability, Entry, Key, Kind, ObjectStat, is_below, parent_of
from tiercache.writeback import WriteBack

log = logging.getLogger("tiercache.engine")


class Changes:
    """The operations that make and remove names; ``renames`` moves them."""

    def __init__(
        self,
        tree: Tree,
        names: Names,
        files: Files,
        writes: Writes,
        parting: Parting,
        giving_way: GivingWay,
        writeback: WriteBack,
    ) -> None:
        self._tree = tree
        self._names = names
        self._files = files
        self._writes = writes
        self._parting = parting
        self._writeback = writeback
        self._removals = TreeRemovals(tree, names, writes, giving_way, writeback, self._unlink_held)

    # -- making -------------------------------------------------------------------------------------

    # ``resumed``: an earlier engine may have made it.

    async def mkdir(self, key: Key, attributes: Attributes, *, resumed: bool = False) -> Entry:
        """Make a directory: a real one, or a marker object where directories are prefixes."""
        tree = self._tree
        async with tree.hold(key):
            attributes = attributes._replace(xattrs=inherited(tree.entry(parent_of(key))))
            left = bool(tree.retracted(key))
            prefixes: list[ObjectStat] = []

            def make() -> ObjectStat:
                try:
                    return tree.origin.make_directory(key, attributes)
                except Exists:
                    # What was there is absent for us, but the origin does not let us remove all of it yet.
                    stat = tree.origin.stat(key) if left else None
                    if stat is None or stat.kind is not Kind.DIRECTORY:
                        raise
                    prefixes.append(stat)
                    return stat

            made = await self._make(key, Kind.DIRECTORY, make, attributes, resumed=resumed)
            tree.kept_directories.discard(key)
            if prefixes:
                self.keep(key)
            else:
                tree.marked_directories.add(key)
            if not resumed:
                tree.catalog.put_listing(tree.origin_id, key, (), now_ns())  # nothing is in it yet
            return made

    async def symlink(self, key: Key, target: bytes, attributes: Attributes, *, resumed: bool = False) -> Entry:
        """Make a symlink: at once, or when the origin has what it stands for (see ``Order``)."""
        tree = self._tree
        async with tree.hold(key):
            if not (tree.can(Capability.SYMLINKS) and self._writeback.would_wait(tree.origin_id, key, target)):
                make = partial(tree.origin.symlink, key, target, attributes)
                return await self._make(key, Kind.SYMLINK, make, attributes, resumed=resumed)
            return await self._symlink_later(key, target, attributes, resumed=resumed)

    async def _symlink_later(self, key: Key, target: bytes, attributes: Attributes, *, resumed: bool) -> Entry:
        if resumed:
            self._tree.doubt(key)
        try:
            await self._require_new(key, make_room=False)
        except Exists:
            if not resumed:
                raise
            return await self._made_before(key, Kind.SYMLINK, attributes)
        return await self._files.make_link(key, target, attributes)

    async def make_special(
        self, key: Key, kind: Kind, device: int, attributes: Attributes, *, resumed: bool = False
    ) -> Entry:
        """A pipe, socket or device; only where the origin has them."""
        tree = self._tree
        if not tree.can(Capability.SPECIAL_FILES):
            raise Unsupported(f"{show(key)}: this origin holds no pipes, sockets or devices")
        async with tree.hold(key):
            make = partial(tree.origin.make_special, key, kind, device, attributes)
            return await self._make(key, kind, make, attributes, resumed=resumed)

    async def _make(
        self, key: Key, kind: Kind, make: Callable[[], ObjectStat], attributes: Attributes, *, resumed: bool
    ) -> Entry:
        if resumed:
            self._tree.doubt(key)
        try:
            await self._require_new(key)
            stat = await self._tree.call(make)
        except Exists:
            if not resumed:
                raise
            return await self._made_before(key, kind, attributes)
        self._writeback.taken(self._tree.origin_id, key)
        return self._made(key, stat, attributes)

    async def _made_before(self, key: Key, kind: Kind, attributes: Attributes) -> Entry:
        """What an earlier engine made, before it may have come to its attributes. Exists if it is something else."""
        tree = self._tree
        tree.doubt(key)
        entry = await self._names.find(key)
        if entry is None or entry.kind is not kind:
            raise Exists(f"{show(key)}: exists already")
        if not entry.attributes_known:
            entry = tree.put(key, with_attributes(entry, attributes))
        wanted = (attributes.mode & 0o7777, attributes.uid, attributes.gid)
        if (entry.mode, entry.uid, entry.gid) != wanted and kind is not Kind.SYMLINK:
            stat = await tree.call(tree.origin.set_attributes, key, attributes)
            made = entry_of(stat, origin=tree.origin_id, inode=entry.inode, old=entry, at_ns=now_ns())
            entry = tree.put(key, with_attributes(made, attributes))
        tree.doubt(parent_of(key))  # its times, and how many directories it holds
        tree.changed(key, entry.inode)
        return entry

    async def link(self, source: Key, target: Key, *, resumed: bool = False) -> Entry:
        """A second name for a file; only where the origin has hard links, and once its bytes are there. ``resumed``: an
        earlier engine may have made it."""
        tree = self._tree
        if not tree.can(Capability.HARD_LINKS):
            raise Unsupported(f"{show(target)}: this origin has no hard links")
        async with tree.hold(source, target):
            return await self._link_held(source, target, resumed=resumed)

    async def _link_held(self, source: Key, target: Key, *, resumed: bool) -> Entry:
        tree = self._tree
        entry = await self._names.lookup(source)
        if entry.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(source)}: a directory cannot be linked")
        made = await self._linked_before(entry, target) if resumed else None
        if made is not None:
            return made
        await self._require_new(target)
        if entry.staged:
            # The origin links what it has: bring the bytes there first.
            await self._writes.closes.write_through(source)
            entry = await self._names.lookup(source)
        stat = await tree.call(tree.origin.link, source, target)
        return self._linked(source, target, entry, stat)

    async def _linked_before(self, entry: Entry, target: Key) -> Entry | None:
        """What an earlier engine made of this link."""
        self._tree.doubt(target)
        known = await self._names.find(target)
        if known is None or known.inode == entry.inode:
            return known
        source = self._tree.names_of(entry.inode)[0]
        stats = [await self._tree.call(self._tree.origin.stat, key) for key in (source, target)]
        if stats[0].file_id != stats[1].file_id:
            return None
        return self._linked(source, target, entry, stats[1])

    def _linked(self, source: Key, target: Key, entry: Entry, stat: ObjectStat) -> Entry:
        tree = self._tree
        tree.link_inode(stat, entry.inode)
        linked = entry_of(stat, origin=tree.origin_id, inode=entry.inode, old=None, at_ns=now_ns())
        tree.put_names(target, linked)
        live = tree.live.get(entry.inode)
        if live is not None:
            live.entry = live.entry._replace(link_count=linked.link_count, ctime_ns=linked.ctime_ns)
        tree.touch_directory(parent_of(target))
        tree.changed(target)
        return linked

    async def _require_new(self, key: Key, *, make_room: bool = True) -> None:
        if await self._names.find(key) is not None:
            raise Exists(f"{show(key)}: exists already")
        parent = await self._names.lookup(parent_of(key))
        if parent.kind is not Kind.DIRECTORY:
            raise NotDirectory(f"{show(parent_of(key))}: not a directory")
        # What a cancelled upload or a renamed file left at the origin is absent for us, and in the way there.
        await self._writeback.settle(self._tree.origin_id, key, make_room=make_room)

    def _made(self, key: Key, stat: ObjectStat, attributes: Attributes) -> Entry:
        tree = self._tree
        at_ns = now_ns()
        entry = entry_of(stat, origin=tree.origin_id, inode=tree.catalog.new_inode(), old=None, at_ns=at_ns)
        if stat.attributes is None:
            entry = with_attributes(entry, attributes)
        tree.put(key, entry)
        tree.touch_directory(parent_of(key), directories=int(entry.kind is Kind.DIRECTORY))
        tree.changed(key)
        return entry

    # -- removing -----------------------------------------------------------------------------------

    async def unlink(self, key: Key, *, keep_directory: bool) -> None:
        """Remove a file or symlink: its object is deleted, its staged bytes are cancelled."""
        async with self._tree.hold(key):
            await self._unlink_held(key, keep_directory=keep_directory)

    async def _unlink_held(self, key: Key, *, keep_directory: bool) -> None:
        tree = self._tree
        entry = await self._names.lookup(key)
        if entry.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(key)}: is a directory")
        entry = await self._parting.prepare(key, entry)
        others_may_be_there = await self._remove_object(key, entry)
        if keep_directory:
            self.keep(parent_of(key))
        tree.put(key, absent_entry(0 if others_may_be_there else now_ns()))
        self._parting.done(key, entry)
        self._parting.drop(entry)
        if keep_directory:
            await self.mark(parent_of(key), key)
        if not keep_directory:
            tree.doubt_parents(key)

    async def _remove_object(self, key: Key, entry: Entry) -> bool:
        """Delete what the origin has under the name and cancel the upload, in this order: if the origin refuses, the
        file is still there with all its bytes. Changed if somebody else has replaced it since it was looked at. What
        the upload would not have replaced stays: whether there may be something."""
        tree = self._tree
        on_its_way = self._writeback.staged_ids(tree.origin_id, key)
        while True:
            stays = await self._delete_known(key, entry)
            left = self._writeback.staged_ids(tree.origin_id, key)
            if left >= on_its_way:
                break
            on_its_way = left  # some of it arrived while we deleted: before or after is not known
        if entry.staged:
            # An upload under way may land after our delete; write-back removes what it brings.
            await self._writeback.cancel(entry.staged, wait=False)
        return stays

    async def _delete_known(self, key: Key, entry: Entry) -> bool:
        """Delete the version that we know of; for a file that replaces whatever is there, whatever is there, but for
        what a renamed one has left. Whether something may be there."""
        tree = self._tree
        known = tree.entry(key) or entry
        etag: str | None = known.etag
        if max(known.link_count, entry.link_count) > 1:
            etag = None  # the bytes stay, with its other names
        elif known.staged:
            etag = self._writeback.overwrites(known.staged)
        if known.staged and (etag == "" or self._writeback.is_all_there_is(tree.origin_id, key)):
            return True
        try:
            # Absent: nothing was sent yet, or somebody else was faster.
            await ignoring(Absent, tree, tree.origin.delete, key, etag or "")
        except Changed:
            if known.staged:
                return True
            tree.doubt(key)
            tree.changed(key, known.inode)
            raise
        return False

    def keep(self, directory: Key) -> None:
        """A name goes from a directory that stands until ``rmdir``."""
        if directory and not self._tree.can(Capability.EMPTY_DIRECTORIES):
            self._tree.kept_directories.add(directory)

    async def mark(self, directory: Key, gone: Key) -> None:
        """``gone`` went from a kept directory: if it was the last object there, a marker lets the directory outlive the
        engine, as ``mkdir`` makes one. The change has happened; without a marker our memory has to do."""
        tree = self._tree
        if directory not in tree.kept_directories or directory in tree.marked_directories:
            return
        if directory in tree.staged_below or tree.catalog.shows_a_child(tree.origin_id, directory):
            return
        # What a renamed file left there is not to stay. Where it has to for now, a marker takes its place later.
        await self._writeback.settle(tree.origin_id, gone)
        try:
            await self.make_marker(directory)
        except TierCacheError as error:
            log.warning("%s: an emptied directory lasts as long as this engine: %s", show(directory), error)

    async def make_marker(self, directory: Key) -> None:
        """A marker for a directory of an object store that we know of, unless something is there."""
        tree = self._tree
        entry = tree.entry(directory)
        known = entry is not None and entry.kind is Kind.DIRECTORY and entry.attributes_known
        attributes = attributes_of(entry) if entry is not None and known else None
        try:
            await tree.call(tree.origin.make_directory, directory, attributes)
        except Exists:
            return
        tree.marked_directories.add(directory)

    async def was_removed(self, key: Key) -> None:
        """An earlier engine removed a name, which is gone, and may not have come to what follows from that."""
        self._tree.doubt(parent_of(key))  # its times, and how many directories it holds
        self.keep(parent_of(key))
        await self.mark(parent_of(key), key)

    async def rmdir(self, key: Key) -> None:
        """Remove an empty directory."""
        if not key:
            raise InvalidArgument("the root of an origin cannot be removed")
        async with self._tree.hold(key):
            await self._rmdir_held(key)

    async def _rmdir_held(self, key: Key) -> None:
        tree = self._tree
        entry = await self._names.lookup(key)
        if entry.kind is not Kind.DIRECTORY:
            raise NotDirectory(f"{show(key)}: not a directory")
        if key in tree.staged_below or await self._names.children(key, posix=False):
            raise NotEmpty(f"{show(key)}: directory not empty")
        # The temporary file of a cancelled upload, or what a renamed file left, would make a real directory look full.
        await self._writeback.settle_below(tree.origin_id, key, make_room=True)
        try:
            await tree.call(tree.origin.remove_directory, key)
        except Absent:
            # A directory that only lived in our memory, or that went with its last object.
            if tree.can(Capability.EMPTY_DIRECTORIES):
                raise
        tree.kept_directories.discard(key)
        tree.marked_directories.discard(key)
        self.keep(parent_of(key))
        tree.catalog.forget_listing(tree.origin_id, key)
        tree.put(key, absent_entry(now_ns()))
        tree.touch_directory(parent_of(key), directories=-1)
        tree.changed(key, entry.inode)
        await self.mark(parent_of(key), key)

    async def remove_tree(self, directory: Key) -> None:
        """Delete everything below ``directory`` and itself, names without a POSIX spelling included. A crash leaves the
        rest of it to be done; a failure is told, and what is left shows itself."""
        async with self._tree.hold(directory):
            opened = [live for live in self._tree.live if live.handles and not live.staged]
            opened = [live for live in opened if live.key and is_below(live.key, directory)]
            for live in opened:
                await self._parting.keep_readable(live)
            await self._removals.remove(directory)
            self._forget_tree(directory)
            for live in opened:
                self._parting.lost(live, directory)

    def _forget_tree(self, directory: Key) -> None:
        tree = self._tree
        entry = tree.entry(directory)
        tree.kept_directories.replace({key for key in tree.kept_directories if not is_below(key, directory)})
        tree.marked_directories = {key for key in tree.marked_directories if not is_below(key, directory)}
        tree.catalog.drop_tree(tree.origin_id, directory)
        tree.put(directory, absent_entry(now_ns()))
        was_directory = entry is not None and entry.kind is Kind.DIRECTORY
        tree.touch_directory(parent_of(directory), directories=-int(was_directory))
        tree.doubt_parents(directory)
        tree.trees_changed += 1
        tree.changed(directory, entry.inode if entry else 0)
