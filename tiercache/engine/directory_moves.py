"""Moving directories: one step where the origin can rename, object by object where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

import trio

from tiercache.engine.entries import absent_entry, directory_entry, now_ns
from tiercache.engine.files import Files
from tiercache.engine.giving_way import GivingWay
from tiercache.engine.names import show
from tiercache.engine.object_moves import ObjectMoves
from tiercache.engine.parts import Parts
from tiercache.engine.tree import Tree
from tiercache.errors import TierCacheError
from tiercache.journal import DirectoryMove, Intent, Member, StagedRecord
from tiercache.model import Capability, Entry, Key, Kind, StagedState, is_below, version_id
from tiercache.writeback.succession import sent_while_written

log = logging.getLogger("tiercache.engine")


class DirectoryMoves:
    """Of one namespace. The caller holds both names, and has judged that the move may be."""

    def __init__(self, tree: Tree, files: Files, giving_way: GivingWay, parts: Parts) -> None:
        self._tree = tree
        self._files = files
        self._giving_way = giving_way
        self._journal = parts.journal
        self._writeback = parts.writeback
        self._objects = ObjectMoves(tree, parts.writeback)

    async def move(self, source: Key, target: Key, *, resumed: bool = False) -> None:
        """Everything below ``source`` goes to ``target``, at the origin, in the journal and, with its last step, in the
        catalog. ``resumed``: an earlier engine has done it at the origin."""
        tree = self._tree
        await self._writeback.settle_below(tree.origin_id, target, make_room=True)
        dirty = self._staged_below(source)
        self._require_keys((record.key for record in dirty), source, target)
        for record in dirty:
            if record.spilled:
                raise sent_while_written(record)
        held_ids = [record.id for record in dirty]
        try:
            # Those that arrive before they can be held back are objects like the others.
            dirty = [record for record in dirty if await self._writeback.hold_back(record.id)]
            if tree.can(Capability.RENAME):
                await self._move_at_once(source, target, dirty, held_ids, resumed=resumed)
            else:
                await self._move_objects(source, target, dirty, held_ids)
            await self._writeback.flush()
        finally:
            with trio.CancelScope(shield=True):
                await self._giving_way.send_after_all(*held_ids)

    async def _move_at_once(
        self, source: Key, target: Key, dirty: list[StagedRecord], held_ids: list[int], *, resumed: bool
    ) -> None:
        tree = self._tree
        # An upload to an old name that lands later would make the old directory anew.
        left = await self._writeback.hold_leftovers(tree.origin_id, source)
        held_ids += [record.id for record in left]
        if not resumed:
            await self._rename_at_origin(source, target, held_ids)
        await self._abort_moved_uploads([*dirty, *left], source, target)
        # There is no way back from here: what the journal cannot write now follows with its next commit.
        for record in left:
            self._writeback.move_leftover(record.id, moved_key(record.key, source, target))
        for record in dirty:
            moved = moved_key(record.key, source, target)
            await self._writeback.rename(record.id, moved, base_etag=record.base_etag, durable=False)
        self._move_tree(source, target, {}, onto=resumed)

    async def _move_objects(self, source: Key, target: Key, dirty: list[StagedRecord], held_ids: list[int]) -> None:
        """One by one, and whatever happens in between: either nothing has happened in the end, or all of it."""
        tree = self._tree
        known = tree.entry(target)
        # What renamed files left is not copied, and would keep the old directory there.
        await self._writeback.settle_below(tree.origin_id, source, make_room=True)
        # What an earlier change left under the new names is not to be removed in the middle of this one.
        left = await self._writeback.hold_leftovers(tree.origin_id, target)
        held_ids += [record.id for record in left]
        intent = await self._objects.copy(
            source,
            target,
            dirty=any(record.published for record in dirty),
            target_stood=known is not None and known.kind is Kind.DIRECTORY,
        )
        await self._objects.delete(intent)
        # There is no way back from here: what the journal cannot write now follows with its next commit.
        etags = copied_etags(intent)
        self._writeback.replaced(left, etags)
        members = {source + member.path: member for member in intent.members}
        for record in dirty:
            base_etag = _copied_base(record, members.get(record.key))
            moved = moved_key(record.key, source, target)
            await self._writeback.rename(record.id, moved, base_etag=base_etag, durable=False)
        self._move_tree(source, target, etags, onto=False)
        self._writeback.trees.done(intent)

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
            self._tree.origin.require_key(moved_key(key, source, target))

    async def _abort_moved_uploads(self, records: Iterable[StagedRecord], source: Key, target: Key) -> None:
        """What a killed engine had sent of these files, as far as it got, lies in the directory that was moved, and
        would make it look full."""
        tree = self._tree
        for record in records:
            if record.attempts:
                try:
                    key = moved_key(record.key, source, target)
                    await tree.call(tree.origin.abort_uploads, key, record.upload_id)
                except TierCacheError as error:
                    log.warning("%s: an unfinished upload may be left beside it: %s", show(key), error)

    def _staged_below(self, directory: Key) -> list[StagedRecord]:
        return [
            record
            for record in self._journal.records()
            if record.origin == self._tree.origin_id
            and is_below(record.key, directory)
            and record.state is not StagedState.LOST
        ]

    def _move_tree(self, source: Key, target: Key, etags: Mapping[Key, str], *, onto: bool) -> None:
        """What the catalog knows of a tree, and its live inodes, follow it. ``etags`` tells those that are not the old
        ones. The catalog changes at once and last: a crash leaves all of this to do, or none."""
        tree = self._tree
        follow_move(tree, source, target, etags, onto=onto, rebind=self._files.rebind)
        for live in tree.live:
            if live.key is not None and is_below(live.key, source):
                live.key = moved_key(live.key, source, target)
                if live.staged is not None:
                    tree.place_staged(live.inode, live.key)
        tree.trees_changed += 1


Rebind = Callable[[Key, Entry, Key, Entry], None]
"""Told of the old and the new name of a file's bytes, with its entries."""


def follow_move(tree: Tree, source: Key, target: Key, etags: Mapping[Key, str], *, onto: bool, rebind: Rebind) -> None:
    """The catalog follows the move of a directory, in one transaction."""
    tree.kept_directories.replace(_moved_keys(set(tree.kept_directories), source, target))
    tree.marked_directories = _moved_keys(tree.marked_directories, source, target)
    with tree.catalog.batch():
        for old_key, new_key, old in tree.catalog.move_tree(tree.origin_id, source, target, onto=onto):
            if old.kind is Kind.FILE and not old.staged:
                etag = etags.get(new_key, old.etag)
                entry = old._replace(etag=etag, version=version_id(tree.origin_id, new_key, etag))
                rebind(old_key, old, new_key, entry)
                tree.put(new_key, entry)
        tree.catalog.forget_listing(tree.origin_id, source)
        at_ns = now_ns()
        tree.put(source, absent_entry(at_ns))
        known = tree.entry(target)
        if known is None or known.kind is not Kind.DIRECTORY:
            tree.put(target, directory_entry(tree.catalog.new_inode(), at_ns, known=True))


def copied_etags(intent: Intent) -> dict[Key, str]:
    """Of the copies that a move made, by their names."""
    return {intent.target + member.path: member.copied for member in intent.members if member.copied}


def _copied_base(record: StagedRecord, found: Member | None) -> str:
    """The etag that the copy of what a dirty file was made from has; "" where the file replaces whatever is there."""
    if record.base_etag and found is not None and found.etag == record.base_etag:
        return found.copied or ""
    if record.attempts and record.state is not StagedState.CONFLICT:
        return ""  # it may be what an upload of ours has brought
    return record.base_etag  # another writer's: a conflict under the new name too


def moved_key(key: Key, source: Key, target: Key) -> Key:
    """The new name of what lies in a directory that is moved."""
    return target + key[len(source) :]


def _moved_keys(keys: set[Key], source: Key, target: Key) -> set[Key]:
    return {moved_key(key, source, target) if is_below(key, source) else key for key in keys}
