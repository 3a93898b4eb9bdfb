"""Moving and copying names: one step where the origin can rename, object by object where it cannot."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress

import trio

from tiercache.engine.bulk import directories_by_depth, for_each, ignoring
from tiercache.engine.changes import Changes
from tiercache.engine.client_files import ClientFiles
from tiercache.engine.entries import absent_entry, attributes_of, directory_entry, entry_of, now_ns
from tiercache.engine.files import Files
from tiercache.engine.names import Names, require_bytes, show
from tiercache.engine.parting import Parting
from tiercache.engine.parts import Parts
from tiercache.engine.tree import Tree
from tiercache.engine.writes import Writes
from tiercache.errors import (
    Absent,
    Changed,
    Denied,
    Exists,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotEmpty,
    TierCacheError,
)
from tiercache.journal import DirectoryMove, StagedRecord
from tiercache.model import (
    Attributes,
    Entry,
    Key,
    Kind,
    ObjectStat,
    StagedState,
    VersionId,
    is_below,
    parent_of,
    version_id,
)
from tiercache.origins.base import Capability

log = logging.getLogger("tiercache.engine")


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
            await self.move_directory(source, target)
        else:
            await self._rename_file(source, target, entry, replaced)
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

    async def _rename_file(self, source: Key, target: Key, entry: Entry, replaced: Entry | None) -> None:
        if replaced is not None:
            replaced = await self._parting.prepare(target, replaced)
        entry = await self._parting.settle(source, entry)
        if entry.staged:
            await self._move_staged(source, target, entry, replaced)
        else:
            await self._move_object(source, target, entry, replaced)

    async def _move_staged(self, source: Key, target: Key, entry: Entry, replaced: Entry | None) -> None:
        """A dirty file moves in the journal, which sees to it that what the origin has under the old name goes."""
        record = self._journal.get(entry.staged)
        in_conflict = record is not None and record.state is StagedState.CONFLICT
        left_etag = await self._left_behind(source, entry)
        if not await self._writeback.rename(entry.staged, target, left_etag=left_etag):
            # Its upload ended just now: it is a clean object, to be moved as one.
            await self._move_object(source, target, await self._names.lookup(source), replaced)
            return
        moved = entry._replace(version=VersionId(b""), etag=replaced.etag if replaced else "", ctime_ns=now_ns())
        self.move_name(source, target, moved, replaced)
        if in_conflict:
            self._tree.doubt(source)  # what others wrote has the name

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
        return stat.etag if stat.kind is Kind.FILE else ""

    async def _move_object(self, source: Key, target: Key, entry: Entry, replaced: Entry | None) -> None:
        tree = self._tree
        await self._writeback.settle(tree.origin_id, target)
        async with self._giving_way(replaced, entry):
            if tree.can(Capability.RENAME):
                await tree.call(lambda: tree.origin.rename(source, target))
                stat = await tree.call(tree.origin.stat, target)
            else:
                stat = await tree.call(tree.origin.copy, source, target, entry.etag)
        if not tree.can(Capability.RENAME):
            # By its etag: what somebody else wrote since the copy stays.
            await ignoring(Absent, tree, tree.origin.delete, source, entry.etag)
        moved = entry_of(stat, origin=tree.origin_id, inode=entry.inode, old=entry, at_ns=now_ns())
        moved = self._as_linked(moved, source, target)
        self._files.rebind(source, entry, target, moved)
        self.move_name(source, target, moved, replaced)

    def _as_linked(self, moved: Entry, source: Key, target: Key) -> Entry:
        """Another name of a hard-linked file knows of bytes that are staged, or that arrived while one was moved."""
        tree = self._tree
        others = [name for name in tree.names_of(moved.inode) if name not in (source, target)]
        known = tree.entry(others[0]) if others else None
        if known is None:
            return moved
        version = version_id(tree.origin_id, target, known.etag) if known.version else known.version
        return known._replace(version=version, link_count=moved.link_count, ctime_ns=moved.ctime_ns)

    @asynccontextmanager
    async def _giving_way(self, replaced: Entry | None, mover: Entry | None = None) -> AsyncIterator[None]:
        """For a block that writes the key of a file at the origin. What is staged of the file cannot land on top of it,
        is given up when the block has done its work, and goes up after all when it failed. ``mover``: the block renames
        this file in one step, after which there is no way back: should we crash, its etag tells that it happened."""
        staged_id = replaced.staged if replaced is not None else 0
        renamed = mover is not None and self._tree.can(Capability.RENAME)
        try:
            if staged_id:
                await self._writeback.hold_back(staged_id, yields_to=mover.etag if mover and renamed else "")
            yield
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._send_after_all(staged_id)
            raise
        if staged_id:
            await self._writeback.cancel(staged_id, wait=False, durable=not renamed)

    async def _send_after_all(self, *staged_ids: int) -> None:
        """The change for which these files were held back has ended. Those that are open are sealed when closed."""
        for staged_id in staged_ids:
            self._writeback.let_go(staged_id)
            record = self._journal.get(staged_id)
            live = self._tree.live.get(record.inode) if record is not None else None
            if live is not None and not live.writers:
                with suppress(TierCacheError):  # told at the file's next fsync or close, not instead of the failure
                    await self._writes.closes.seal_held(live)

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

    # -- directories --------------------------------------------------------------------------------

    async def move_directory(
        self, source: Key, target: Key, *, resumed: bool = False, moved_there: bool = False
    ) -> None:
        """Everything below ``source`` goes to ``target``, at the origin (unless it is ``moved_there``), in the
        journal and, with its last step, in the catalog. ``resumed``: an earlier engine may have begun it."""
        tree = self._tree
        await self._writeback.settle_below(tree.origin_id, target)
        dirty = self._staged_below(source)
        left: list[StagedRecord] = []
        held_ids = [record.id for record in dirty]
        etags: dict[Key, str] = {}
        try:
            # Those that arrive before they can be held back are objects like the others.
            dirty = [record for record in dirty if await self._writeback.hold_back(record.id)]
            if tree.can(Capability.RENAME):
                # An upload to an old name that lands later would make the old directory anew.
                left = await self._writeback.hold_leftovers(tree.origin_id, source)
                held_ids += [record.id for record in left]
                if not moved_there:
                    await self._rename_at_origin(source, target, held_ids)
                await self._abort_moved_uploads([*dirty, *left], source, target)
            else:
                etags = await self._move_objects(source, target, dirty={r.key for r in dirty if r.published})
                if resumed:
                    etags = await self._etags_below(target) | etags
            # There is no way back from here: what the journal cannot write now follows with its next commit.
            for record in left:
                self._writeback.move_leftover(record.id, _moved_key(record.key, source, target))
            for record in dirty:
                moved = _moved_key(record.key, source, target)
                base_etag = record.base_etag if tree.can(Capability.RENAME) else etags.get(moved, "")
                await self._writeback.rename(record.id, moved, base_etag=base_etag, durable=False)
            self._move_tree(source, target, etags, onto=resumed)
            await self._writeback.flush()
        finally:
            with trio.CancelScope(shield=True):
                await self._send_after_all(*held_ids)

    async def _rename_at_origin(self, source: Key, target: Key, held_ids: Iterable[int]) -> None:
        """In one step. Until the journal has the new names too, it says that they may have changed."""
        tree = self._tree
        if held_ids:
            stat = await tree.call(tree.origin.stat, source)
            await self._writeback.moving(held_ids, DirectoryMove(source, target, stat.file_id))
        try:
            await tree.call(lambda: tree.origin.rename(source, target))
        except TierCacheError:
            await self._writeback.moving(held_ids, None)
            raise

    async def _abort_moved_uploads(self, records: Iterable[StagedRecord], source: Key, target: Key) -> None:
        """What a killed engine had sent of these files, as far as it got, lies in the directory that was moved, and
        would make it look full."""
        tree = self._tree
        for record in records:
            if record.attempts:
                try:
                    key = _moved_key(record.key, source, target)
                    await tree.call(tree.origin.abort_uploads, key, record.upload_id)
                except TierCacheError as error:
                    log.warning("%s: an unfinished upload may be left beside it: %s", show(key), error)

    async def _etags_below(self, directory: Key) -> dict[Key, str]:
        tree = self._tree
        try:
            stats = await tree.call(lambda: list(tree.origin.walk(directory)))
        except Absent:
            return {}
        return {stat.key: stat.etag for stat in stats if stat.kind is not Kind.DIRECTORY}

    def _staged_below(self, directory: Key) -> list[StagedRecord]:
        return [
            record
            for record in self._journal.records()
            if record.origin == self._tree.origin_id
            and is_below(record.key, directory)
            and record.state is not StagedState.LOST
        ]

    async def _move_objects(self, source: Key, target: Key, dirty: set[Key]) -> dict[Key, str]:
        """Everything but the dirty files is copied, and only when all is there the old objects are deleted. Returns the
        etags of the copies by their keys. What fails before the first is deleted has changed nothing: the copies go
        again. After it there is no way back: what is left under the old names is deleted later."""
        tree = self._tree
        try:
            stats = await tree.call(lambda: list(tree.origin.walk(source)))
        except Absent:
            stats = []
        markers = [stat for stat in stats if stat.kind is Kind.DIRECTORY]
        objects = [stat for stat in stats if stat.kind is not Kind.DIRECTORY]
        for stat in markers:
            moved = _moved_key(stat.key, source, target)
            await ignoring(Exists, tree, tree.origin.make_directory, moved, stat.attributes)
        kept = tree.without_leftovers(objects, tree.retracted(None))
        clean = [stat for stat in kept if stat.key not in dirty]
        etags: dict[Key, str] = {}
        begun: dict[Key, ObjectStat] = {}

        def copy(stat: ObjectStat) -> None:
            moved = _moved_key(stat.key, source, target)
            begun[moved] = stat
            etags[moved] = tree.origin.copy(stat.key, moved, stat.etag).etag

        try:
            await for_each(tree, clean, copy)
            if not clean and not markers and not dirty:
                await ignoring(Exists, tree, tree.origin.make_directory, target, self._attributes_of(source))
                tree.marked_directories.add(target)
        except BaseException:
            await self._take_back(begun, etags, stats, source, target)
            raise
        left, refusal = await self._delete_moved(objects)
        if refusal is not None:
            await self._take_back(begun, etags, stats, source, target)
            raise refusal
        if left:
            await self._writeback.leave(tree.origin_id, tree.source, [(stat.key, stat.etag) for stat in left])
        try:
            for level in directories_by_depth(stats, source):
                await for_each(tree, level, tree.origin.remove_directory)
        except TierCacheError as error:
            log.warning("%s: was renamed, and an empty directory may show itself there: %s", show(source), error)
        return etags

    async def _delete_moved(self, objects: list[ObjectStat]) -> tuple[list[ObjectStat], Denied | None]:
        """Delete what was copied, unless somebody wrote it anew since. Which of it may still be there; and the refusal
        when it is certain that nothing was deleted."""
        tree = self._tree
        left: list[ObjectStat] = []
        refusals: list[Denied] = []

        def delete(stat: ObjectStat) -> None:
            try:
                tree.origin.delete(stat.key, stat.etag)
            except (Absent, Changed):
                return
            except TierCacheError as error:
                left.append(stat)
                if isinstance(error, Denied):  # other failures may have come after the deletion
                    refusals.append(error)

        await for_each(tree, objects, delete)
        certain = bool(refusals) and len(refusals) == len(objects)
        return left, refusals[0] if certain else None

    async def _take_back(
        self,
        begun: Mapping[Key, ObjectStat],
        etags: Mapping[Key, str],
        stats: Iterable[ObjectStat],
        source: Key,
        target: Key,
    ) -> None:
        """Remove the copies of a move that failed before anything was deleted, so that it can be repeated. The failure
        is what is told."""
        tree = self._tree
        moved = [stat._replace(key=_moved_key(stat.key, source, target)) for stat in stats]

        def remove(copied: tuple[Key, ObjectStat]) -> None:
            key, original = copied
            etag = etags.get(key)
            if etag is None:  # the answer was a failure, and the copy may be there all the same
                found = tree.origin.stat(key)
                etag = found.etag if found.size_bytes == original.size_bytes else None
            if etag is not None:
                tree.origin.delete(key, etag)

        try:
            with trio.CancelScope(shield=True):
                await for_each(tree, list(begun.items()), remove)
                for level in directories_by_depth(moved, target):
                    await for_each(tree, level, tree.origin.remove_directory)
        except TierCacheError as error:
            log.warning("%s: copies are left there of a rename that failed: %s", show(target), error)

    def _attributes_of(self, directory: Key) -> Attributes | None:
        entry = self._tree.entry(directory)
        return attributes_of(entry) if entry is not None and entry.attributes_known else None

    def _move_tree(self, source: Key, target: Key, etags: Mapping[Key, str], *, onto: bool) -> None:
        """What the catalog knows of a tree, and its live inodes, follow it. ``etags`` tells those that are not the old
        ones. The catalog changes at once and last: a crash leaves all of this to do, or none."""
        tree = self._tree
        tree.kept_directories.replace(_moved_keys(set(tree.kept_directories), source, target))
        tree.marked_directories = _moved_keys(tree.marked_directories, source, target)
        with tree.catalog.batch():
            self._move_entries(source, target, etags, onto=onto)
        for live in tree.live:
            if live.key is not None and is_below(live.key, source):
                live.key = _moved_key(live.key, source, target)
                if live.staged is not None:
                    tree.place_staged(live.inode, live.key)
        tree.trees_changed += 1

    def _move_entries(self, source: Key, target: Key, etags: Mapping[Key, str], *, onto: bool) -> None:
        tree = self._tree
        for old_key, new_key, old in tree.catalog.move_tree(tree.origin_id, source, target, onto=onto):
            if old.kind is Kind.FILE and not old.staged:
                etag = etags.get(new_key, old.etag)
                entry = old._replace(etag=etag, version=version_id(tree.origin_id, new_key, etag))
                self._files.rebind(old_key, old, new_key, entry)
                tree.put(new_key, entry)
        tree.catalog.forget_listing(tree.origin_id, source)
        at_ns = now_ns()
        tree.put(source, absent_entry(at_ns))
        known = tree.entry(target)
        if known is None or known.kind is not Kind.DIRECTORY:
            tree.put(target, directory_entry(tree.catalog.new_inode(), at_ns, known=True))

    # -- copies -------------------------------------------------------------------------------------

    async def copy(self, source: Key, target: Key) -> Entry:
        """Copy a file inside the origin; staged bytes go there first, so that the copy is of the newest."""
        async with self._tree.hold(target):
            entry = await self._names.lookup(source)
            require_bytes(source, entry)
            if source == target:
                return entry
            if not entry.staged:
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
        async with self._giving_way(replaced):
            stat = await tree.call(tree.origin.copy, source, target, entry.etag)
        made = entry_of(stat, origin=tree.origin_id, inode=tree.catalog.new_inode(), old=None, at_ns=now_ns())
        tree.put(target, made)
        if replaced is not None:
            self._parting.done(target, replaced)
            self._parting.drop(replaced)
        tree.touch_directory(parent_of(target))
        tree.changed(target, replaced.inode if replaced else 0)
        return made


def _moved_key(key: Key, source: Key, target: Key) -> Key:
    return target + key[len(source) :]


def _moved_keys(keys: set[Key], source: Key, target: Key) -> set[Key]:
    return {_moved_key(key, source, target) if is_below(key, source) else key for key in keys}
