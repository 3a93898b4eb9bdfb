"""Written bytes on their way: staged at the first write, sealed at the last close, or sent at once when asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from tiercache.cache import VersionRef
from tiercache.config import Profile
from tiercache.engine.entries import attributes_of, now_ns, with_attributes
from tiercache.engine.live import LiveInode, live_entry
from tiercache.engine.names import Names, show
from tiercache.engine.parts import Parts
from tiercache.engine.tree import Tree
from tiercache.errors import Broken, Changed, InvalidArgument, ReadOnly
from tiercache.journal import ConditionKind, StagedRecord
from tiercache.model import Attributes, Entry, Key, StagedState, is_below
from tiercache.staging import StagedFile

COPY_CHUNK_BYTES = 4 * 1024 * 1024
"""How much of a clean version is read at a time when it is brought into staging for a change in place."""


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

    # -- bytes --------------------------------------------------------------------------------------

    async def write(self, live: LiveInode, offset: int, data: bytes | memoryview, *, append: bool) -> int:
        """Put ``data`` into the inode's staged file, which is made at the first write."""
        staged = await self._writable(live)
        if append:
            offset = staged.size_bytes
        growth_bytes = offset + len(data) - staged.size_bytes
        if growth_bytes > 0:
            await self._staging.reserve(staged.id, growth_bytes)
            if live.staged is not staged:  # sealed and sent while we waited for room
                return await self.write(live, offset, data, append=append)
        written = staged.write(offset, data)
        live.mtime_ns = now_ns()
        return written

    async def truncate(self, live: LiveInode, size_bytes: int) -> None:
        """Set the size; to 0 without fetching what was there."""
        if size_bytes < 0:
            raise InvalidArgument("a file cannot have a negative size")
        staged = await self._writable(live, empty=size_bytes == 0)
        growth_bytes = size_bytes - staged.size_bytes
        if growth_bytes > 0:
            await self._staging.reserve(staged.id, growth_bytes)
        staged.truncate(size_bytes)
        live.mtime_ns = now_ns()

    # -- staging ------------------------------------------------------------------------------------

    async def _writable(self, live: LiveInode, *, empty: bool = False) -> StagedFile:
        """The staged file that may be written now: the present one, a reopened one, or a new copy."""
        staged = live.staged
        if staged is not None:
            record = self._journal.get(staged.id)
            if record is None or record.state is StagedState.STAGED:
                return staged
        async with live.lock:
            staged = live.staged
            if staged is None:
                return await self._stage_clean(live, empty=empty)
            if await self._writeback.unseal(staged.id):
                return staged
            return await self._stage_again(live, staged, empty=empty)

    async def _stage_clean(self, live: LiveInode, *, empty: bool) -> StagedFile:
        """The first write to a clean file: its bytes are copied here, unless they go anyway."""
        key = live.key
        if key is None:
            raise Changed("the file was deleted before it was written")
        entry = await self._names.lookup(key)
        if entry.inode != live.inode:
            raise Changed(f"{show(key)}: replaced while it was open")
        version = self._tree.version_ref(key, entry)
        if empty or not entry.size_bytes:
            staged = await self.stage(key, entry, ConditionKind.ALWAYS)
        else:
            staged = await self._stage_copy(key, entry, lambda copy: self.copy_version(version, copy))
        self._tree.note_staged(key, +1)
        live.staged = staged
        live.entry = self._tree.put(key, entry._replace(staged=staged.id))
        self._tree.changed(key, live.inode)
        return staged

    async def _stage_again(self, live: LiveInode, older: StagedFile, *, empty: bool) -> StagedFile:
        """The present staged file is on its way: the write goes into a copy, whose upload follows."""
        key = live.key
        if key is None:
            return older  # unlinked: nothing of it will be sent
        record = self._journal.get(older.id)
        entry = live_entry(live)._replace(etag=record.base_etag if record is not None else live.entry.etag)
        if empty:
            staged = await self.stage(key, entry, ConditionKind.ALWAYS)
        else:
            staged = await self._stage_copy(key, entry, lambda copy: self._clone(older, copy))
        live.staged = staged
        live.entry = self._tree.put(key, live.entry._replace(staged=staged.id))
        return staged

    async def _clone(self, older: StagedFile, copy: StagedFile) -> None:
        await self._staging.reserve(copy.id, older.size_bytes)
        await self._staging.clone(older, copy)

    async def _stage_copy(self, key: Key, entry: Entry, fill: Callable[[StagedFile], Awaitable[None]]) -> StagedFile:
        """A staged file with the bytes that ``fill`` brings. Published only when they are all there: after a crash in
        between, recovery discards it, and what it was made from stays."""
        staged = await self.stage(key, entry, ConditionKind.IF_MATCH, published=False)
        try:
            await fill(staged)
            record = self._journal.get(staged.id)
            assert record is not None
            # Read again: what it is based on may have been committed meanwhile.
            await self._journal.put(record._replace(published=True, size_bytes=staged.size_bytes))
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.unstage(staged)
            raise
        return staged

    async def stage(
        self, key: Key, entry: Entry, condition: ConditionKind, *, published: bool = True, durable: bool = True
    ) -> StagedFile:
        """Make a staged file and its journal record. Without ``durable`` the record follows with the next commit, or
        by itself a moment later."""
        self.require_writable(key)
        staged = self._staging.create()
        record = StagedRecord(
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
        )
        if not durable:
            self._journal.put_later(put=(record,))
            return staged
        try:
            await self._journal.put(record)
        except BaseException:
            self._staging.delete(staged.id)
            raise
        return staged

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

    async def close_written(self, live: LiveInode, staged: StagedFile) -> None:
        """What close(2) and the close of a client's file promise under this profile."""
        self._tell_failure(staged)
        local = self._profile.sync_on_close and self._profile.ack != "memory"
        await self.seal(live, sync=local)
        if self._profile.sync_on_close and self._profile.ack == "origin":
            await self._writeback.wait(staged.id)

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

    async def seal(self, live: LiveInode, *, sync: bool = False) -> None:
        """Start the upload of what was written, unless the profile keeps it here or it has no name."""
        async with live.lock:
            staged = live.staged
            record = self._journal.get(staged.id) if staged is not None else None
            if staged is None or record is None or live.key is None:
                return
            if record.state is not StagedState.STAGED:
                if sync:
                    await self._writeback.sync(staged.id)
                return
            entry = live_entry(live)
            live.mtime_ns = 0
            live.entry = self._tree.put(live.key, entry)
            if self._profile.upload:
                await self._writeback.seal(staged.id, attributes=attributes_of(entry), sync=sync)
            elif sync:
                await self._writeback.sync(staged.id, attributes=attributes_of(entry))
            else:
                size_bytes = self._staging.measure(staged.id)
                await self._journal.put(record._replace(size_bytes=size_bytes, attributes=attributes_of(entry)))

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
        """Bring a dirty file to the origin and wait until it is there."""
        entry = await self._names.lookup(key)
        live = self._tree.live.get(entry.inode)
        while live is not None and live.staged is not None:
            staged = live.staged
            await self.seal(live)
            await self._writeback.wait(staged.id)

    async def write_through_below(self, directory: Key) -> None:
        """The same for every dirty file at or under ``directory``."""
        for live in self._tree.live:
            if live.staged is not None and live.key is not None and is_below(live.key, directory):
                await self.write_through(live.key)

    # -- attributes ---------------------------------------------------------------------------------

    async def set_staged_attributes(self, key: Key, entry: Entry, attributes: Attributes) -> Entry:
        """New attributes of a dirty file travel with its upload."""
        live = self._tree.live.get(entry.inode)
        assert live is not None
        assert live.staged is not None
        await self._writable(live)
        live.mtime_ns = 0
        live.entry = self._tree.put(key, with_attributes(live_entry(live), attributes))
        record = self._journal.get(live.staged.id)
        if record is not None:
            await self._journal.put(record._replace(attributes=attributes_of(live.entry)))
        if live.writers == 0:
            await self.seal(live)
        return live.entry

    async def rewrite_with_attributes(self, key: Key, attributes: Attributes) -> Entry:
        """The origin stores attributes only with an upload: stage the same bytes with the new ones."""
        entry = await self._names.lookup(key)
        live = self._tree.live.obtain(entry.inode, key, entry)
        try:
            await self._writable(live)
            return await self.set_staged_attributes(key, entry, attributes)
        finally:
            self._tree.live.release(live)

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
