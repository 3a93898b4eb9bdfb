"""Open files of mounts: what a handle reads, and what becomes of it when the name changes under it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tiercache.cache import VersionRef
from tiercache.engine.entries import now_ns, staged_entry
from tiercache.engine.handle import Handle
from tiercache.engine.live import LiveInode, live_entry
from tiercache.engine.names import Names, require_bytes, show
from tiercache.engine.parts import Parts
from tiercache.engine.promises import Xattrs, inherited
from tiercache.engine.tree import Tree
from tiercache.engine.writes import Writes
from tiercache.errors import Absent, Changed, Exists, NotDirectory, TierCacheError
from tiercache.journal import ConditionKind
from tiercache.model import Attributes, Entry, Key, Kind, parent_of
from tiercache.staging import StagedFile


class Files:
    """Opens, creates and reads by inode."""

    def __init__(self, tree: Tree, names: Names, writes: Writes, parts: Parts) -> None:
        self._tree = tree
        self._names = names
        self._writes = writes
        self._cache = parts.cache
        self._readahead = parts.readahead
        self._staging = parts.staging
        self._orphans = parts.orphans
        self._watch = parts.watch
        self._traced = parts.traced

    # -- opening ------------------------------------------------------------------------------------

    async def open(self, key: Key, *, write: bool, truncate: bool, append: bool, bring: bool = False) -> Handle:
        """Open the file that ``key`` names now; ``truncate`` empties it, and ``bring`` fetches a small one first."""
        entry = await self._names.lookup(key)
        require_bytes(key, entry)
        live = self._tree.live.obtain(entry.inode, key, entry)
        handle = self._handle(live, entry, writable=write, append=append)
        if bring and entry.version and not entry.staged:
            self._traced(entry.version, entry.size_bytes)
        try:
            if truncate:
                await self._writes.truncate(live, 0)
            elif bring and not handle.is_here():
                self._watch.opened(key, missed=True)
                await self._bring(handle)
            else:
                here = handle.attach() or live.staged is not None
                if bring:
                    self._watch.opened(key, missed=not here)
        except BaseException:
            await handle.close()
            raise
        return handle

    def open_known(self, key: Key, entry: Entry) -> Handle:
        """Open for reading the file that ``entry`` tells of, which is what ``key`` names now. Never waits, and leaves
        it to the caller to ``attach`` the handle."""
        return self._handle(self._tree.live.obtain(entry.inode, key, entry), entry, writable=False, append=False)

    def open_unlinked(self, live: LiveInode, *, write: bool, append: bool) -> Handle:
        """A further handle of an inode that lost its name while open (/proc/PID/fd): it reads what the others read."""
        if live.replaced:
            raise Changed(f"inode {live.inode}: its file was replaced at the origin")
        donor = next((handle for handle in live.handles if handle.version is not None), None)
        version = donor.version if donor is not None else None
        handle = Handle(self, self._writes, live, version, writable=write, append=append)
        if donor is not None:
            handle.share(donor)
        live.handles.add(handle)
        return handle

    def reopen(self, inode: int, *, writable: bool, append: bool, version: VersionRef) -> Handle:
        """A handle that an earlier engine had, by inode: of the file that has this inode now, or that lost its name
        but was kept. ``version`` is what it read when it was opened, for a file that others replaced. Where nothing is
        left of it, reading and writing raise Changed (ESTALE)."""
        live = self._tree.live.get(inode) or self._live_again(inode) or self._nameless(inode)
        if live is None:
            live = self._tree.live.add_nameless(inode, Entry(Kind.FILE, inode, version.size_bytes))
            live.replaced = True
        orphan = self._orphans.find(inode)
        if live.key is not None:
            handle = self._handle(live, live.entry, writable=writable, append=append)
            if orphan is not None and not orphan.staged and live.staged is None:
                # It was about to lose its name, and the origin may have lost its bytes already.
                handle.read_file(orphan.path)
            return handle
        if orphan is not None:
            version = version._replace(size_bytes=orphan.entry.size_bytes, id=orphan.entry.version)
        handle = Handle(self, self._writes, live, version, writable=writable, append=append)
        if orphan is None:
            handle.lost = not version.id
        elif not orphan.staged:
            handle.read_file(orphan.path)
        live.handles.add(handle)
        return handle

    def _live_again(self, inode: int) -> LiveInode | None:
        """The file has a name."""
        tree = self._tree
        for key in tree.names_of(inode):
            entry = tree.entry(key)
            if entry is not None and entry.inode == inode and (entry.version or entry.staged):
                return tree.live.obtain(inode, key, entry)
        return None

    def _nameless(self, inode: int) -> LiveInode | None:
        """The file lost its name, and its bytes were kept."""
        orphan = self._orphans.find(inode)
        if orphan is None:
            return None
        live = self._tree.live.add_nameless(inode, orphan.entry)
        if orphan.staged:
            live.staged = self._staging.adopt(orphan.path)
        return live

    def _handle(self, live: LiveInode, entry: Entry, *, writable: bool, append: bool) -> Handle:
        version = self._tree.version_ref(live.key or b"", entry) if entry.version else None
        handle = Handle(self, self._writes, live, version, writable=writable, append=append)
        live.handles.add(handle)
        return handle

    async def create(
        self, key: Key, attributes: Attributes, *, exclusive: bool, truncate: bool, append: bool
    ) -> tuple[Entry, Handle]:
        """Open for writing, and make the file if there is none."""
        async with self._tree.hold(key):
            if await self._names.find(key) is None:
                parent = await self._names.lookup(parent_of(key))
                if parent.kind is not Kind.DIRECTORY:
                    raise NotDirectory(f"{show(parent_of(key))}: not a directory")
                attributes = attributes._replace(xattrs=inherited(parent))
                live = await self._make(key, attributes, _condition(exclusive=exclusive))
                return live.entry, self._handle(live, live.entry, writable=True, append=append)
        if exclusive:
            raise Exists(f"{show(key)}: exists already")
        handle = await self.open(key, write=True, truncate=truncate, append=append)
        return handle.entry, handle

    async def _make(self, key: Key, attributes: Attributes, condition: ConditionKind) -> LiveInode:
        """A new staged file under a name that is free."""
        entry = self._new_entry(attributes)
        staged = await self._writes.stages.stage(key, entry, condition)
        try:
            return self.enter_staged(key, entry._replace(staged=staged.id), staged)
        except BaseException:
            self._writes.stages.unstage_now(staged)
            raise

    async def make_link(self, key: Key, target: bytes, attributes: Attributes) -> Entry:
        """A symlink that goes up when what it stands for has, under a free name that the caller holds."""
        made = self._new_entry(attributes)._replace(kind=Kind.SYMLINK, size_bytes=len(target), link_target=target)
        staged = await self._writes.stages.stage_link(key, made)
        try:
            live = self.enter_staged(key, made._replace(staged=staged.id), staged)
        except BaseException:
            self._writes.stages.unstage_now(staged)
            raise
        await self._writes.closes.seal_held(live, sync=True)  # no power cut is to part it from its target
        return live.entry

    def create_now(
        self, key: Key, attributes: Attributes, *, exclusive: bool, append: bool
    ) -> tuple[Entry, Handle] | None:
        """``create`` where the catalog knows that there is no such file and nothing has to be waited for, else None."""
        absent, parent = self._names.known(key), self._names.known(parent_of(key))
        if absent is None or absent.kind is not Kind.ABSENT or parent is None or parent.kind is not Kind.DIRECTORY:
            return None
        if not self._tree.are_free(key):
            return None
        entry = self._new_entry(attributes._replace(xattrs=inherited(parent)))
        staged = self._writes.stages.stage_now(key, entry, _condition(exclusive=exclusive))
        if staged is None:
            return None
        try:
            live = self.enter_staged(key, entry._replace(staged=staged.id), staged)
        except BaseException:
            self._writes.stages.unstage_now(staged)
            raise
        return live.entry, self._handle(live, live.entry, writable=True, append=append)

    def _new_entry(self, attributes: Attributes) -> Entry:
        at_ns = now_ns()
        attributes = attributes._replace(mtime_ns=at_ns, atime_ns=at_ns, ctime_ns=at_ns)
        return staged_entry(attributes, self._tree.catalog.new_inode(), staged=0, size_bytes=0)

    def enter_staged(self, key: Key, entry: Entry, staged: StagedFile) -> LiveInode:
        """A staged file is the newest state of ``key`` from now on."""
        tree = self._tree
        with tree.catalog.batch():
            tree.put(key, entry)
            tree.touch_directory(parent_of(key))
        tree.place_staged(entry.inode, key)
        live = tree.live.obtain(entry.inode, key, entry)
        live.staged = staged
        tree.changed(key, entry.inode)
        return live

    async def closed(self, live: LiveInode, handle: Handle) -> None:
        """A handle is gone: seal after the last writer, forget the inode after the last user."""
        try:
            if handle.writable and live.staged is not None and live.writers == 0:
                await self._writes.closes.stays_mapped(live)
                await self._writes.closes.seal(live)
        finally:  # nobody comes back to close it
            self.forget(live, handle)

    def closed_now(self, live: LiveInode, handle: Handle) -> bool:
        """``closed`` where nothing has to be waited for; else False, and nothing is done."""
        if handle.writable and live.staged is not None and live.writers == 0 and not self._writes.closes.seal_now(live):
            return False
        self.forget(live, handle)
        return True

    def forget(self, live: LiveInode, handle: Handle) -> None:
        """The half of it that never waits, and all of it for a handle that could not write."""
        if handle.window is not None:
            self._readahead.forget(handle.window)
        if not live.handles:
            self._orphans.drop(live.inode)
        if live.key is None and not live.handles:
            self._writes.closes.drop_staged(live)
        elif live.staged is not None and not live.writers:
            self._writes.closes.rest(live.staged)
        self._tree.live.release(live)

    # -- reading ------------------------------------------------------------------------------------

    def readable(self, version: VersionRef) -> int | None:
        """A descriptor of a complete copy to read from; good until the next call of the cache."""
        return self._cache.open_local(version)

    def note_missed(self, key: Key) -> None:
        """A program opens a file that it did not find by itself."""
        self._watch.opened(key, missed=True)

    def note_opened(self, version: VersionRef) -> None:
        """A program reads a file from its beginning that we had not to be asked for."""
        self._watch.opened(version.key, missed=False)
        self._traced(version.id, version.size_bytes)

    def expect_read(self, version: VersionRef, length: int) -> bool:
        """Let the disk begin to read a complete copy; whether there is one."""
        return self._cache.expect_read(version, length)

    def lendable(self, version: VersionRef, xattrs: Xattrs) -> int | None:
        """The same of a copy that may be lent to the kernel."""
        return self._writes.stages.lending.readable(version, xattrs)

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
        if not version.key:
            raise Changed("the file was replaced at the origin while it was open")
        with self._reading(handle, version, offset, length):
            return await self._cache.read(version, offset, length)

    async def _bring(self, handle: Handle) -> None:
        """Fetch the whole of a small version. It is read next, and one that was replaced at the origin meanwhile is
        noticed before the kernel has taken its length for the file's."""
        version = handle.version
        assert version is not None
        with self._reading(handle, version, 0, version.size_bytes):
            await self._cache.ensure(version, 0, version.size_bytes)
        handle.attach()

    @contextmanager
    def _reading(self, handle: Handle, version: VersionRef, offset: int, length: int) -> Iterator[None]:
        """Read-ahead looks on. What the origin no longer has is Changed, and its name is asked for again."""
        if handle.window is None:
            handle.window = self._readahead.window()
        self._readahead.observe(handle.window, version, offset, length)
        try:
            yield
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
            if live.handles and live.hold is None:
                live.hold = ExitStack()
                live.hold.enter_context(live.staged.held())
            if live.handles and not live.staged.spilled:
                await self._orphans.keep(live.inode, live.staged.path, live_entry(live), staged=True)
            return
        for handle in list(live.handles):
            if handle.version is None or handle.attach():
                continue
            # A version that cannot be kept or fetched leaves the handle with ESTALE, which is what NFS does too.
            with suppress(TierCacheError):
                await self._cache.ensure(handle.version, 0, handle.version.size_bytes)
            handle.attach()
        local = next((path for handle in live.handles if (path := handle.local_path) is not None), None)
        if local is not None:
            await self._orphans.keep(live.inode, local, live_entry(live), staged=False)

    def keep_attributes(self, live: LiveInode) -> None:
        """A file without a name has new attributes."""
        self._orphans.update(live.inode, live_entry(live))

    def renew_inode(self, inode: int) -> None:
        """Give the names of a clean file a new inode; handles of the old one go on as those of a replaced file."""
        tree = self._tree
        live = tree.live.get(inode)
        if live is None or live.key is None or live.staged is not None:
            return
        renewed = tree.catalog.new_inode()
        for name in tree.names_of(inode) or [live.key]:
            old = tree.entry(name)
            if old is not None and old.inode == inode:
                tree.put(name, old._replace(inode=renewed))
                tree.replaced(name, old)
                tree.changed(name, inode)

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


def _condition(*, exclusive: bool) -> ConditionKind:
    return ConditionKind.IF_ABSENT if exclusive else ConditionKind.ALWAYS
