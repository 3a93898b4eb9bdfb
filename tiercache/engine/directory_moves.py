"""Moving directories: one step where the origin can rename, object by object where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import trio

from tiercache.engine.bulk import directories_by_depth, for_each, ignoring
from tiercache.engine.entries import absent_entry, attributes_of, directory_entry, now_ns
from tiercache.engine.files import Files
from tiercache.engine.giving_way import GivingWay
from tiercache.engine.names import show
from tiercache.engine.parts import Parts
from tiercache.engine.tree import Tree
from tiercache.errors import Absent, Changed, Denied, Exists, TierCacheError
from tiercache.journal import DirectoryMove, StagedRecord
from tiercache.model import Attributes, Key, Kind, ObjectStat, StagedState, is_below, version_id
from tiercache.origins.base import Capability

log = logging.getLogger("tiercache.engine")


class DirectoryMoves:
    """Of one namespace. The caller holds both names, and has judged that the move may be."""

    def __init__(self, tree: Tree, files: Files, giving_way: GivingWay, parts: Parts) -> None:
        self._tree = tree
        self._files = files
        self._giving_way = giving_way
        self._journal = parts.journal
        self._writeback = parts.writeback

    async def move(self, source: Key, target: Key, *, resumed: bool = False, moved_there: bool = False) -> None:
        """Everything below ``source`` goes to ``target``, at the origin (unless it is ``moved_there``), in the
        journal and, with its last step, in the catalog. ``resumed``: an earlier engine may have begun it."""
        tree = self._tree
        await self._writeback.settle_below(tree.origin_id, target)
        dirty = self._staged_below(source)
        self._require_keys((record.key for record in dirty), source, target)
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
                await self._giving_way.send_after_all(*held_ids)

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

    def _require_keys(self, keys: Iterable[Key], source: Key, target: Key) -> None:
        """NameTooLong before anything is changed: what is dirty could never go up under a longer key."""
        for key in keys:
            self._tree.origin.require_key(_moved_key(key, source, target))

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
        self._require_keys((stat.key for stat in stats), source, target)
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


def _moved_key(key: Key, source: Key, target: Key) -> Key:
    return target + key[len(source) :]


def _moved_keys(keys: set[Key], source: Key, target: Key) -> set[Key]:
    return {_moved_key(key, source, target) if is_below(key, source) else key for key in keys}
