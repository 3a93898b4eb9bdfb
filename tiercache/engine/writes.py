"""Written bytes on their way: staged at the first write, sealed at the last close, or sent at once when asked."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from tiercache.cache import VersionRef
from tiercache.config import Profile
from tiercache.engine.entries import attributes_of, now_ns, with_attributes
from tiercache.engine.lending import Lending
from tiercache.engine.live import LiveInode, live_entry
from tiercache.engine.names import Names, show
from tiercache.engine.parts import Parts
from tiercache.engine.tree import Tree
from tiercache.errors import Broken, Changed, InUse, InvalidArgument, ReadOnly, TooLarge, Unsupported
from tiercache.journal import ConditionKind, StagedRecord
from tiercache.model import Attributes, Entry, Key, StagedState, is_below
from tiercache.staging import StagedFile
from tiercache.units import format_size

COPY_CHUNK_BYTES = 4 * 1024 * 1024
"""How much of a clean version is read at a time when it is brought into staging for a change in place."""

COPY_RANGE_BYTES = 64 * 1024 * 1024
"""How much one copy_file_range(2) copies at most; programs ask again for the rest."""

FALLOC_KEEP_SIZE = 0x01
FALLOC_PUNCH_HOLE = 0x02
FALLOC_ZERO_RANGE = 0x10


class Writes:
    """Staging, sealing and waiting, for inodes of one tree under one profile's promises."""

    def __init__(self, tree: Tree, names: Names, profile: Profile, parts: Parts) -> None:
        self._tree = tree
        self._names = names
        self._profile = profile
        self._cache = parts.cache
        self._staging = parts.staging
        self._journal = parts.journal
        self._writeback = parts.writeback
        self._orphans = parts.orphans
        self.lending = Lending(tree, profile, parts.cache, parts.staging, parts.journal)

    # -- bytes --------------------------------------------------------------------------------------

    async def write(self, live: LiveInode, offset: int, data: bytes | memoryview, *, append: bool) -> int:
        """Put ``data`` into the inode's staged file, which is made at the first write."""
        written = self.write_now(live, offset, data, append=append)
        if written is not None:
            return written
        staged = await self._with_room(live, lambda size_bytes: (size_bytes if append else offset) + len(data))
        written = staged.write(staged.size_bytes if append else offset, data)
        live.mtime_ns = now_ns()
        return written

    def write_now(self, live: LiveInode, offset: int, data: bytes | memoryview, *, append: bool) -> int | None:
        """As ``write`` where nothing has to be waited for, else None and nothing is written."""
        staged = live.staged
        if staged is None or not self._is_writable(staged):
            return None
        present_bytes = staged.size_bytes
        start = present_bytes if append else offset
        growth_bytes = start + len(data) - present_bytes
        if growth_bytes > 0 and not self._staging.reserve_now(staged.id, growth_bytes):
            return None
        written = staged.write(start, data)
        live.mtime_ns = now_ns()
        return written

    async def truncate(self, live: LiveInode, size_bytes: int) -> None:
        """Set the size; to 0 without fetching what was there."""
        if size_bytes < 0:
            raise InvalidArgument("a file cannot have a negative size")
        if size_bytes > self._staging.capacity_bytes:
            raise TooLarge(f"{format_size(size_bytes)} are more than staging may ever hold; raise staging.capacity")
        staged = await self._with_room(live, lambda _: size_bytes, empty=size_bytes == 0)
        staged.truncate(size_bytes)
        live.mtime_ns = now_ns()

    async def allocate(self, live: LiveInode, mode: int, offset: int, length: int) -> None:
        """fallocate(2). Unsupported for what changes the place of bytes in a file."""
        if mode & ~(FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            raise Unsupported(f"fallocate with the flags {mode:#x}")
        end = 0 if mode & FALLOC_PUNCH_HOLE else offset + length
        if end > self._staging.capacity_bytes:
            raise TooLarge(f"{format_size(end)} are more than staging may ever hold; raise staging.capacity")
        staged = await self._with_room(live, lambda size_bytes: max(size_bytes, end))
        staged.allocate(mode, offset, length)
        live.mtime_ns = now_ns()

    async def copy_into(self, live: LiveInode, offset: int, source_fd: int, source: int, length: int) -> int:
        """Copy a range of an open local file; how much was copied."""
        length = min(length, max(0, os.fstat(source_fd).st_size - source), COPY_RANGE_BYTES)
        staged = await self._with_room(live, lambda size_bytes: max(size_bytes, offset + length))
        copied = await self._staging.copy_range(source_fd, staged, source=source, offset=offset, length=length)
        live.mtime_ns = now_ns()
        return copied

    async def _with_room(
        self, live: LiveInode, wanted_bytes: Callable[[int], int], *, empty: bool = False
    ) -> StagedFile:
        """The staged file that may be written now, with room to grow to ``wanted_bytes`` of its present size. While we
        wait for room others append to it, or it is sealed and sent: then everything is asked again."""
        while True:
            staged = await self._writable(live, empty=empty)
            growth_bytes = wanted_bytes(staged.size_bytes) - staged.size_bytes
            if growth_bytes <= 0:
                return staged
            await self._staging.reserve(staged.id, growth_bytes)
            grown = wanted_bytes(staged.size_bytes) - staged.size_bytes if live.staged is staged else 0
            if grown == growth_bytes and self._is_writable(staged):
                return staged
            self._staging.release(staged.id, growth_bytes)

    def _is_writable(self, staged: StagedFile) -> bool:
        """Not sealed; a file without a record is an unlinked one, of which nothing will be sent."""
        record = self._journal.get(staged.id)
        return record is None or record.state is StagedState.STAGED

    # -- staging ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _name_of(self, live: LiveInode) -> AsyncIterator[Key | None]:
        """The inode's name, which nobody changes until the block ends; None if it has none any more."""
        while (key := live.key) is not None:
            async with self._tree.hold(key):
                if live.key == key:
                    yield key
                    return
        yield None

    async def _writable(self, live: LiveInode, *, empty: bool = False) -> StagedFile:
        """The staged file that may be written now: the present one, a reopened one, or a new copy."""
        if live.staged is not None and self._is_writable(live.staged):
            return live.staged
        async with self._name_of(live) as key, live.lock:
            staged = live.staged
            if staged is not None and key is not None and live.lent_inode == staged.inode:
                # The kernel has this very file: instead of a second one, nothing of it goes up for now.
                await self._writeback.hold_back(staged.id)
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
            await self._journal.note(put=[record._replace(size_bytes=entry.size_bytes)], undo=True)
        except BaseException:
            self._staging.delete(staged.id)
            raise
        return staged

    async def write_in_place(self, live: LiveInode) -> None:
        """Make the file that the kernel has for an inode the one that is written. Changed where that cannot be."""
        lent_inode = live.lent_inode
        staged = await self._writable(live)
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

    async def unstage(self, staged: StagedFile) -> None:
        try:
            await self._journal.drop(staged.id)
        finally:
            self._staging.delete(staged.id)

    def require_writable(self, key: Key) -> None:
        if self._profile.read_only:
            raise ReadOnly(f"{show(key)}: the profile {self._profile.name} is read-only")

    async def copy_version(self, version: VersionRef, staged: StagedFile) -> None:
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

    # -- on the way ---------------------------------------------------------------------------------

    async def flush(self, live: LiveInode, *, last_writer: bool) -> None:
        """Seal what was written when no other handle may write more of it."""
        staged = live.staged
        if staged is not None and last_writer:
            await self.close_written(live, staged)

    def flushed_lent(self, live: LiveInode) -> bool:
        """Whether there is nothing to do, nor to tell, when a descriptor of a file that the kernel writes is closed."""
        if live.staged is None:
            return True
        syncs = self._profile.sync_on_close and self._profile.ack != "memory"
        return not syncs and self._writeback.error_of(live.staged.id) is None

    async def flush_lent(self, live: LiveInode) -> None:
        """A descriptor of a file that the kernel writes was closed: what close promises, without sealing."""
        staged = live.staged
        if staged is None:
            return
        self._tell_failure(staged)
        if self._profile.sync_on_close and self._profile.ack != "memory":
            await self._writeback.sync(staged.id, attributes=attributes_of(live_entry(live)))

    async def close_written(self, live: LiveInode, staged: StagedFile) -> None:
        """What close(2) and the close of a client's file promise under this profile."""
        async with self._name_of(live):
            await self.seal_closed(live, staged)
        await self.wait_closed(staged.id)

    async def seal_closed(self, live: LiveInode, staged: StagedFile) -> None:
        """The half of it that whoever holds the name does."""
        self._tell_failure(staged)
        await self.seal_held(live, sync=self._profile.sync_on_close and self._profile.ack != "memory")

    async def wait_closed(self, staged_id: int) -> None:
        """The half that takes as long as the upload."""
        if self._profile.sync_on_close and self._profile.ack == "origin":
            await self._writeback.wait(staged_id)

    async def fsync(self, live: LiveInode) -> None:
        """Data, then the journal; with ``ack = origin`` also the upload."""
        staged = live.staged
        if staged is None:
            return
        self._tell_failure(staged)
        await self._writeback.sync(staged.id, attributes=attributes_of(live_entry(live)))
        if self._profile.ack == "origin":
            await self.seal(live)
            await self._writeback.wait(staged.id)

    async def seal(self, live: LiveInode) -> None:
        """Start the upload of what was written, unless the profile keeps it here or it has no name. Waits while the
        name is being changed: nothing may go up under one that is on its way out."""
        async with self._name_of(live):
            await self.seal_held(live)

    def seal_now(self, live: LiveInode) -> bool:
        """``seal`` where nothing has to be waited for; else False, and nothing has changed."""
        key, staged = live.key, live.staged
        if key is not None and (live.lock.locked() or not self._tree.are_free(key)):
            return False
        record = self._journal.get(staged.id) if staged is not None else None
        if key is None or record is None or record.state is not StagedState.STAGED or live.lent_for_writing:
            return True  # there is nothing to do: see ``seal_held``
        entry = live_entry(live)
        if live.taken_over is not None:
            return False
        if self._profile.upload:
            done = self._writeback.seal_now(record.id, attributes_of(entry))
        else:
            done = self._journal.note_now([self._as_written(record, entry)])
        if done:
            live.mtime_ns = 0
            live.entry = self._tree.put_names(key, entry)
        return done

    async def seal_held(self, live: LiveInode, *, sync: bool = False) -> None:
        """The same for a caller that holds the name."""
        async with live.lock:
            staged = live.staged
            record = self._journal.get(staged.id) if staged is not None else None
            if staged is None or record is None or live.key is None:
                return
            if record.state is not StagedState.STAGED:
                if sync:
                    await self._writeback.sync(staged.id)
                return
            if live.lent_for_writing:
                return  # the kernel may write to it at any time: it is sealed when the last of these is closed
            if await self._given_back(live, live.key, staged):
                return
            entry = live_entry(live)
            live.mtime_ns = 0
            live.entry = self._tree.put_names(live.key, entry)
            if self._profile.upload:
                await self._writeback.seal(staged.id, attributes=attributes_of(entry), sync=sync)
            elif sync:
                await self._writeback.sync(staged.id, attributes=attributes_of(entry))
            else:
                await self._journal.note(put=[self._as_written(record, entry)])

    def _as_written(self, record: StagedRecord, entry: Entry) -> StagedRecord:
        """The record of a file that stays here, as its last writer left it."""
        return record._replace(size_bytes=self._staging.measure(record.id), attributes=attributes_of(entry))

    async def _given_back(self, live: LiveInode, key: Key, staged: StagedFile) -> bool:
        """A file that was opened for writing while others read it, and was not written, is clean again."""
        taken = live.taken_over
        if taken is None or attributes_of(live_entry(live)) != attributes_of(taken.entry):
            return False
        entry = self.lending.unwritten(live, staged)
        if entry is None:
            return False
        before = live.entry
        self._set_staged(live, key, None, entry)
        try:
            await self.lending.give_back(live, staged)
        except BaseException:
            if self._journal.get(staged.id) is not None:
                self._set_staged(live, key, staged, before)
            raise
        return True

    def _set_staged(self, live: LiveInode, key: Key, staged: StagedFile | None, entry: Entry) -> None:
        """The newest bytes of an inode are those of ``staged``; of its clean version where that is None."""
        live.staged = staged
        self._tree.place_staged(live.inode, key if staged is not None else None)
        live.entry = self._tree.put_names(key, entry)

    def _tell_failure(self, staged: StagedFile) -> None:
        error = self._writeback.error_of(staged.id)
        if error is not None:
            raise error

    def rest(self, staged: StagedFile) -> None:
        """Nobody writes it for now: thousands of such files must not hold a descriptor each."""
        self._staging.rest(staged.id)

    def drop_staged(self, live: LiveInode) -> None:
        """An unlinked inode lost its last handle: its bytes go."""
        if live.staged is not None:
            self._staging.delete(live.staged.id)
            live.staged = None

    async def write_through(self, key: Key) -> None:
        """Bring a dirty file, whose name the caller holds, to the origin and wait until it is there."""
        entry = await self._names.lookup(key)
        live = self._tree.live.get(entry.inode)
        while live is not None and live.staged is not None:
            staged = live.staged
            if live.lent_for_writing:
                raise InUse(f"{show(key)}: is being written through the kernel; close it first")
            await self.seal_held(live)
            await self._writeback.wait(staged.id)

    async def leave_with(self, other: Key, key: Key, entry: Entry) -> bool:
        """The staged bytes of a hard-linked file go to the origin under ``other``, another of its names, instead of
        ``key``. False when they cannot, or have arrived. The caller holds both names."""
        live, record = self._tree.live.get(entry.inode), self._journal.get(entry.staged)
        if live is None or record is None or not record.in_place:
            return False
        if record.key != key:
            return True
        if not await self._writeback.relocate(record.id, other):
            return False
        live.key = other
        self._tree.place_staged(live.inode, other)
        if not live.writers:
            await self.seal_held(live)
        return True

    async def write_through_below(self, directory: Key) -> None:
        """The same for every dirty file at or under ``directory``."""
        for live in self._tree.live:
            if live.staged is not None and live.key is not None and is_below(live.key, directory):
                await self.write_through(live.key)

    # -- attributes ---------------------------------------------------------------------------------

    async def set_attributes(self, key: Key, entry: Entry, attributes: Attributes) -> Entry:
        """New attributes travel with an upload, of a clean file too where the origin stores them in no other way."""
        with self._tree.live.using(entry.inode, key, entry) as live:
            staged = await self._writable(live)
            live.mtime_ns = 0
            changed = live.entry = with_attributes(live_entry(live), attributes)
            record = self._journal.get(staged.id)
            if live.key is not None:
                self._tree.put_names(live.key, changed)
            if record is not None:
                await self._journal.note(put=[record._replace(attributes=attributes_of(changed))])
            if live.writers == 0:
                await self.seal(live)
            return live.entry

    # -- how far it has come ----------------------------------------------------------------------

    def state(self, entry: Entry) -> str:
        """``clean``, or the state of the staged file: staged, sealed, uploading, conflict, lost."""
        record = self._journal.get(entry.staged) if entry.staged else None
        return str(record.state) if record is not None else "clean"

    def durable(self, entry: Entry) -> str:
        """What the newest bytes survive for certain: ``memory`` (the engine's crash only), ``local`` (power loss) or
        ``origin`` (loss of the node)."""
        record = self._journal.get(entry.staged) if entry.staged else None
        if record is None:
            return "origin"
        return "local" if record.synced_bytes >= entry.size_bytes and not record.suspect else "memory"
