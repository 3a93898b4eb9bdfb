"""How a staged file comes to be: the first write to a file makes one, of the bytes that were there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from tiercache.cache import VersionRef
from tiercache.config import Profile
from tiercache.engine.entries import attributes_of, now_ns
from tiercache.engine.lending import Lending
from tiercache.engine.live import LiveInode, live_entry
from tiercache.engine.names import Names, show
from tiercache.engine.parts import Parts
from tiercache.engine.promises import Promises
from tiercache.engine.tree import Tree
from tiercache.errors import Broken, Changed, ReadOnly
from tiercache.journal import ConditionKind, StagedRecord
from tiercache.model import BaseVersion, Entry, Key, StagedState
from tiercache.staging import StagedFile

BASE_CHECKSUMS_MAX_BYTES = 256 * 1024
"""What a row of the journal may have of them: enough for a file of 128 GiB."""

COPY_CHUNK_BYTES = 4 * 1024 * 1024
"""How much of a clean version is read at a time when it is brought into staging for a change in place."""


class Stages:
    """Makes staged files and their records, for inodes of one tree under one profile."""

    def __init__(self, tree: Tree, names: Names, profile: Profile, promises: Promises, parts: Parts) -> None:
        self._tree = tree
        self._names = names
        self._profile = profile
        self._cache = parts.cache
        self._staging = parts.staging
        self._journal = parts.journal
        self._writeback = parts.writeback
        self._orphans = parts.orphans
        self.lending = Lending(tree, profile, promises, parts.cache, parts.staging, parts.journal)

    def is_writable(self, staged: StagedFile) -> bool:
        """Not sealed; a file without a record is an unlinked one, of which nothing will be sent."""
        record = self._journal.get(staged.id)
        return not staged.ended and (record is None or record.state is StagedState.STAGED)

    async def writable(self, live: LiveInode, *, empty: bool = False) -> StagedFile:
        """The staged file that may be written now: the present one, a reopened one, or a new copy."""
        if live.staged is not None and self.is_writable(live.staged):
            return live.staged
        async with self._tree.name_of(live) as key:
            return await self._writable_held(live, key, empty=empty)

    async def make_dirty(self, live: LiveInode) -> None:
        """Let the bytes go up that a clean file has, as if they had been written; the caller holds its name."""
        await self._writable_held(live, live.key, empty=False)
        live.taken_over = None  # what nobody wrote would not go up

    async def _writable_held(self, live: LiveInode, key: Key | None, *, empty: bool) -> StagedFile:
        async with live.lock:
            staged = live.staged
            if staged is not None and staged.ended:
                raise Changed(f"inode {live.inode}: is on its way to the origin, for want of room in staging")
            if staged is not None and key is not None and live.lent_inode == staged.inode:
                # The kernel has this very file: instead of a second one, nothing of it goes up for now.
                await self._writeback.reopen(staged.id)
                staged = live.staged
            if staged is not None and (key is None or await self._writeback.unseal(staged.id)):
                return staged  # without a name nothing of it will be sent
            if key is None:
                return await self._stage_unnamed(live, empty=empty)
            if live.staged is None:
                return await self._stage_clean(live, key, empty=empty)
            return await self._stage_again(live, key, live.staged, empty=empty)

    async def _stage_clean(self, live: LiveInode, key: Key, *, empty: bool) -> StagedFile:
        """The first write to a clean file: its bytes are copied here, unless they go anyway."""
        entry = await self._names.lookup(key)
        if entry.inode != live.inode:
            raise Changed(f"{show(key)}: replaced while it was open")
        version = self._tree.version_ref(key, entry)
        if live.lent_inode:
            staged = await self._stage_lent(live, key, entry, version)
        elif empty or not entry.size_bytes:
            staged = await self.stage(key, entry, ConditionKind.ALWAYS, in_place=True)
        else:
            staged = await self._stage_copy(key, entry, lambda copy: self.copy_version(version, copy))
        self._tree.place_staged(live.inode, key)
        live.staged = staged
        live.entry = self._tree.put_names(key, entry._replace(staged=staged.id))
        self._tree.changed(key, live.inode)
        return staged

    async def _stage_lent(self, live: LiveInode, key: Key, entry: Entry, version: VersionRef) -> StagedFile:
        """The kernel has the cached copy for those who read it: it becomes the staged file, and they see the write."""
        self.require_writable(key)
        staged = await self.lending.take_over(live, entry, version)
        try:
            record = self._record(key, entry, staged, ConditionKind.IF_MATCH, published=True, in_place=True)
            checksums = live.taken_over.checksums if live.taken_over is not None else b""
            record = record._replace(size_bytes=entry.size_bytes, base=base_of(version, checksums))
            await self._journal.note(put=[record], undo=True)
        except BaseException:
            self._staging.delete(staged.id)
            raise
        return staged

    async def write_in_place(self, live: LiveInode) -> None:
        """Make the file that the kernel has for an inode the one that is written. Changed where that cannot be."""
        lent_inode = live.lent_inode
        staged = await self.writable(live)
        if lent_inode and staged.inode != lent_inode:
            raise Changed(f"inode {live.inode}: the kernel has an older file open")

    async def _stage_unnamed(self, live: LiveInode, *, empty: bool) -> StagedFile:
        """The first write to a file that was deleted while it was clean. It lives as long as its handles, without a
        record."""
        staged = self._staging.create()
        try:
            if not empty:
                await self._copy_unnamed(live, staged)
        except BaseException:
            self._staging.delete(staged.id)
            raise
        live.staged = staged
        await self._orphans.keep(live.inode, staged.path, live.entry, staged=True)
        return staged

    async def _copy_unnamed(self, live: LiveInode, staged: StagedFile) -> None:
        # Through a handle: it has the only copy open.
        handle = next((handle for handle in live.handles if handle.version is not None), None)
        size_bytes = handle.version.size_bytes if handle is not None and handle.version is not None else 0
        await self._staging.reserve(staged.id, size_bytes)
        while handle is not None and staged.size_bytes < size_bytes:
            offset = staged.size_bytes
            data = await handle.read(offset, COPY_CHUNK_BYTES)
            if not data:
                raise Broken(f"a deleted file ends at {offset} of {size_bytes} bytes")
            staged.write(offset, data)

    async def _stage_again(self, live: LiveInode, key: Key, older: StagedFile, *, empty: bool) -> StagedFile:
        """The present staged file is on its way: the write goes into a copy, whose upload follows."""
        record = self._journal.get(older.id)
        entry = live_entry(live)._replace(etag=record.base_etag if record is not None else live.entry.etag)
        in_place = record is None or record.in_place  # else once the older one has arrived
        if empty:
            staged = await self.stage(key, entry, ConditionKind.ALWAYS, in_place=in_place)
        else:
            with older.held():  # its upload may end, and its file leave staging, before it is copied
                staged = await self._stage_copy(key, entry, lambda copy: self._clone(older, copy), in_place=in_place)
        # The older one may have arrived meanwhile, and the inode have counted as clean.
        self._tree.place_staged(live.inode, key)
        live.staged = staged
        live.entry = self._tree.put_names(key, live.entry._replace(staged=staged.id))
        return staged

    async def _clone(self, older: StagedFile, copy: StagedFile) -> None:
        await self._staging.reserve(copy.id, older.size_bytes)
        await self._staging.clone(older, copy)

    async def _stage_copy(
        self, key: Key, entry: Entry, fill: Callable[[StagedFile], Awaitable[None]], *, in_place: bool = True
    ) -> StagedFile:
        """A staged file with the bytes that ``fill`` brings. Published only when they are all there: after a crash in
        between, recovery discards it, and what it was made from stays."""
        staged = await self.stage(key, entry, ConditionKind.IF_MATCH, published=False, in_place=in_place)
        try:
            await fill(staged)
            record = self._journal.get(staged.id)
            assert record is not None
            # Read again: what it is based on may have been committed meanwhile.
            await self._journal.note(put=[record._replace(published=True, size_bytes=staged.size_bytes)])
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.unstage(staged)
            raise
        return staged

    async def stage(
        self,
        key: Key,
        entry: Entry,
        condition: ConditionKind,
        *,
        published: bool = True,
        in_place: bool = False,
    ) -> StagedFile:
        """Make a staged file and its journal record, which the first sync makes durable, or time does.
        ``in_place``: it is another state of the file that has the name, not another file."""
        self.require_writable(key)
        staged = self._staging.create()
        record = self._record(key, entry, staged, condition, published=published, in_place=in_place)
        try:
            await self._journal.note(put=[record], undo=True)
        except BaseException:
            self._staging.delete(staged.id)
            raise
        return staged

    async def stage_link(self, key: Key, entry: Entry) -> StagedFile:
        """The same for a symlink, with the target as its bytes."""
        self.require_writable(key)
        staged = self._staging.create()
        try:
            await self._staging.reserve(staged.id, len(entry.link_target))
            staged.write(0, entry.link_target)
            record = self._record(key, entry, staged, ConditionKind.IF_ABSENT, published=True, in_place=False)
            place = self._writeback.locate(self._tree.origin_id, entry.link_target)
            record = record._replace(link_target=entry.link_target, link_place=place)
            await self._journal.note(put=[record], undo=True)
        except BaseException:
            self._staging.delete(staged.id)
            raise
        return staged

    def stage_now(self, key: Key, entry: Entry, condition: ConditionKind) -> StagedFile | None:
        """``stage`` for a new file where nothing has to be waited for; else None, and nothing is left."""
        self.require_writable(key)
        staged = self._staging.create()
        if self._journal.note_now([self._record(key, entry, staged, condition, published=True, in_place=False)]):
            return staged
        self._staging.delete(staged.id)
        return None

    def _record(
        self,
        key: Key,
        entry: Entry,
        staged: StagedFile,
        condition: ConditionKind,
        *,
        published: bool,
        in_place: bool,
    ) -> StagedRecord:
        return StagedRecord(
            id=staged.id,
            inode=entry.inode,
            origin=self._tree.origin_id,
            source=self._tree.source,
            key=key,
            state=StagedState.STAGED,
            base_etag=entry.etag,
            condition=condition,
            published=published,
            attributes=attributes_of(entry),
            file_inode=staged.inode,
            created_ns=now_ns(),
            profile=self._profile.name,
            in_place=in_place,
        )

    def unstage_now(self, staged: StagedFile) -> None:
        """Take back a new file that did not come to have a name (the catalog's disk is full): nobody could close it."""
        self._journal.put_later(drop=[staged.id])
        self._staging.delete(staged.id)

    async def unstage(self, staged: StagedFile) -> None:
        try:
            await self._journal.drop(staged.id)
        finally:
            self._staging.delete(staged.id)

    @property
    def uploads(self) -> bool:
        """Whether what is written goes to the origin at all."""
        return self._profile.upload

    def require_writable(self, key: Key) -> None:
        if self._profile.read_only:
            raise ReadOnly(f"{show(key)}: the profile {self._profile.name} is read-only")

    async def copy_version(self, version: VersionRef, staged: StagedFile) -> None:
        """Fill a staged file with the bytes of a version, and note in its record what they are."""
        await self._copy_bytes(version, staged)
        record = self._journal.get(staged.id)
        if record is not None and (base := base_of(version, self._cache.checksums(version))) is not None:
            self._journal.put_later(put=[record._replace(base=base)])

    async def _copy_bytes(self, version: VersionRef, staged: StagedFile) -> None:
        await self._staging.reserve(staged.id, version.size_bytes)
        location = await self._cache.locate_verified(version)
        if location is not None:
            await self._staging.fill_from(staged, location.path)
            if staged.size_bytes == version.size_bytes:
                return
        for offset in range(0, version.size_bytes, COPY_CHUNK_BYTES):
            length = min(COPY_CHUNK_BYTES, version.size_bytes - offset)
            data = await self._cache.read(version, offset, length)
            if len(data) != length:
                raise Broken(f"{show(version.key)}: {len(data)} bytes at {offset} instead of {length}")
            staged.write(offset, data)


def base_of(version: VersionRef, checksums: bytes) -> BaseVersion | None:
    """What is noted of the version that a file is made from, None where its blocks are not known or too many."""
    if not 0 < len(checksums) <= BASE_CHECKSUMS_MAX_BYTES:
        return None
    return BaseVersion(version.etag, version.size_bytes, checksums)
