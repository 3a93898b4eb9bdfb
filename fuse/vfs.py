"""The filesystem as the kernel asks for it: requests by inode, answers as plain tuples, errors in the domain's words.

It knows no driver and no protocol, and holds no policy: it translates between the kernel's view and ``Namespace``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

import trio

from tiercache.engine.handle import Handle
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Changed, InvalidArgument, NoAttribute, ReadOnly, Unsupported
from tiercache.fuse.attributes import (
    Attr,
    Caller,
    DirEntry,
    EntryOut,
    FileSystemSpace,
    OpenOut,
    file_system_space,
    kind_of,
)
from tiercache.fuse.backing import Backings
from tiercache.fuse.directories import Child, Line, Stream, Streams
from tiercache.fuse.estate import Estate, OpenFlag
from tiercache.fuse.guard import errno_for
from tiercache.fuse.handles import HandleTable
from tiercache.fuse.hits import Hits
from tiercache.fuse.nodes import Nodes, without_privileges
from tiercache.fuse.notices import Notices
from tiercache.fuse.openless import Openless
from tiercache.fuse.options import MountOptions
from tiercache.fuse.pages import Content, Mixed, PageCache, PageVerdict, content_of
from tiercache.model import Entry, Key, Kind, VersionId, parent_of

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

OPEN_ATTEMPTS = 4
"""How often an open starts again because the origin's version changed under it."""


class Vfs:
    """One mount of one namespace, from ``root_key`` down."""

    def __init__(
        self,
        namespace: Namespace,
        root_key: Key,
        *,
        root_inode: int,
        options: MountOptions,
        estate: Estate | None = None,
    ) -> None:
        self._namespace = namespace
        self.options = options
        self.estate = estate
        self._nodes = Nodes(namespace, root_key, root_inode=root_inode, options=options)
        self._handles = HandleTable(estate)
        self._streams = Streams(namespace.key_of)
        self.backings = Backings()
        self._pages = PageCache(self.backings)
        self.notices = Notices(namespace, self._nodes, self._pages)
        self._openless = Openless(namespace)
        self.hits = Hits(namespace, self._nodes, self._handles, self._streams, self._pages, self._openless)

    # -- names ------------------------------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes) -> EntryOut:
        return self._nodes.entry_out(await self._namespace.lookup(self.hits.key_of_name(parent, name)))

    def forget(self, node: int) -> None:
        """The kernel dropped the node. Ids are persisted, so there is nothing else to forget."""
        inode = self._nodes.inode(node)
        self._pages.forgotten(inode)
        self._nodes.forgotten(inode)
        self._openless.forget(inode)

    async def getattr(self, node: int) -> Attr:
        inode = self._nodes.inode(node)
        try:
            return self._nodes.attr(await self._namespace.getattr(inode))
        except (Absent, Changed):
            left = self._namespace.nameless(inode) or self._nodes.removed_entry(inode)
            if left is None:
                raise
            return self._nodes.attr(left)

    async def setattr(
        self,
        node: int,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        size: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
        kill_privileges: bool = False,
    ) -> Attr:
        """Change what is not None. A new owner, and with ``kill_privileges`` a new size, clears set-user-id bits."""
        self._check_writable()
        inode = self._nodes.inode(node)
        entry = await self._namespace.getattr(inode)
        before = content_of(entry)
        if mode is None and (uid is not None or gid is not None or kill_privileges):
            mode = without_privileges(entry)
        with self.notices.acting():
            entry = await self._namespace.setattr(
                inode,
                mode=None if mode is None else mode & 0o7777,
                uid=uid,
                gid=gid,
                size=size,
                atime_ns=atime_ns,
                mtime_ns=mtime_ns,
            )
        if size is None:
            self._pages.renamed(inode, before, content_of(entry))
        else:
            self._wrote(inode)
        return self._nodes.attr(entry)

    # ``resumed``: an earlier engine may have made it; then that is the answer.

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller, *, resumed: bool = False) -> EntryOut:
        self._check_writable()
        key = self._nodes.child(parent, name)
        gid, inherited = await self._inherited(parent, caller)
        with self.notices.acting():
            entry = await self._namespace.mkdir(
                key, mode=(mode & 0o7777) | inherited, uid=caller.uid, gid=gid, resumed=resumed
            )
        return self._nodes.entry_out(entry)

    async def mknod(
        self, parent: int, name: bytes, mode: int, device: int, caller: Caller, *, resumed: bool = False
    ) -> EntryOut:
        """Make an empty regular file, or a pipe, socket or device where the origin holds them (else EPERM)."""
        kind = kind_of(mode)
        if kind is not Kind.FILE:
            return await self._make_special(parent, name, kind, mode, device, caller, resumed=resumed)
        exclusive = 0 if resumed else os.O_EXCL
        entry, opened = await self.create(parent, name, mode, os.O_CREAT | os.O_WRONLY | exclusive, caller)
        try:
            await self.flush(opened.handle)
        finally:
            await self.release(opened.handle)
        return entry

    async def _make_special(
        self, parent: int, name: bytes, kind: Kind, mode: int, device: int, caller: Caller, *, resumed: bool
    ) -> EntryOut:
        self._check_writable()
        key = self._nodes.child(parent, name)
        gid, _ = await self._inherited(parent, caller)
        try:
            with self.notices.acting():
                entry = await self._namespace.make_special(
                    key, kind, device, mode=mode & 0o7777, uid=caller.uid, gid=gid, resumed=resumed
                )
        except Unsupported as error:
            # What mknod(2) says of a filesystem that does not support the type.
            raise OSError(errno.EPERM, str(error)) from error
        return self._nodes.entry_out(entry)

    async def symlink(
        self, parent: int, name: bytes, target: bytes, caller: Caller, *, resumed: bool = False
    ) -> EntryOut:
        self._check_writable()
        key = self._nodes.child(parent, name)
        gid, _ = await self._inherited(parent, caller)
        with self.notices.acting():
            entry = await self._namespace.symlink(key, target, uid=caller.uid, gid=gid, resumed=resumed)
        return self._nodes.entry_out(entry)

    async def readlink(self, node: int) -> bytes:
        entry = await self._namespace.getattr(self._nodes.inode(node))
        if entry.kind is not Kind.SYMLINK:
            raise InvalidArgument("not a symbolic link")
        return entry.link_target

    async def link(self, node: int, parent: int, name: bytes, *, resumed: bool = False) -> EntryOut:
        self._check_writable()
        key = self._nodes.child(parent, name)
        with self.notices.acting():
            entry = await self._namespace.link(self._nodes.inode(node), key, resumed=resumed)
            return self._nodes.entry_out(entry)

    async def unlink(self, parent: int, name: bytes) -> None:
        self._check_writable()
        with self.notices.acting():
            await self._namespace.unlink(self._nodes.child(parent, name))

    async def rmdir(self, parent: int, name: bytes) -> None:
        self._check_writable()
        key = self._nodes.child(parent, name)
        entry = self._namespace.entry(key)
        with self.notices.acting():
            await self._namespace.rmdir(key)
        if entry is not None:
            self._nodes.removed(entry)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0, *, request: int = 0
    ) -> None:
        """``request``: the kernel's number of it, by which the next engine can tell whether it was done."""
        self._check_writable()
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            raise InvalidArgument(f"unknown rename flags {flags:#x}")
        source = self._nodes.child(parent, name)
        target = self._nodes.child(new_parent, new_name)
        before, replaced = await self._namespace.lookup(source), self._namespace.entry(target)
        noted = self.estate.changing(request, before.inode) if self.estate and request else None
        with self.notices.acting():
            await self._namespace.rename(
                source,
                target,
                no_replace=bool(flags & RENAME_NOREPLACE),
                exchange=bool(flags & RENAME_EXCHANGE),
                begun=noted,
            )
        if replaced is not None and replaced.kind is Kind.DIRECTORY and not flags & RENAME_EXCHANGE:
            self._nodes.removed(replaced)
        # It has happened, whatever became of the file meanwhile: nothing from here on may fail.
        after = self._namespace.entry(target)
        if before.kind is Kind.FILE and after is not None and after.inode == before.inode:
            self._pages.renamed(before.inode, content_of(before), content_of(after))

    # -- changes that an earlier engine may have made ---------------------------------------------

    async def resume_rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, *, request: int
    ) -> None:
        """Finish a rename that an earlier engine had begun, or do it."""
        self._check_writable()
        source, target = self._nodes.child(parent, name), self._nodes.child(new_parent, new_name)
        inode = 0 if self.estate is None else self.estate.was_changing(request)
        with self.notices.acting():
            done = await self._namespace.resume_rename(
                source, target, inode=inode, exchange=bool(flags & RENAME_EXCHANGE)
            )
        if not done:
            # What the first try had begun it had judged; what is at the new name now may be its own copy.
            flags = flags & ~RENAME_NOREPLACE if inode else flags
            await self.rename(parent, name, new_parent, new_name, flags, request=request)

    def doubt(self, parent: int, name: bytes) -> None:
        """An earlier engine may have made or removed a name without a word to the catalog: ask the origin."""
        self._namespace.doubt(self._nodes.child(parent, name))

    async def was_removed(self, parent: int, name: bytes) -> None:
        """An earlier engine removed a name, and may not have come to what follows from that."""
        with self.notices.acting():
            await self._namespace.was_removed(self._nodes.child(parent, name))

    def was_appended(self, handle: int, offset: int, data: bytes | memoryview) -> bool:
        """Whether an appended write, of which the kernel thought that it would land at ``offset``, is there."""
        return self._handles.get(handle).file.ends_with(offset, data)

    # -- files ------------------------------------------------------------------------------------

    async def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[EntryOut, OpenOut]:
        self._check_writable()
        key = self._nodes.child(parent, name)
        gid, _ = await self._inherited(parent, caller)
        with self.notices.acting():
            entry, handle = await self._namespace.create(
                key,
                mode=mode & 0o7777,
                uid=caller.uid,
                gid=gid,
                exclusive=bool(flags & os.O_EXCL),
                truncate=bool(flags & os.O_TRUNC),
                append=bool(flags & os.O_APPEND),
            )
        return self._nodes.entry_out(entry), await self._opened(entry, handle, caller)

    def create_now(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[EntryOut, OpenOut] | None:
        """The same where the catalog knows that there is no such file and nothing has to be waited for, else None."""
        self._check_writable()
        key = self._nodes.child(parent, name)
        directory = self._namespace.known_inode(self._nodes.inode(parent))
        if directory is None:
            return None
        gid, _ = _handed_down(directory, caller)
        with self.notices.acting():
            created = self._namespace.create_now(
                key,
                mode=mode & 0o7777,
                uid=caller.uid,
                gid=gid,
                exclusive=bool(flags & os.O_EXCL),
                append=bool(flags & os.O_APPEND),
            )
        if created is None:
            return None
        entry, handle = created
        verdict = self._pages.opened(entry.inode, content_of(entry), handle.lendable(), others_agree=True)
        return self._nodes.entry_out(entry), self._number(handle, caller, verdict, content_of(entry))

    async def open(self, node: int, flags: int, caller: Caller) -> OpenOut:
        access = flags & os.O_ACCMODE
        truncate = bool(flags & os.O_TRUNC)
        write = access != os.O_RDONLY
        if write or truncate:
            self._check_writable()
        inode = self._nodes.inode(node)
        for _ in range(OPEN_ATTEMPTS):
            with self.notices.acting() if truncate else contextlib.nullcontext():
                handle = await self._namespace.open(
                    inode,
                    read=access != os.O_WRONLY,
                    write=write or truncate,
                    truncate=truncate,
                    append=bool(flags & os.O_APPEND),
                )
            try:
                entry = await self._namespace.getattr(inode)
            except BaseException:
                await handle.close()
                raise
            if reads_what(handle, entry):
                break
            # Another version came up between the two calls: its length must not meet the older bytes.
            await handle.close()
        else:
            raise Changed("the file changes faster than it can be opened")
        if truncate:
            self._wrote(inode)
        return await self._opened(entry, handle, caller)

    def open_now(self, node: int, caller: Caller) -> OpenOut | None:
        """Open for reading where the catalog can answer alone and the bytes are here, else None."""
        inode = self._nodes.inode(node)
        handle = self._namespace.open_known(inode)
        if handle is None:
            return None
        try:
            entry, fd = handle.entry, handle.lendable()
            if fd is None and not handle.is_here():
                handle.close_reader()
                return None
            verdict = self._pages.opened(inode, content_of(entry), fd, others_agree=handle.agrees())
        except BaseException as error:
            handle.close_reader()
            if isinstance(error, Mixed):
                return None
            raise
        return self._number(handle, caller, verdict, content_of(entry))

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """Up to ``size_bytes``; short only at the end of the file."""
        return await self._handles.get(handle).file.read(offset, size_bytes)

    async def read_unopened(self, node: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """The same on a mount whose kernel asks for no open."""
        return await self._openless.read(self._nodes.inode(node), offset, size_bytes)

    async def write(
        self,
        handle: int,
        offset: int,
        data: bytes | memoryview,
        *,
        kill_privileges: bool | None = None,
        from_pages: bool = False,
    ) -> int:
        """Write all of ``data``. ``kill_privileges`` None: judged by who opened the file. ``from_pages``: the kernel
        writes back what was changed through a mapping, by whichever open of the file it finds."""
        opened = self._handles.get(handle)
        inode = opened.file.inode
        if inode in self._nodes.privileged and (opened.caller.uid != 0 if kill_privileges is None else kill_privileges):
            await self._kill_privileges(inode)
        with self.notices.acting():  # the first write stages the file, which is a change of its name
            written = await opened.file.write(offset, data, placed=from_pages)
        self._wrote(inode)
        return written

    async def fallocate(self, handle: int, mode: int, offset: int, length: int) -> None:
        """Allocate, punch or zero a range, by the kernel's flags."""
        file = self._handles.get(handle).file
        with self.notices.acting():
            await file.allocate(mode, offset, length)
        self._wrote(file.inode)

    async def lseek(self, handle: int, offset: int, whence: int) -> int:
        """SEEK_DATA and SEEK_HOLE; the kernel does the others by itself."""
        return self._handles.get(handle).file.seek(offset, whence)

    async def copy_file_range(self, source: int, source_offset: int, handle: int, offset: int, length: int) -> int:
        """Copy between two open files; how much was copied."""
        target = self._handles.get(handle).file
        with self.notices.acting():
            copied = await target.copy_from(self._handles.get(source).file, source_offset, offset, length)
        self._wrote(target.inode)
        return copied

    async def flush(self, handle: int) -> None:
        """A descriptor was closed (close(2) waits for this)."""
        await self._handles.get(handle).file.flush()

    async def fsync(self, handle: int, *, data_only: bool) -> None:
        if self.options.read_only:
            return  # nothing was written, and where the kernel asks for no open there is no handle
        await self._handles.get(handle).file.fsync(data_only=data_only)

    async def release(self, handle: int) -> None:
        """The last descriptor of this open is gone; nobody waits for the answer."""
        opened = self._handles.pop(handle)
        self._pages.closed(opened.file.inode, opened.verdict)
        await opened.file.close()

    def release_now(self, handle: int) -> bool:
        """The same where nothing has to be waited for; else False, and nothing is done."""
        if not self._handles.get(handle).file.close_now():
            return False
        opened = self._handles.pop(handle)
        self._pages.closed(opened.file.inode, opened.verdict)
        return True

    async def close(self) -> None:
        """The mount is gone: no release will come for what is still open. What was written goes its way."""
        self._openless.close()
        for opened in self._handles.drain():
            try:
                await opened.file.close()
            except Exception as error:
                errno_for(error, "close", f"inode {opened.file.inode} at the end of the mount")

    def take_over(self) -> None:
        """Open again what an earlier engine of this mount had open. Whatever is not to be had any more is ESTALE."""
        for slot in self.estate.inherited if self.estate is not None else ():
            handle = self._namespace.reopen(
                slot.inode,
                writable=bool(slot.flags & OpenFlag.WRITE),
                append=bool(slot.flags & OpenFlag.APPEND),
                version=VersionId(slot.version),
                size_bytes=slot.size_bytes,
            )
            self._nodes.attr(handle.entry)  # notes set-user-id bits
            verdict = self._pages.reopened(slot.inode, content_of(handle.entry), slot)
            if verdict.backing is not None:
                handle.lend(verdict.backing.file.inode)
            self._handles.reopen(slot, handle, verdict)

    async def answered(self, request: int) -> tuple[EntryOut, OpenOut] | None:
        """What an earlier engine made of an open or create and could not tell the kernel; None if it made nothing."""
        number = self._handles.of_request(request)
        if not number:
            return None
        opened = self._handles.get(number)
        entry = await self._namespace.getattr(opened.file.inode)
        return self._nodes.entry_out(entry), _open_out(number, opened.file, opened.verdict)

    def is_open(self, handle: int) -> bool:
        """Whether a handle is open."""
        return self._handles.is_open(handle)

    async def drop_privileges(self, node: int) -> None:
        """Clear set-user-id bits as a write by an ordinary user does."""
        await self._kill_privileges(self._nodes.inode(node))

    # -- directories ------------------------------------------------------------------------------

    async def opendir(self, node: int) -> int:
        return self.opendir_now(node)

    def opendir_now(self, node: int) -> int:
        self._nodes.key(node)
        return self._streams.open(self._nodes.inode(node))

    async def readdirplus(self, handle: int, offset: int, limit: int, *, node: int = 0) -> list[DirEntry]:
        """At most ``limit`` entries from cookie ``offset`` on; an empty list is the end. Offset 0 starts over.
        ``node`` tells the directory where ``handle`` is 0, because the kernel asks for no opendir."""
        stream = self.hits.stream(node, handle)
        if offset == 0 or stream.children is None:
            stream.start(await self._snapshot(stream.inode))
        found: list[DirEntry] = []
        while not found:
            # A page whose names are all gone must not look like the end.
            lines = stream.lines(offset, limit)
            if not lines:
                break
            for line in lines:
                entry = await self._current(stream, line)
                if entry is not None:
                    found.append(DirEntry(line.name, self._nodes.listed(entry), line.cookie))
            offset = lines[-1].cookie
        return found

    async def releasedir(self, handle: int) -> None:
        self._streams.close(handle)

    async def fsyncdir(self, handle: int) -> None:
        """Names are durable when the call that made them returned."""

    async def _snapshot(self, inode: int) -> list[Child]:
        namespace = self._namespace
        key = namespace.key_of(inode)
        # Listed first: the catalog's answer for "." then is as new as the listing.
        children = await namespace.list(key)
        own = await namespace.getattr(inode)
        above = own if inode == self._nodes.root_inode else await namespace.lookup(parent_of(key))
        return [(b".", own), (b"..", above), *children]

    async def _current(self, stream: Stream, line: Line) -> Entry | None:
        """The line's entry as it is now, None when the name is gone."""
        if not line.changed or line.name in (b".", b".."):
            return line.entry
        try:
            return await self._namespace.lookup(self._streams.key_of_line(stream, line.name))
        except Absent:
            return None

    # -- extended attributes ----------------------------------------------------------------------

    async def getxattr(self, node: int, name: bytes) -> bytes:
        # The kernel asks for security.capability before writes: this must not reach the namespace.
        if not name.startswith(b"user."):
            raise NoAttribute(f"no attributes outside user.: {name!r}")
        return await self._namespace.getxattr(self._nodes.inode(node), name)

    async def setxattr(
        self, node: int, name: bytes, value: bytes, *, create: bool = False, replace: bool = False
    ) -> None:
        self._check_writable()
        self._check_user_attribute(name)
        with self.notices.acting():
            await self._namespace.setxattr(self._nodes.inode(node), name, value, create=create, replace=replace)

    async def listxattr(self, node: int) -> Sequence[bytes]:
        return await self._namespace.listxattr(self._nodes.inode(node))

    async def removexattr(self, node: int, name: bytes) -> None:
        self._check_writable()
        self._check_user_attribute(name)
        with self.notices.acting():
            await self._namespace.removexattr(self._nodes.inode(node), name)

    @staticmethod
    def _check_user_attribute(name: bytes) -> None:
        if not name.startswith(b"user."):
            raise Unsupported(f"only attributes in user. can be set: {name!r}")

    async def statfs(self) -> FileSystemSpace:
        return file_system_space(await self._namespace.space(self._nodes.root_key))

    def note_change(self, key: Key, inode: int) -> None:
        """The namespace's listener: a name changed, by this mount or by anyone else."""
        self._openless.forget(inode)
        self._nodes.changed(inode)
        if self._streams:
            self._streams.note_change(key, inode)
        self.notices.note_change(key, inode)

    # -- inside -----------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self.options.read_only:
            raise ReadOnly("the mount is read-only")

    async def _inherited(self, parent: int, caller: Caller) -> tuple[int, int]:
        """Group of a new name, and the mode bit that a directory inherits: a set-group-id directory hands both down."""
        return _handed_down(await self._namespace.getattr(self._nodes.inode(parent)), caller)

    async def _kill_privileges(self, inode: int) -> None:
        mode = without_privileges(await self._namespace.getattr(inode))
        self._nodes.privileged.discard(inode)
        if mode is not None:
            with self.notices.acting():
                await self._namespace.setattr(inode, mode=mode)

    def _wrote(self, inode: int) -> None:
        self._pages.written(inode)
        if self._streams:
            self._streams.note_write(inode)

    async def _opened(self, entry: Entry, handle: Handle, caller: Caller) -> OpenOut:
        """Decide how the kernel reads and writes a new handle. One that cannot share the file which the kernel has for
        the inode stands for another inode from now on: Changed (ESTALE) makes the kernel look the name up again."""
        inode = entry.inode
        try:
            if handle.writable and self._pages.lent(inode) is not None:
                with self.notices.acting():
                    await handle.write_in_place()
                entry = handle.entry
            verdict = self._pages.opened(inode, content_of(entry), handle.lendable(), others_agree=handle.agrees())
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await handle.close()
            if isinstance(error, Mixed | Changed):
                self._namespace.renew_inode(inode)
                raise Changed("the kernel has other bytes of this file open") from error
            raise
        return self._number(handle, caller, verdict, content_of(entry))

    def _number(self, handle: Handle, caller: Caller, verdict: PageVerdict, content: Content) -> OpenOut:
        if verdict.backing is not None:
            handle.lend(verdict.backing.file.inode)
        else:
            # Opened at once: eviction and the origin then cannot touch what this handle reads.
            handle.attach()
        return _open_out(self._handles.add(handle, caller, verdict, content), handle, verdict)

    def io_mode(self, inode: int) -> str:
        """How the kernel reads a file of this mount now: ``passthrough``, ``cached`` or ``closed``."""
        return self._pages.mode(inode)


def _handed_down(directory: Entry, caller: Caller) -> tuple[int, int]:
    if directory.mode & stat.S_ISGID:
        return directory.gid, stat.S_ISGID
    return caller.gid, 0


def _open_out(number: int, handle: Handle, verdict: PageVerdict) -> OpenOut:
    backing_id = 0 if verdict.backing is None else verdict.backing.id
    return OpenOut(number, verdict.keep_cache, verdict.direct_io, backing_id, no_flush=not handle.writable)


def reads_what(handle: Handle, entry: Entry) -> bool:
    """Whether a handle reads the bytes that the entry tells of."""
    return bool(entry.staged) or handle.version is None or handle.version.etag == entry.etag
