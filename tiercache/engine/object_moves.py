"""Moving a directory where the origin has no rename: all objects are copied, then the old ones are deleted.

The journal has the intent before the first request that changes something, and again, as ``Phase.MOVED``, before the
first deletion: from there on there is no way back, but for one case (see ``ObjectMoves.delete``). An engine that is
killed, or ends, leaves the intent to the next one; see ``TreeChanges.take_over``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tiercache.engine.bulk import directories_by_depth, for_each, ignoring
from tiercache.engine.entries import attributes_of
from tiercache.engine.names import show
from tiercache.engine.tree import Tree
from tiercache.errors import Absent, Changed, Denied, Exists, TierCacheError
from tiercache.journal import Intent, Member, Phase
from tiercache.model import Attributes, Key, Kind, ObjectStat
from tiercache.writeback import WriteBack

log = logging.getLogger("tiercache.engine")


class ObjectMoves:
    """Of one namespace. The caller holds both names."""

    def __init__(self, tree: Tree, writeback: WriteBack) -> None:
        self._tree = tree
        self._writeback = writeback

    async def copy(self, source: Key, target: Key, *, dirty: bool, target_stood: bool) -> Intent:
        """Everything that the origin has below ``source`` is there below ``target`` too, also what it has of files
        that are ``dirty``: until their upload it is all that is there of them. What fails has changed nothing: the
        copies go again."""
        tree = self._tree
        stats = await walked(tree, source)
        for stat in stats:
            tree.origin.require_key(target + stat.key[len(source) :])
        objects = [stat for stat in stats if stat.kind is not Kind.DIRECTORY]
        markers = [stat for stat in stats if stat.kind is Kind.DIRECTORY]
        shown = {stat.key for stat in tree.without_leftovers(objects, tree.retracted(None))}
        intent = await self._writeback.trees.intend(
            Intent(
                0,
                Phase.COPYING,
                tree.origin_id,
                tree.source,
                source,
                target,
                tuple(member_of(stat, source, copied="" if stat.key in shown else None) for stat in objects),
                paths_of_directories(stats, source),
                target_stood,
            )
        )
        etags: dict[bytes, str] = {}
        begun: set[Member] = set()
        try:
            for stat in markers:
                marker = target + stat.key[len(source) :]
                await ignoring(Exists, tree, tree.origin.make_directory, marker, stat.attributes)
            await self._copy_all(intent, begun, etags)
            if not shown and not markers and not dirty:
                await ignoring(Exists, tree, tree.origin.make_directory, target, self._attributes_of(source))
                tree.marked_directories.add(target)
            members = tuple(m._replace(copied=etags.get(m.path, m.copied)) for m in intent.members)
            return await self._writeback.trees.intend(intent._replace(phase=Phase.MOVED, members=members))
        except Exception:
            await self._take_back(intent, begun, etags)
            raise

    async def _copy_all(self, intent: Intent, begun: set[Member], etags: dict[bytes, str]) -> None:
        """Those that tell a reader of others come last."""
        tree = self._tree

        def copy(member: Member) -> None:
            begun.add(member)
            stat = tree.origin.copy(intent.directory + member.path, intent.target + member.path, member.etag)
            etags[member.path] = stat.etag

        announcing, others = self._writeback.trees.in_order(m for m in intent.members if m.copied is not None)
        await for_each(tree, others, copy)
        await for_each(tree, announcing, copy)

    async def delete(self, intent: Intent) -> None:
        """Delete what was copied, unless somebody wrote it anew since. What cannot be deleted now is absent here and
        deleted later. Denied when it is certain that nothing was deleted: then the copies go again."""
        tree = self._tree
        gone: list[Member] = []
        left: list[Member] = []
        refusals: list[Denied] = []

        def delete(member: Member) -> None:
            try:
                tree.origin.delete(intent.directory + member.path, member.etag)
            except (Absent, Changed):
                gone.append(member)
            except TierCacheError as error:
                left.append(member)
                if isinstance(error, Denied):  # other failures may have come after the deletion
                    refusals.append(error)
            else:
                gone.append(member)

        # Those that tell a reader of others go first, and the others stay as long as one of them does.
        announcing, others = self._writeback.trees.in_order(intent.members)
        await for_each(tree, announcing, delete)
        untried = others if left else []
        if not untried:
            await for_each(tree, others, delete)
        if refusals and len(refusals) == len(left) and not gone:
            await self._refused(intent, refusals[0])
        if left:
            await self._writeback.trees.hand_over(intent, [*left, *untried])
            return
        try:
            for level in levels_of(intent.directories, intent.directory):
                await for_each(tree, level, tree.origin.remove_directory)
        except TierCacheError as error:
            log.warning("%s: was renamed, and an empty directory may be there: %s", show(intent.directory), error)

    async def _refused(self, intent: Intent, refusal: Denied) -> None:
        etags = {member.path: member.copied for member in intent.members if member.copied}
        intent = await self._writeback.trees.intend(intent._replace(phase=Phase.COPYING))
        await self._take_back(intent, {m for m in intent.members if m.copied is not None}, etags)
        raise refusal

    async def _take_back(self, intent: Intent, begun: Iterable[Member], etags: dict[bytes, str]) -> None:
        """Remove the copies of a move that failed before anything was deleted, so that it can be repeated. What cannot
        be removed now is absent here and removed later. The failure is what is told."""
        tree = self._tree
        left: list[Member] = []

        def remove(member: Member) -> None:
            key = intent.target + member.path
            try:
                etag = etags.get(member.path)
                if etag is None:  # the answer was a failure, and the copy may be there all the same
                    found = tree.origin.stat(key)
                    etag = found.etag if found.etag == member.etag else None
                    if etag is None and found.kind is not Kind.DIRECTORY:
                        left.append(member)  # looked at more closely
                if etag is not None:
                    tree.origin.delete(key, etag)
            except (Absent, Changed):
                return
            except TierCacheError as error:
                log.warning("%s: a copy is left there of a rename that failed: %s", show(key), error)
                left.append(member)

        announcing, others = self._writeback.trees.in_order(begun)
        for members in (announcing, others):
            await for_each(tree, members, remove)
        if left:
            await self._writeback.trees.hand_over(intent, left)
            await self._writeback.settle_below(tree.origin_id, intent.target)
            return
        try:
            for level in levels_of(intent.directories, intent.target):
                kept = {intent.target} if intent.target_stood else set()
                await for_each(tree, [key for key in level if key not in kept], tree.origin.remove_directory)
        except TierCacheError as error:
            log.warning("%s: an empty directory is left there of a rename that failed: %s", show(intent.target), error)
        self._writeback.trees.done(intent)

    def _attributes_of(self, directory: Key) -> Attributes | None:
        entry = self._tree.entry(directory)
        return attributes_of(entry) if entry is not None and entry.attributes_known else None


async def walked(tree: Tree, directory: Key) -> list[ObjectStat]:
    """Everything that the origin has below a directory; nothing if that is only here."""
    try:
        return await tree.call(lambda: list(tree.origin.walk(directory)))
    except Absent:
        return []


def member_of(stat: ObjectStat, directory: Key, *, copied: str | None = None) -> Member:
    """How an intent tells of an object."""
    return Member(stat.key[len(directory) :], stat.etag, stat.modified_ns, copied)


def paths_of_directories(stats: list[ObjectStat], top: Key) -> tuple[bytes, ...]:
    """How an intent tells of the directories of a walked tree: the deepest first, ``top`` is the last."""
    return tuple(key[len(top) :] for level in directories_by_depth(stats, top) for key in level)


def levels_of(paths: Iterable[bytes], top: Key) -> list[list[Key]]:
    """Back from ``paths_of_directories``: the directories below ``top`` by their depth."""
    levels: dict[int, list[Key]] = {}
    for path in paths:
        levels.setdefault(path.count(b"/"), []).append(top + path)
    return list(levels.values())
