"""Changing names: directories, unlink, rename, links and attributes, first at the origin and then in the catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from tiercache.engine.entries import absent_entry, directory_entry, entry_of, now_ns
from tiercache.engine.files import Files
from tiercache.engine.live import LiveInode
from tiercache.engine.names import Names, show
from tiercache.engine.tree import Tree
from tiercache.errors import (
    Absent,
    Exists,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotEmpty,
    Unsupported,
)
from tiercache.model import Attributes, Entry, Key, Kind, ObjectStat, is_below, parent_of
from tiercache.origins.base import Capability
from tiercache.writeback import WriteBack

T = TypeVar("T")

COPIES_AT_ONCE = 16
"""Objects of a directory rename that are copied or deleted at a time, where the origin cannot rename."""


class Changes:
    """The operations that make, remove and move names."""

    def __init__(self, tree: Tree, names: Names, files: Files, writeback: WriteBack) -> None:
        self._tree = tree
        self._names = names
        self._files = files
        self._writeback = writeback

    # -- making -----------------------------------------------------------------------------------

    async def mkdir(self, key: Key, attributes: Attributes) -> Entry:
        """Make a directory: a real one, or a marker object where directories are prefixes."""
        tree = self._tree
        await self._require_new(key)
        stat = await tree.call(tree.origin.make_directory, key, attributes)
        tree.kept_directories.discard(key)
        return self._made(key, stat, attributes)

    async def symlink(self, key: Key, target: bytes, attributes: Attributes) -> Entry:
        tree = self._tree
        await self._require_new(key)
        stat = await tree.call(tree.origin.symlink, key, target, attributes)
        return self._made(key, stat, attributes)

    async def link(self, source: Key, target: Key) -> Entry:
        """A second name for a file; only where the origin has hard links, and once its bytes are there."""
        tree = self._tree
        if not tree.can(Capability.HARD_LINKS):
            raise Unsupported(f"{show(target)}: this origin has no hard links")
        entry = await self._names.lookup(source)
        if entry.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(source)}: a directory cannot be linked")
        await self._require_new(target)
        if entry.staged:
            # The origin links what it has: bring the bytes there first.
            await self._files.write_through(source)
            entry = await self._names.lookup(source)
        stat = await tree.call(tree.origin.link, source, target)
        tree.live.links.setdefault(entry.inode, {source}).update({source, target})
        linked = entry_of(stat, origin=tree.origin_id, inode=entry.inode, old=None, at_ns=now_ns())
        for name in tree.live.links[entry.inode]:
            known = tree.entry(name)
            if name == target or (known is not None and known.inode == entry.inode):
                version = tree.version_ref(name, linked).id if name == target else known.version if known else b""
                tree.put(name, linked._replace(version=version))
        tree.touch_directory(parent_of(target))
        tree.changed(target)
        return linked

    async def _require_new(self, key: Key) -> None:
        if await self._names.find(key) is not None:
            raise Exists(f"{show(key)}: exists already")
        parent = await self._names.lookup(parent_of(key))
        if parent.kind is not Kind.DIRECTORY:
            raise NotDirectory(f"{show(parent_of(key))}: not a directory")

    def _made(self, key: Key, stat: ObjectStat, attributes: Attributes) -> Entry:
        tree = self._tree
        at_ns = now_ns()
        entry = entry_of(stat, origin=tree.origin_id, inode=tree.catalog.new_inode(), old=None, at_ns=at_ns)
        if stat.attributes is None:
            entry = _with(entry, attributes)
        tree.put(key, entry)
        tree.touch_directory(parent_of(key))
        tree.changed(key)
        return entry

    # -- removing ---------------------------------------------------------------------------------

    async def unlink(self, key: Key, *, keep_directory: bool) -> None:
        """Remove a file or symlink: its staged bytes are cancelled, its object deleted."""
        tree = self._tree
        entry = await self._names.lookup(key)
        if entry.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(key)}: is a directory")
        live = tree.live.get(entry.inode)
        if live is not None:
            await self._files.keep_readable(live)
        await self._remove_object(key, entry)
        if keep_directory:
            self._keep(parent_of(key))
        self._forget_name(key, entry)

    async def _remove_object(self, key: Key, entry: Entry) -> None:
        """Cancel the upload and delete what the origin has under the name, also what an upload just brought there."""
        tree = self._tree
        if entry.staged:
            await self._writeback.cancel(entry.staged)
        if entry.staged and not entry.etag:
            await _ignoring_absence(tree.call, tree.origin.delete, key)
            return
        try:
            await tree.call(tree.origin.delete, key)
        except Absent:
            # Somebody else was faster; for us the name is gone either way.
            return

    def _keep(self, directory: Key) -> None:
        if directory and not self._tree.can(Capability.EMPTY_DIRECTORIES):
            self._tree.kept_directories.add(directory)

    def _forget_name(self, key: Key, entry: Entry) -> None:
        """The name is gone; its inode lives on for its open handles."""
        tree = self._tree
        if entry.staged:
            tree.note_staged(key, -1)
        names = tree.live.links.get(entry.inode)
        tree.put(key, absent_entry(now_ns()))
        if names is not None:
            self._drop_link(key, entry, names)
        else:
            live = tree.live.get(entry.inode)
            if live is not None and live.key == key:
                live.key = None
                live.entry = live.entry._replace(link_count=0, ctime_ns=now_ns())
                if live.staged is not None and not live.handles:
                    self._files.drop_staged(live)
                tree.live.release(live)
        tree.touch_directory(parent_of(key))
        tree.changed(key, entry.inode)

    def _drop_link(self, key: Key, entry: Entry, names: set[Key]) -> None:
        tree = self._tree
        names.discard(key)
        for name in names:
            known = tree.entry(name)
            if known is not None and known.inode == entry.inode:
                left = max(1, entry.link_count - 1)
                tree.put(name, known._replace(link_count=left, ctime_ns=now_ns()))
                live = tree.live.get(entry.inode)
                if live is not None and live.key == key:
                    live.key = name
        if len(names) <= 1:
            tree.live.links.pop(entry.inode, None)

    async def rmdir(self, key: Key) -> None:
        """Remove an empty directory."""
        tree = self._tree
        entry = await self._names.lookup(key)
        if entry.kind is not Kind.DIRECTORY:
            raise NotDirectory(f"{show(key)}: not a directory")
        if not key:
            raise InvalidArgument("the root of an origin cannot be removed")
        if key in tree.staged_below or await self._names.list(key, posix=False):
            raise NotEmpty(f"{show(key)}: directory not empty")
        try:
            await tree.call(tree.origin.remove_directory, key)
        except Absent:
            # A directory that only lived in our memory, or that went with its last object.
            if tree.can(Capability.EMPTY_DIRECTORIES):
                raise
        tree.kept_directories.discard(key)
        self._keep(parent_of(key))
        tree.catalog.forget_listing(tree.origin_id, key)
        tree.put(key, absent_entry(now_ns()))
        tree.touch_directory(parent_of(key))
        tree.changed(key, entry.inode)

    async def remove_tree(self, directory: Key) -> None:
        """Delete everything below ``directory`` and itself, names without a POSIX spelling included."""
        tree = self._tree
        staged = [live for live in tree.live if live.staged and live.key and is_below(live.key, directory)]
        for live in staged:
            assert live.key is not None
            await self.unlink(live.key, keep_directory=False)
        try:
            stats = await tree.call(lambda: list(tree.origin.walk(directory)))
        except Absent:
            stats = []
        files = [stat.key for stat in stats if stat.kind is not Kind.DIRECTORY]
        await self._for_each(files, lambda key: tree.origin.delete(key))
        directories = sorted((stat.key for stat in stats if stat.kind is Kind.DIRECTORY), key=len, reverse=True)
        for key in [*(d for d in directories if d != directory), directory]:
            await _ignoring_absence(tree.call, tree.origin.remove_directory, key)
        self._forget_tree(directory)

    def _forget_tree(self, directory: Key) -> None:
        tree = self._tree
        entry = tree.entry(directory)
        tree.kept_directories = {key for key in tree.kept_directories if not is_below(key, directory)}
        tree.catalog.drop_tree(tree.origin_id, directory)
        tree.put(directory, absent_entry(now_ns()))
        tree.touch_directory(parent_of(directory))
        tree.changed(directory, entry.inode if entry else 0)

    # -- moving -----------------------------------------------------------------------------------

    async def rename(self, source: Key, target: Key, *, no_replace: bool, exchange: bool, keep_directory: bool) -> None:
        """Move a file or a directory. On an origin without rename a directory is moved object by object."""
        tree = self._tree
        entry = await self._names.lookup(source)
        if source == target:
            return
        if entry.kind is Kind.DIRECTORY and is_below(target, source):
            raise InvalidArgument(f"{show(source)}: cannot be moved into itself")
        parent = await self._names.lookup(parent_of(target))
        if parent.kind is not Kind.DIRECTORY:
            raise NotDirectory(f"{show(parent_of(target))}: not a directory")
        replaced = await self._names.find(target)
        if exchange:
            await self._exchange(source, target, entry, replaced)
            return
        if replaced is not None and no_replace:
            raise Exists(f"{show(target)}: exists already")
        if replaced is not None and replaced.inode == entry.inode:
            return  # two names of one file: POSIX says nothing happens
        if entry.kind is Kind.DIRECTORY:
            await self._rename_directory(source, target, replaced)
        else:
            await self._rename_file(source, target, entry, replaced)
        if keep_directory:
            self._keep(parent_of(source))
        for directory in {parent_of(source), parent_of(target)}:
            tree.touch_directory(directory)
        tree.changed(source, entry.inode)
        tree.changed(target, replaced.inode if replaced else 0)

    async def _exchange(self, source: Key, target: Key, entry: Entry, other: Entry | None) -> None:
        tree = self._tree
        if other is None:
            raise Absent(f"{show(target)}: no such file or directory")
        if not tree.can(Capability.EXCHANGE):
            raise InvalidArgument(f"{show(target)}: this origin cannot exchange names")
        for key in (source, target):
            await self._files.write_through_below(key)
        await tree.call(lambda: tree.origin.rename(source, target, exchange=True))
        entry, other = await self._names.lookup(source), await self._names.lookup(target)
        for key, now in ((source, other), (target, entry)):
            tree.catalog.drop_tree(tree.origin_id, key)
            tree.put(key, now._replace(checked_ns=0))
            live = tree.live.get(now.inode)
            if live is not None:
                live.key = key
            tree.changed(key, now.inode)

    async def _rename_file(self, source: Key, target: Key, entry: Entry, replaced: Entry | None) -> None:
        tree = self._tree
        if replaced is not None:
            if replaced.kind is Kind.DIRECTORY:
                raise IsDirectory(f"{show(target)}: is a directory")
            live = tree.live.get(replaced.inode)
            if live is not None:
                await self._files.keep_readable(live)
        if entry.staged:
            await self._move_staged(source, target, entry, replaced)
        else:
            await self._move_object(source, target, entry, replaced)

    async def _move_staged(self, source: Key, target: Key, entry: Entry, replaced: Entry | None) -> None:
        """A dirty file moves in the journal; what the origin has under the old name goes."""
        tree = self._tree
        if replaced is not None and replaced.staged:
            await self._writeback.cancel(replaced.staged)
        await self._writeback.rename(entry.staged, target)
        if replaced is not None:
            self._forget_name(target, replaced)
        moved = entry._replace(version=b"", etag=replaced.etag if replaced else "", ctime_ns=now_ns())
        self._move_name(source, target, entry, moved)
        await _ignoring_absence(tree.call, tree.origin.delete, source)

    async def _move_object(self, source: Key, target: Key, entry: Entry, replaced: Entry | None) -> None:
        tree = self._tree
        if tree.can(Capability.RENAME):
            if replaced is not None and replaced.staged:
                await self._writeback.cancel(replaced.staged)
            await tree.call(lambda: tree.origin.rename(source, target))
            stat = await tree.call(tree.origin.stat, target)
        else:
            live = tree.live.get(entry.inode)
            if live is not None:
                await self._files.keep_readable(live)
            stat = await tree.call(tree.origin.copy, source, target, entry.etag)
            if replaced is not None and replaced.staged:
                await self._writeback.cancel(replaced.staged)
                if (await tree.call(tree.origin.stat, target)).etag != stat.etag:
                    # The replaced file's upload ended between our copy and its cancellation.
                    stat = await tree.call(tree.origin.copy, source, target, entry.etag)
            await _ignoring_absence(tree.call, tree.origin.delete, source)
        if replaced is not None:
            self._forget_name(target, replaced)
        moved = entry_of(stat, origin=tree.origin_id, inode=entry.inode, old=entry, at_ns=now_ns())
        if stat.etag == entry.etag or tree.can(Capability.RENAME):
            self._files.rebind(source, entry, target, moved)
        self._move_name(source, target, entry, moved)

    def _move_name(self, source: Key, target: Key, entry: Entry, moved: Entry) -> None:
        tree = self._tree
        if entry.staged:
            tree.note_staged(source, -1)
            tree.note_staged(target, +1)
        tree.put(source, absent_entry(now_ns()))
        tree.put(target, moved)
        names = tree.live.links.get(entry.inode)
        if names is not None:
            names.discard(source)
            names.add(target)
        live = tree.live.get(entry.inode)
        if live is not None:
            live.key = target
            live.entry = moved

    async def _rename_directory(self, source: Key, target: Key, replaced: Entry | None) -> None:
        tree = self._tree
        if replaced is not None:
            if replaced.kind is not Kind.DIRECTORY:
                raise NotDirectory(f"{show(target)}: not a directory")
            if target in tree.staged_below or await self._names.list(target, posix=False):
                raise NotEmpty(f"{show(target)}: directory not empty")
        staged = [live for live in tree.live if live.staged and live.key and is_below(live.key, source)]
        if tree.can(Capability.RENAME):
            await tree.call(lambda: tree.origin.rename(source, target))
        else:
            await self._move_objects(source, target, staged)
        for live in staged:
            assert live.key is not None
            await self._writeback.rename(live.staged.id, _moved_key(live.key, source, target))  # type: ignore[union-attr]
        self._move_tree(source, target)

    async def _move_objects(self, source: Key, target: Key, staged: list[LiveInode]) -> None:
        """Copy everything, and only when all is there delete everything."""
        tree = self._tree
        dirty = {live.key for live in staged}
        try:
            stats = await tree.call(lambda: list(tree.origin.walk(source)))
        except Absent:
            stats = []
        markers = [stat for stat in stats if stat.kind is Kind.DIRECTORY]
        objects = [stat for stat in stats if stat.kind is not Kind.DIRECTORY]
        for stat in markers:
            moved = _moved_key(stat.key, source, target)
            await _ignoring(Exists, tree.call, tree.origin.make_directory, moved, stat.attributes)
        clean = [stat for stat in objects if stat.key not in dirty]
        await self._for_each(
            clean, lambda stat: tree.origin.copy(stat.key, _moved_key(stat.key, source, target), stat.etag)
        )
        await self._for_each([stat.key for stat in objects], lambda key: tree.origin.delete(key))
        for stat in sorted(markers, key=lambda stat: len(stat.key), reverse=True):
            await _ignoring_absence(tree.call, tree.origin.remove_directory, stat.key)
        if not stats or source in tree.kept_directories:
            tree.kept_directories.add(target)

    def _move_tree(self, source: Key, target: Key) -> None:
        tree = self._tree
        tree.catalog.move_tree(tree.origin_id, source, target)
        tree.catalog.forget_listing(tree.origin_id, source)
        at_ns = now_ns()
        tree.put(source, absent_entry(at_ns))
        tree.kept_directories = {
            _moved_key(key, source, target) if is_below(key, source) else key for key in tree.kept_directories
        }
        for live in tree.live:
            if live.key is not None and is_below(live.key, source):
                moved = _moved_key(live.key, source, target)
                if live.staged is not None:
                    tree.note_staged(live.key, -1)
                    tree.note_staged(moved, +1)
                live.key = moved
        if tree.entry(target) is None:
            tree.put(target, directory_entry(tree.catalog.new_inode(), at_ns, known=True))

    async def copy(self, source: Key, target: Key) -> Entry:
        """Copy a file inside the origin; staged bytes go there first, so that the copy is of the newest."""
        tree = self._tree
        entry = await self._names.lookup(source)
        if entry.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(source)}: is a directory")
        replaced = await self._names.find(target)
        if replaced is not None and replaced.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(target)}: is a directory")
        if source == target:
            return entry
        if entry.staged:
            return await self._files.copy_staged(source, target)
        if replaced is not None and replaced.staged:
            await self._writeback.cancel(replaced.staged)
        stat = await tree.call(tree.origin.copy, source, target, entry.etag)
        if replaced is not None:
            self._forget_name(target, replaced)
        made = entry_of(stat, origin=tree.origin_id, inode=tree.catalog.new_inode(), old=None, at_ns=now_ns())
        tree.put(target, made)
        tree.touch_directory(parent_of(target))
        tree.changed(target, replaced.inode if replaced else 0)
        return made

    # -- attributes -------------------------------------------------------------------------------

    async def set_attributes(self, key: Key, attributes: Attributes) -> Entry:
        """Store new attributes: in the journal for a dirty file, at the origin for a clean one."""
        tree = self._tree
        entry = await self._names.lookup(key)
        if entry.staged:
            return await self._files.set_staged_attributes(key, entry, attributes)
        if tree.can(Capability.SET_ATTRIBUTES):
            return await self._set_at_origin(key, entry, attributes)
        if tree.can(Capability.STORED_ATTRIBUTES) and entry.kind is Kind.FILE:
            return await self._files.rewrite_with_attributes(key, attributes)
        # The origin has no place for them: they last as long as the catalog knows this version.
        return tree.put(key, _with(entry, attributes))

    async def _set_at_origin(self, key: Key, entry: Entry, attributes: Attributes) -> Entry:
        tree = self._tree
        try:
            stat = await tree.call(tree.origin.set_attributes, key, attributes, entry.etag)
        except Unsupported:
            if entry.kind is not Kind.FILE:
                return tree.put(key, _with(entry, attributes))
            return await self._files.rewrite_with_attributes(key, attributes)
        except Absent:
            if not tree.exists_here(key):
                raise
            return tree.put(key, _with(entry, attributes))
        changed = entry_of(stat, origin=tree.origin_id, inode=entry.inode, old=entry, at_ns=now_ns())
        if stat.attributes is None:
            changed = _with(changed, attributes)
        if entry.kind is Kind.FILE:
            self._files.rebind(key, entry, key, changed)
        tree.put(key, changed)
        live = tree.live.get(entry.inode)
        if live is not None:
            live.entry = changed
        tree.generations[parent_of(key)] += 1
        return changed

    # -- many at once -----------------------------------------------------------------------------

    async def _for_each(self, items: list[T], function: Callable[[T], object]) -> None:
        """Call the origin for each item, some at a time; the first error is raised after those under way ended."""
        tree = self._tree
        limiter = trio.CapacityLimiter(COPIES_AT_ONCE)
        errors: list[Exception] = []

        async def one(item: T) -> None:
            async with limiter:
                if errors:
                    return
                try:
                    await tree.call(function, item)
                except Absent:
                    pass  # gone already: deleted by somebody else, or nothing to copy
                except Exception as error:
                    errors.append(error)

        async with trio.open_nursery() as nursery:
            for item in items:
                nursery.start_soon(one, item)
        if errors:
            raise errors[0]


def _moved_key(key: Key, source: Key, target: Key) -> Key:
    return target + key[len(source) :]


def _with(entry: Entry, attributes: Attributes) -> Entry:
    return entry._replace(
        mode=attributes.mode & 0o7777,
        uid=attributes.uid,
        gid=attributes.gid,
        mtime_ns=attributes.mtime_ns,
        atime_ns=attributes.atime_ns,
        ctime_ns=now_ns(),
        xattrs=attributes.xattrs,
        attributes_known=True,
    )


async def _ignoring_absence(call: Callable[..., object], *args: object) -> None:
    await _ignoring(Absent, call, *args)


async def _ignoring(kind: type[Exception], call: Callable[..., object], *args: object) -> None:
    try:
        await call(*args)  # type: ignore[misc]
    except kind:
        pass

