"""Files that a client writes itself: invisible until it publishes them, gone when it dies before."""

from __future__ import annotations

import os

from tiercache.engine.entries import attributes_of, entry_of, now_ns, staged_entry
from tiercache.engine.files import Files
from tiercache.engine.giving_way import GivingWay
from tiercache.engine.live import LiveInode
from tiercache.engine.names import Names, require_bytes, show
from tiercache.engine.parting import Parting
from tiercache.engine.parts import Parts
from tiercache.engine.promises import inherited
from tiercache.engine.tree import Tree
from tiercache.engine.writes import Writes
from tiercache.errors import Absent, Changed, Exists, IsDirectory, Lost, NotDirectory, Unsupported
from tiercache.journal import ConditionKind, StagedRecord
from tiercache.model import Attributes, Capability, Durability, Entry, Key, Kind, StagedState, parent_of
from tiercache.staging import StagedFile
from tiercache.writeback import Spilled, wanted_condition


class ClientFiles:
    """Stage, publish and discard, by staged id."""

    def __init__(self, tree: Tree, names: Names, files: Files, writes: Writes, parting: Parting, parts: Parts) -> None:
        self._tree = tree
        self._names = names
        self._files = files
        self._writes = writes
        self._parting = parting
        self._staging = parts.staging
        self._journal = parts.journal
        self._writeback = parts.writeback
        self._spills = parts.writeback.spills
        self._giving_way = GivingWay(tree, writes, parts)

    async def stage(self, key: Key, *, exclusive: bool, keep: bool) -> StagedFile:
        """An invisible staged file for a client to write; ``keep`` starts it with the present bytes."""
        self._writes.stages.require_writable(key)
        found = await self._present(key, sure=exclusive or keep)
        if found is not None:
            require_bytes(key, found)
        if found is not None and exclusive:
            raise Exists(f"{show(key)}: exists already")
        at_ns = now_ns()
        attributes = Attributes(
            0o644, os.getuid(), os.getgid(), at_ns, at_ns, at_ns, inherited(self._tree.entry(parent_of(key)))
        )
        condition = ConditionKind.IF_ABSENT if exclusive else ConditionKind.ALWAYS
        if found is not None:
            attributes = attributes_of(found)._replace(mtime_ns=at_ns, ctime_ns=at_ns)
            condition = ConditionKind.IF_MATCH if keep else condition
        entry = staged_entry(attributes, self._tree.catalog.new_inode(), staged=0, size_bytes=0)
        entry = entry._replace(etag=found.etag if found else "")
        staged = await self._writes.stages.stage(key, entry, condition, published=False)
        try:
            if keep and found is not None:
                await self._copy_newest(key, staged)
        except BaseException:
            await self._writes.stages.unstage(staged)
            raise
        return staged

    async def _present(self, key: Key, *, sure: bool) -> Entry | None:
        """What the name stands for now. A plain overwrite on an object store needs no request: what we know will do."""
        if self._tree.can(Capability.EMPTY_DIRECTORIES):
            parent = await self._names.lookup(parent_of(key))
            if parent.kind is not Kind.DIRECTORY:
                raise NotDirectory(f"{show(parent_of(key))}: not a directory")
            sure = True
        if sure:
            return await self._names.find(key)
        known = self._tree.entry(key)
        return None if known is None or known.kind is Kind.ABSENT else known

    async def _copy_newest(self, key: Key, staged: StagedFile, *, base: bool = True) -> None:
        """Start the file with the name's present bytes, and ``base`` it on the version that these are."""
        while True:
            entry = await self._names.lookup(key)
            live = self._tree.live.get(entry.inode)
            source = live.staged if live is not None else None
            try:
                if source is not None:
                    await self._staging.reserve(staged.id, source.size_bytes)
                    await self._staging.clone(source, staged)
                elif entry.size_bytes:
                    await self._writes.stages.copy_version(self._tree.version_ref(key, entry), staged)
            except (Lost, Changed):
                if self._tree.entry(key) == entry:
                    raise
                continue  # its upload ended, or another replaced it, while we copied
            if not base or await self._base_on(staged, entry, source):
                return

    async def _base_on(self, staged: StagedFile, entry: Entry, source: StagedFile | None) -> bool:
        """Record what the copied bytes are the state of; False when that is not known any more."""
        base_etag, base = entry.etag, None
        if source is not None:
            copied = self._journal.get(source.id)
            if copied is None:
                return False  # committed meanwhile: its etag is known only to the name's new entry
            base_etag, base = copied.base_etag, copied.base
        record = self._journal.get(staged.id)
        if record is not None and record.base_etag != base_etag:
            await self._journal.note(put=[record._replace(base_etag=base_etag, base=base or record.base)])
        return True

    async def spill(self, staged_id: int, position: int, step_bytes: int) -> Spilled:
        """There is no room for more of the file, which is written on from ``position``: what it has before that goes to
        the origin. Unsupported where that cannot be; then nothing has changed."""
        record = self._record(staged_id)
        if not self._writes.stages.uploads or record.published:
            raise Unsupported(f"{show(record.key)}: stays on this node")
        end = min(position, self._staging.open(staged_id).size_bytes)
        return await self._spills.make_room(self._tree.origin, staged_id, end, step_bytes)

    async def publish(self, staged_id: int, *, sync: bool = False) -> Entry:
        """The client closed its file: it replaces the name, at once here and later at the origin; one that was spilled
        when the origin has it. ``sync``: with what fsync promises."""
        if staged_id in self._spills:
            await self._spills.send_all(staged_id)
        while True:
            key = self._record(staged_id).key
            async with self._tree.hold(key):
                record = self._record(staged_id)
                if record.key == key:  # else its directory was moved while we waited
                    entry, level = await self._publish_held(record, sync=sync)
                    break
        await self._writes.closes.wait_closed(staged_id, level)
        return self._tree.entry(record.key) or entry

    def _record(self, staged_id: int) -> StagedRecord:
        record = self._journal.get(staged_id)
        if record is None:
            raise Absent(f"there is no staged file {staged_id}")
        return record

    async def _publish_held(self, record: StagedRecord, *, sync: bool) -> tuple[Entry, Durability]:
        key, staged = record.key, self._staging.open(record.id)
        replaced = await self._present(key, sure=record.condition is not ConditionKind.ALWAYS)
        if replaced is not None and record.condition is ConditionKind.IF_ABSENT:
            raise Exists(f"{show(key)}: exists already")
        if replaced is not None and replaced.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(key)}: is a directory")
        if record.id in self._spills:
            return await self._publish_spilled(record, replaced), Durability.MEMORY
        if replaced is not None:
            # What was made from bytes that are not there yet waits for them: it goes up only over these.
            made_from = record.condition is ConditionKind.IF_MATCH
            replaced = await self._parting.prepare(key, replaced, arrive=made_from)
        at_ns = now_ns()
        attributes = record.attributes or Attributes(0o644, os.getuid(), os.getgid(), at_ns)
        entry = staged_entry(
            attributes._replace(mtime_ns=at_ns, ctime_ns=at_ns),
            record.inode,
            staged=staged.id,
            size_bytes=staged.size_bytes,
        )
        older = self._tree.live.get(replaced.inode) if replaced is not None else None
        live = self._files.enter_staged(key, entry._replace(etag=record.base_etag), staged)
        if replaced is not None:
            # In one step with the new entry: the older upload may end any time, and must not take the name back.
            self._parting.done(key, replaced)
        # Sealed before the older one is dropped: at no moment does a crash lose both.
        level = self._writes.closes.promise(live).published(synced=sync)
        await self._writes.closes.seal_closed(live, staged, level)
        if replaced is not None:
            await self._drop_older(replaced, older, staged.id)
        return entry, level

    async def _publish_spilled(self, record: StagedRecord, replaced: Entry | None) -> Entry:
        """The origin has all parts of the file: it takes its name there, and then here."""
        tree, key = self._tree, record.key
        if replaced is not None and record.condition is ConditionKind.IF_MATCH and replaced.staged:
            await self._writes.closes.write_through(key)  # what it was made from arrives before it
            replaced, record = await self._names.lookup(key), self._record(record.id)
        if replaced is not None:
            replaced = await self._parting.prepare(key, replaced)
        await self._writeback.settle(tree.origin_id, key)
        async with self._giving_way.during(replaced):
            stat = await self._spills.complete(record.id, wanted_condition(record))
        made = entry_of(stat, origin=tree.origin_id, inode=record.inode, old=None, at_ns=now_ns())
        tree.put(key, made)
        if replaced is not None:
            self._parting.done(key, replaced)
            self._parting.drop(replaced)
        tree.touch_directory(parent_of(key))
        tree.changed(key, replaced.inode if replaced else 0)
        await self._spills.end(record.id, completed=True)
        return made

    async def _drop_older(self, replaced: Entry, older: LiveInode | None, newer_id: int) -> None:
        """The file that had the name is an unlinked inode now. An upload of it that is due gives way to the newer one
        by itself; one that nobody ever sealed is cancelled here."""
        record = self._journal.get(replaced.staged) if replaced.staged else None
        on_its_way = record is not None and record.state in (StagedState.SEALED, StagedState.UPLOADING)
        if record is not None and not on_its_way:
            await self._writeback.secure(newer_id, [record])
            await self._writeback.cancel(record.id, wait=False)
        if older is not None:
            if older.key is None and not older.handles:
                older.staged = None
            self._tree.live.release(older)

    async def sync_staged(self, staged_id: int) -> None:
        """The client's fsync: data and record are durable."""
        self._record(staged_id)
        if staged_id not in self._spills:  # else close brings all of it further than to this disk
            await self._writeback.sync(staged_id)

    async def discard(self, staged_id: int) -> None:
        """The client gave up or died: as if it had never opened the file."""
        record = self._journal.get(staged_id)
        if staged_id in self._spills:
            await self._spills.end(staged_id, completed=False)
        elif record is not None and not record.published:
            await self._journal.drop(staged_id)
            self._staging.delete(staged_id)

    async def copy_staged(self, source: Key, target: Key) -> Entry:
        """Copy a dirty file: the copy is a dirty file too."""
        entry = await self._names.lookup(source)
        made = staged_entry(attributes_of(entry), self._tree.catalog.new_inode(), staged=0, size_bytes=0)
        staged = await self._writes.stages.stage(target, made, ConditionKind.ALWAYS, published=False)
        try:
            await self._copy_newest(source, staged, base=False)  # a version of another name
        except BaseException:
            await self._writes.stages.unstage(staged)
            raise
        return await self.publish(staged.id)
