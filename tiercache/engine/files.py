"""Open files of mounts: staging at the first write, sealing at the last close, and clean again after the commit."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from tiercache.cache import Cache, VersionRef
from tiercache.config import Profile
from tiercache.engine.entries import attributes_of, entry_of, now_ns
from tiercache.engine.handle import Handle
from tiercache.engine.live import LiveInode
from tiercache.engine.names import Names, show
from tiercache.engine.tree import Tree
from tiercache.errors import (
    Absent,
    Broken,
    Changed,
    Exists,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    ReadOnly,
    TierCacheError,
    UploadFailed,
)
from tiercache.journal import ConditionKind, Journal, StagedRecord
from tiercache.model import Attributes, Entry, Key, Kind, ObjectStat, StagedState, VersionId, is_below, parent_of
from tiercache.readahead import ReadAhead
from tiercache.staging import StagedFile, Staging
from tiercache.writeback import WriteBack

COPY_CHUNK_BYTES = 4 * 1024 * 1024
"""How much of a clean version is read at a time when it is brought into staging for a change in place."""


@dataclass(frozen=True)
class WritePath:
    """The services that written bytes pass through; one set per engine."""

    cache: Cache
    staging: Staging
    journal: Journal
    writeback: WriteBack
    readahead: ReadAhead


class Files:
    """Open, create, read and write by inode, with the promises of one profile."""

    def __init__(self, tree: Tree, names: Names, profile: Profile, path: WritePath) -> None:
        self._tree = tree
        self._names = names
        self._profile = profile
        self._cache = path.cache
        self._staging = path.staging
        self._journal = path.journal
        self._writeback = path.writeback
        self._readahead = path.readahead

    # -- opening ----------------------------------------------------------------------------------

    async def open(self, key: Key, *, write: bool, truncate: bool, append: bool) -> Handle:
        """Open the file that ``key`` names now; ``truncate`` empties it."""
        entry = await self._names.lookup(key)
        if entry.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(key)}: is a directory")
        live = self._tree.live.obtain(entry.inode, key, entry)
        handle = self._handle(live, entry, writable=write, append=append)
        try:
            if truncate:
                await self.truncate(live, 0)
        except BaseException:
            await handle.close()
            raise
        return handle

    def open_unlinked(self, live: LiveInode, *, write: bool, append: bool) -> Handle:
        """A further handle of an inode that lost its name while open (/proc/PID/fd)."""
        return self._handle(live, live.entry, writable=write, append=append)

    def _handle(self, live: LiveInode, entry: Entry, *, writable: bool, append: bool) -> Handle:
        version = self._tree.version_ref(live.key or b"", entry) if entry.version else None
        handle = Handle(self, live, version, writable=writable, append=append)
        live.handles.add(handle)
        if live.staged is None:
            handle.attach()
        return handle

    async def create(
        self, key: Key, attributes: Attributes, *, exclusive: bool, truncate: bool, append: bool
    ) -> tuple[Entry, Handle]:
        """Open for writing, and make the file if there is none."""
        found = await self._names.find(key)
        if found is not None:
            if exclusive:
                raise Exists(f"{show(key)}: exists already")
            handle = await self.open(key, write=True, truncate=truncate, append=append)
            live = self._tree.live.get(handle.inode)
            assert live is not None
            return self.live_entry(live), handle
        parent = await self._names.lookup(parent_of(key))
        if parent.kind is not Kind.DIRECTORY:
            raise NotDirectory(f"{show(parent_of(key))}: not a directory")
        condition = ConditionKind.IF_ABSENT if exclusive else ConditionKind.ALWAYS
        live = await self._make(key, attributes, condition)
        handle = self._handle(live, live.entry, writable=True, append=append)
        return live.entry, handle

    async def _make(self, key: Key, attributes: Attributes, condition: ConditionKind) -> LiveInode:
        """A new staged file under a name that is free."""
        tree = self._tree
        at_ns = now_ns()
        attributes = attributes._replace(mtime_ns=at_ns, atime_ns=at_ns, ctime_ns=at_ns)
        entry = _staged_entry(attributes, tree.catalog.new_inode(), staged=0, size_bytes=0)
        staged = await self._stage(key, entry, condition)
        return self.enter_staged(key, entry._replace(staged=staged.id), staged)

    def enter_staged(self, key: Key, entry: Entry, staged: StagedFile) -> LiveInode:
        """A staged file is the newest state of ``key`` from now on."""
        tree = self._tree
        tree.put(key, entry)
        tree.note_staged(key, +1)
        live = tree.live.obtain(entry.inode, key, entry)
        live.staged = staged
        tree.touch_directory(parent_of(key))
        tree.changed(key, entry.inode)
        return live

    # -- reading ----------------------------------------------------------------------------------

    def open_complete(self, version: VersionRef) -> int | None:
        """A descriptor of the complete, checked local copy of ``version``, or None."""
        location = self._cache.locate(version)
        if location is None:
            return None
        with suppress(OSError):
            fd = os.open(location.path, os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(fd).st_ino == location.inode:
                return fd
            os.close(fd)
        return None

    async def read_version(self, handle: Handle, version: VersionRef, offset: int, length: int) -> bytes | memoryview:
        """Read through the cache, with read-ahead for this handle."""
        if handle.window is None:
            handle.window = self._readahead.window()
        self._readahead.observe(handle.window, version, offset, length)
        try:
            return await self._cache.read(version, offset, length)
        except (Changed, Absent) as error:
            if handle.key is not None:
                self._expire(handle.key)
            raise Changed(f"{show(version.key)}: changed at the origin while it was open") from error

    def _expire(self, key: Key) -> None:
        """The origin contradicted the catalog: ask again at the next lookup."""
        entry = self._tree.entry(key)
        if entry is not None and not entry.staged:
            self._tree.put(key, entry._replace(checked_ns=0))
            self._tree.catalog.forget_listing(self._tree.origin_id, parent_of(key))

    async def keep_readable(self, live: LiveInode) -> None:
        """The inode's object is about to go: bring its bytes here, so that open handles go on reading them."""
        if live.staged is not None:
            return
        for handle in list(live.handles):
            if handle.version is None or handle.attach():
                continue
            # A version that cannot be kept or fetched leaves the handle with ESTALE, which is what NFS does too.
            with suppress(TierCacheError):
                await self._cache.ensure(handle.version, 0, handle.version.size_bytes)
            handle.attach()

    def live_entry(self, live: LiveInode) -> Entry:
        """The entry with the size and times of the bytes being written."""
        entry = live.entry
        if live.staged is not None:
            entry = entry._replace(size_bytes=live.staged.size_bytes, staged=live.staged.id)
        if live.mtime_ns:
            entry = entry._replace(mtime_ns=live.mtime_ns, ctime_ns=max(live.mtime_ns, entry.ctime_ns))
        return entry

    # -- writing ----------------------------------------------------------------------------------

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
        keep = not empty and entry.size_bytes > 0
        staged = await self._stage(key, entry, ConditionKind.IF_MATCH if keep else ConditionKind.ALWAYS)
        try:
            if keep:
                await self._copy_version(self._tree.version_ref(key, entry), staged)
        except BaseException:
            await self._unstage(staged)
            raise
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
        base_etag = record.base_etag if record is not None else live.entry.etag
        entry = self.live_entry(live)._replace(etag=base_etag)
        staged = await self._stage(key, entry, ConditionKind.ALWAYS if empty else ConditionKind.IF_MATCH)
        try:
            if not empty:
                await self._staging.clone(older, staged)
        except BaseException:
            await self._unstage(staged)
            raise
        live.staged = staged
        live.entry = self._tree.put(key, live.entry._replace(staged=staged.id))
        return staged

    async def _stage(self, key: Key, entry: Entry, condition: ConditionKind, *, published: bool = True) -> StagedFile:
        """Make a staged file and its journal record."""
        self._require_writable(key)
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
        try:
            await self._journal.put(record)
        except BaseException:
            self._staging.delete(staged.id)
            raise
        return staged

    async def _unstage(self, staged: StagedFile) -> None:
        await self._journal.drop(staged.id)
        self._staging.delete(staged.id)

    def _require_writable(self, key: Key) -> None:
        if self._profile.read_only:
            raise ReadOnly(f"{show(key)}: the profile {self._profile.name} is read-only")

    async def _copy_version(self, version: VersionRef, staged: StagedFile) -> None:
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

    # -- closing ----------------------------------------------------------------------------------

    async def flush(self, live: LiveInode, *, last_writer: bool) -> None:
        """Seal what was written when no other handle may write more of it."""
        staged = live.staged
        if staged is None or not last_writer:
            return
        await self.seal(live)
        await self._await_ack(staged, wanted=self._profile.sync_on_close)

    async def fsync(self, live: LiveInode) -> None:
        """Data, then the journal; with ``ack = origin`` also the upload."""
        staged = live.staged
        if staged is None:
            return
        self._tell_failure(staged)
        async with live.lock:
            await self._record_progress(live, staged)
        await self._staging.sync(staged)
        if self._profile.ack == "origin":
            await self.seal(live)
            await self._await_ack(staged, wanted=True)

    async def seal(self, live: LiveInode) -> None:
        """Start the upload of what was written, unless the profile keeps it here or it has no name."""
        async with live.lock:
            staged = live.staged
            if staged is None or live.key is None:
                return
            record = await self._record_progress(live, staged)
            if record is None or record.state is not StagedState.STAGED:
                return
            live.entry = self._tree.put(live.key, self.live_entry(live))
            live.mtime_ns = 0
            if self._profile.upload:
                await self._writeback.seal(staged.id)

    async def _record_progress(self, live: LiveInode, staged: StagedFile) -> StagedRecord | None:
        """Bring size and times in the journal up to what was written."""
        record = self._journal.get(staged.id)
        if record is None or record.state is not StagedState.STAGED:
            return record
        attributes = attributes_of(self.live_entry(live))
        updated = record._replace(size_bytes=staged.size_bytes, attributes=attributes)
        if updated != record:
            await self._journal.put(updated)
        return updated

    async def _await_ack(self, staged: StagedFile, *, wanted: bool) -> None:
        if not wanted:
            self._tell_failure(staged)
        elif self._profile.ack == "origin":
            await self._writeback.wait(staged.id)
        elif self._profile.ack == "local":
            await self._staging.sync(staged)

    def _tell_failure(self, staged: StagedFile) -> None:
        record = self._journal.get(staged.id)
        if record is not None and record.last_error:
            raise UploadFailed(f"{show(record.key)}: not yet at the origin ({record.last_error}); its bytes are staged")

    async def closed(self, live: LiveInode, handle: Handle) -> None:
        """A handle is gone: seal after the last writer, forget the inode after the last user."""
        if handle.window is not None:
            self._readahead.forget(handle.window)
        if handle.writable and live.staged is not None and live.writers == 0:
            await self.seal(live)
        if live.key is None and not live.handles:
            self.drop_staged(live)
        self._tree.live.release(live)

    def drop_staged(self, live: LiveInode) -> None:
        """An unlinked inode lost its last handle: its bytes go."""
        if live.staged is not None:
            self._staging.delete(live.staged.id)
            live.staged = None

    # -- after the origin has it ------------------------------------------------------------------

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

    def rebind(self, old_key: Key, old: Entry, new_key: Key, new: Entry) -> None:
        """The same bytes are another version now (another name or etag): move the cached copy, tell the handles."""
        if not old.version or not new.version or old.size_bytes != new.size_bytes:
            return
        version = self._tree.version_ref(new_key, new)
        if old.version != new.version:
            self._cache.rebind(old.version, version)
        live = self._tree.live.get(old.inode)
        for handle in live.handles if live is not None else ():
            if handle.version is not None and handle.version.id == old.version:
                handle.use_version(version)

    # -- attributes and copies of dirty files -----------------------------------------------------

    async def set_staged_attributes(self, key: Key, entry: Entry, attributes: Attributes) -> Entry:
        """New attributes of a dirty file travel with its upload."""
        live = self._tree.live.get(entry.inode)
        assert live is not None
        assert live.staged is not None
        await self._writable(live)
        live.mtime_ns = 0
        live.entry = self._tree.put(key, _with_attributes(self.live_entry(live), attributes))
        async with live.lock:
            await self._record_progress(live, live.staged)
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

    async def copy_staged(self, source: Key, target: Key) -> Entry:
        """Copy a dirty file: the copy is a dirty file too."""
        entry = await self._names.lookup(source)
        live = self._tree.live.get(entry.inode)
        assert live is not None
        assert live.staged is not None
        made = _staged_entry(attributes_of(self.live_entry(live)), self._tree.catalog.new_inode(), staged=0, size_bytes=0)
        staged = await self._stage(target, made, ConditionKind.ALWAYS, published=False)
        try:
            await self._staging.reserve(staged.id, live.staged.size_bytes)
            await self._staging.clone(live.staged, staged)
        except BaseException:
            await self._unstage(staged)
            raise
        return await self.publish(staged.id)

    # -- files that a client writes ---------------------------------------------------------------

    async def stage(self, key: Key, *, exclusive: bool, keep: bool) -> StagedFile:
        """An invisible staged file for a client to write; ``keep`` starts it with the present bytes."""
        self._require_writable(key)
        found = await self._names.find(key)
        if found is not None and found.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(key)}: is a directory")
        if found is not None and exclusive:
            raise Exists(f"{show(key)}: exists already")
        at_ns = now_ns()
        fresh = Attributes(0o644, os.getuid(), os.getgid(), at_ns, at_ns, at_ns)
        attributes = attributes_of(found)._replace(mtime_ns=at_ns, ctime_ns=at_ns) if found else fresh
        condition = ConditionKind.IF_ABSENT if exclusive else ConditionKind.ALWAYS
        if keep and found is not None:
            condition = ConditionKind.IF_MATCH
        entry = _staged_entry(attributes, self._tree.catalog.new_inode(), staged=0, size_bytes=0)
        staged = await self._stage(key, entry._replace(etag=found.etag if found else ""), condition, published=False)
        try:
            if keep and found is not None:
                await self._copy_newest(key, found, staged)
        except BaseException:
            await self._unstage(staged)
            raise
        return staged

    async def _copy_newest(self, key: Key, entry: Entry, staged: StagedFile) -> None:
        live = self._tree.live.get(entry.inode)
        if live is not None and live.staged is not None:
            await self._staging.reserve(staged.id, live.staged.size_bytes)
            await self._staging.clone(live.staged, staged)
        elif entry.size_bytes:
            await self._copy_version(self._tree.version_ref(key, entry), staged)

    async def publish(self, staged_id: int) -> Entry:
        """The client closed its file: it replaces the name, at once here and later at the origin."""
        record = self._journal.get(staged_id)
        if record is None:
            raise Absent(f"there is no staged file {staged_id}")
        staged = self._staging.open(staged_id)
        key = record.key
        replaced = await self._names.find(key)
        if replaced is not None and record.condition is ConditionKind.IF_ABSENT:
            raise Exists(f"{show(key)}: exists already")
        at_ns = now_ns()
        attributes = record.attributes._replace(mtime_ns=at_ns, ctime_ns=at_ns)
        record = record._replace(published=True, size_bytes=staged.size_bytes, attributes=attributes)
        if replaced is not None:
            record = await self._supersede(record, key, replaced)
        await self._journal.put(record)
        entry = _staged_entry(attributes, record.inode, staged=staged_id, size_bytes=staged.size_bytes)
        live = self.enter_staged(key, entry._replace(etag=record.base_etag), staged)
        await self.seal(live)
        await self._await_ack(staged, wanted=self._profile.sync_on_close)
        return self._tree.entry(key) or entry

    async def _supersede(self, record: StagedRecord, key: Key, replaced: Entry) -> StagedRecord:
        """The name's present file becomes an unlinked inode; an upload of it that has not begun never will."""
        if replaced.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{show(key)}: is a directory")
        live = self._tree.live.get(replaced.inode)
        if live is not None:
            await self.keep_readable(live)
        if replaced.staged:
            await self._writeback.cancel(replaced.staged)
            self._tree.note_staged(key, -1)
        if live is not None:
            live.key = None
            if not live.handles:
                self.drop_staged(live)
            self._tree.live.release(live)
        if record.condition is ConditionKind.IF_MATCH and replaced.staged:
            # Based on staged bytes that never get an etag of their own: what they were based on is what counts.
            return record._replace(base_etag=replaced.etag)
        return record

    async def sync_staged(self, staged_id: int) -> None:
        """The client's fsync: size and record are durable."""
        record = self._journal.get(staged_id)
        if record is None:
            raise Absent(f"there is no staged file {staged_id}")
        staged = self._staging.open(staged_id)
        await self._journal.put(record._replace(size_bytes=staged.size_bytes))
        await self._staging.sync(staged)

    async def discard(self, staged_id: int) -> None:
        """The client gave up or died: as if it had never opened the file."""
        record = self._journal.get(staged_id)
        if record is not None and not record.published:
            await self._journal.drop(staged_id)
            self._staging.delete(staged_id)


def commit(tree: Tree, record: StagedRecord, stat: ObjectStat) -> Entry | None:
    """The upload of ``record`` is at the origin: the name is clean, unless something newer is staged under it.
    Called by the write-back, whatever profile wrote the file."""
    live = tree.live.get(record.inode)
    old = tree.entry(record.key)
    if old is None or old.staged != record.id:
        return None
    entry = entry_of(stat, origin=tree.origin_id, inode=old.inode, old=None, at_ns=now_ns())
    if stat.attributes is None:
        entry = _with_attributes(entry, attributes_of(old))
    tree.put(record.key, entry)
    tree.note_staged(record.key, -1)
    tree.generations[parent_of(record.key)] += 1
    if live is not None and live.staged is not None and live.staged.id == record.id:
        live.staged = None
        live.entry = entry
        version = tree.version_ref(record.key, entry)
        for handle in live.handles:
            handle.use_version(version)
        tree.live.release(live)
    return entry


def _staged_entry(attributes: Attributes, inode: int, *, staged: int, size_bytes: int) -> Entry:
    return _with_attributes(Entry(Kind.FILE, inode, size_bytes, staged=staged, checked_ns=now_ns()), attributes)


def _with_attributes(entry: Entry, attributes: Attributes) -> Entry:
    return entry._replace(
        mode=attributes.mode & 0o7777,
        uid=attributes.uid,
        gid=attributes.gid,
        mtime_ns=attributes.mtime_ns,
        atime_ns=attributes.atime_ns,
        ctime_ns=attributes.ctime_ns,
        xattrs=attributes.xattrs,
        attributes_known=True,
        version=entry.version or VersionId(b""),
    )
