"""Open files as the kernel asks for them: by handle, with patience or, where that is enough, at once."""

from __future__ import annotations

import contextlib
import os

import trio

from tiercache.engine.handle import Handle
from tiercache.engine.namespace import Namespace
from tiercache.errors import Changed
from tiercache.fuse.attributes import Caller, EntryOut, OpenOut
from tiercache.fuse.directories import Streams
from tiercache.fuse.estate import Estate, OpenFlag
from tiercache.fuse.guard import errno_for
from tiercache.fuse.handles import HandleTable, OpenFile
from tiercache.fuse.nodes import Nodes, handed_down, without_privileges
from tiercache.fuse.notices import Notices
from tiercache.fuse.openless import Openless
from tiercache.fuse.pages import Content, Mixed, PageCache, PageVerdict, content_of
from tiercache.fuse.processes import process_of
from tiercache.model import Entry, VersionId

OPEN_ATTEMPTS = 4
"""How often an open starts again because the origin's version changed under it."""


class OpenFiles:
    """The part of a mount that opens, reads, writes and closes. It shares the state of its ``Vfs``."""

    def __init__(
        self,
        namespace: Namespace,
        nodes: Nodes,
        handles: HandleTable,
        streams: Streams,
        pages: PageCache,
        openless: Openless,
        notices: Notices,
        estate: Estate | None,
    ) -> None:
        self._namespace = namespace
        self._nodes = nodes
        self._handles = handles
        self._streams = streams
        self._pages = pages
        self._openless = openless
        self._notices = notices
        self._estate = estate

    async def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[EntryOut, OpenOut]:
        self._nodes.require_writable()
        key = self._nodes.child(parent, name)
        gid, _ = handed_down(await self._namespace.getattr(self._nodes.inode(parent)), caller)
        with self._notices.acting():
            entry, handle = await self._namespace.create(
                key,
                mode=mode & 0o7777,
                uid=caller.uid,
                gid=gid,
                exclusive=bool(flags & os.O_EXCL),
                truncate=bool(flags & os.O_TRUNC),
                append=bool(flags & os.O_APPEND),
            )
        return self._nodes.entry_out(entry), await self._opened(entry, handle, flags, caller)

    def create_now(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[EntryOut, OpenOut] | None:
        """The same where the catalog knows that there is no such file and nothing has to be waited for, else None."""
        self._nodes.require_writable()
        key = self._nodes.child(parent, name)
        directory = self._namespace.known_inode(self._nodes.inode(parent))
        if directory is None:
            return None
        gid, _ = handed_down(directory, caller)
        with self._notices.acting():
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
        fd = None if flags & os.O_DSYNC else handle.lendable()  # see ``_lendable``
        verdict = self._pages.opened(entry.inode, content_of(entry), fd, others_agree=True)
        return self._nodes.entry_out(entry), self._number(handle, caller, verdict, content_of(entry))

    async def open(self, node: int, flags: int, caller: Caller) -> OpenOut:
        access = flags & os.O_ACCMODE
        truncate = bool(flags & os.O_TRUNC)
        write = access != os.O_RDONLY
        if write or truncate:
            self._nodes.require_writable()
        inode = self._nodes.inode(node)
        for _ in range(OPEN_ATTEMPTS):
            with self._notices.acting() if truncate else contextlib.nullcontext():
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
            self.wrote(inode)
        return await self._opened(entry, handle, flags, caller)

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
        if handle.version is not None:
            self._namespace.files.note_opened(handle.version)
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
        task: int = 0,
    ) -> int:
        """Write all of ``data``. ``kill_privileges`` None: judged by who opened the file. ``from_pages``: the kernel
        writes back what was changed through a mapping, by whichever open of the file it finds. ``task``: who asks, 0
        where the driver is not told."""
        opened = self._handles.get(handle)
        inode = opened.file.inode
        if inode in self._nodes.privileged and (opened.caller.uid != 0 if kill_privileges is None else kill_privileges):
            await self._kill_privileges(inode)
        with self._notices.acting():  # the first write stages the file, which is a change of its name
            written = await opened.file.write(offset, data, placed=from_pages)
        if opened.file.is_spilled and not from_pages:
            opened.writer = process_of(task)
        self.wrote(inode)
        return written

    async def fallocate(self, handle: int, mode: int, offset: int, length: int) -> None:
        """Allocate, punch or zero a range, by the kernel's flags."""
        file = self._handles.get(handle).file
        with self._notices.acting():
            await file.allocate(mode, offset, length)
        self.wrote(file.inode)

    async def lseek(self, handle: int, offset: int, whence: int) -> int:
        """SEEK_DATA and SEEK_HOLE; the kernel does the others by itself."""
        return self._handles.get(handle).file.seek(offset, whence)

    async def copy_file_range(
        self, source: int, source_offset: int, handle: int, offset: int, length: int, *, task: int = 0
    ) -> int:
        """Copy between two open files; how much was copied."""
        opened = self._handles.get(handle)
        with self._notices.acting():
            copied = await opened.file.copy_from(self._handles.get(source).file, source_offset, offset, length)
        if opened.file.is_spilled:
            opened.writer = process_of(task)
        self.wrote(opened.file.inode)
        return copied

    async def flush(self, handle: int, *, task: int = 0) -> None:
        """A descriptor was closed (close(2) waits for this). ``task``: who did it, 0 where the driver is not told."""
        opened = self._handles.get(handle)
        if opened.file.is_spilled and opened.writer and process_of(task) not in (0, opened.writer):
            return  # a child closes its copy of a descriptor by which another process writes: that is not the end
        await opened.file.flush()

    async def fsync(self, handle: int, *, data_only: bool) -> None:
        if self._nodes.options.read_only:
            return  # nothing was written, and where the kernel asks for no open there is no handle
        await self._handles.get(handle).file.fsync(data_only=data_only)

    async def release(self, handle: int) -> None:
        """The last descriptor of this open is gone; nobody waits for the answer."""
        opened = self._handles.pop(handle)
        self._take_back(opened)
        await opened.file.close()

    def release_now(self, handle: int) -> bool:
        """The same where nothing has to be waited for; else False, and nothing is done."""
        opened = self._handles.get(handle)
        self._take_back(opened)
        if not opened.file.close_now():
            return False
        self._handles.pop(handle)
        return True

    def _take_back(self, opened: OpenFile) -> None:
        """Before the file is closed: what the kernel has lent for writing counts as being written."""
        verdict, opened.verdict = opened.verdict, None
        if verdict is not None:
            self._pages.closed(opened.file.inode, verdict)

    async def close(self) -> None:
        """The mount is gone: no release will come for what is still open. What was written goes its way."""
        self._openless.close()
        for opened in self._handles.drain():
            try:
                await opened.file.close()
            except Exception as error:
                errno_for(error, "close", f"inode {opened.file.inode} at the end of the mount")

    # -- what an earlier engine had open ------------------------------------------------------------

    def take_over(self) -> None:
        """Open again what an earlier engine of this mount had open. Whatever is not to be had any more is ESTALE."""
        for slot in self._estate.inherited if self._estate is not None else ():
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
        verdict = opened.verdict
        if verdict is None:
            return None
        entry = await self._namespace.getattr(opened.file.inode)
        return self._nodes.entry_out(entry), _open_out(number, opened.file, verdict)

    def appended(self, handle: int, offset: int, data: bytes | memoryview) -> int:
        """How much of an appended write, of which the kernel thought that it would land at ``offset``, is there."""
        return self._handles.get(handle).file.appended(offset, data)

    def is_open(self, handle: int) -> bool:
        """Whether a handle is open."""
        return self._handles.is_open(handle)

    # -- how they are read and written ----------------------------------------------------------------

    def io_mode(self, inode: int) -> str:
        """How the kernel reads a file of this mount now: ``passthrough``, ``cached`` or ``closed``."""
        return self._pages.mode(inode)

    async def drop_privileges(self, node: int) -> None:
        """Clear set-user-id bits as a write by an ordinary user does."""
        await self._kill_privileges(self._nodes.inode(node))

    async def _kill_privileges(self, inode: int) -> None:
        mode = without_privileges(await self._namespace.getattr(inode))
        self._nodes.privileged.discard(inode)
        if mode is not None:
            with self._notices.acting():
                await self._namespace.setattr(inode, mode=mode)

    def wrote(self, inode: int) -> None:
        self._pages.written(inode)
        if self._streams:
            self._streams.note_write(inode)

    async def _opened(self, entry: Entry, handle: Handle, flags: int, caller: Caller) -> OpenOut:
        """Decide how the kernel reads and writes a new handle. One that cannot share the file which the kernel has for
        the inode stands for another inode from now on: Changed (ESTALE) makes the kernel look the name up again."""
        inode = entry.inode
        try:
            if handle.writable and self._pages.lent(inode) is not None:
                with self._notices.acting():
                    await handle.write_in_place()
                entry = handle.entry
            fd = self._lendable(handle, flags)
            verdict = self._pages.opened(inode, content_of(entry), fd, others_agree=handle.agrees())
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await handle.close()
            if isinstance(error, Mixed | Changed):
                self._namespace.renew_inode(inode)
                raise Changed("the kernel has other bytes of this file open") from error
            raise
        return self._number(handle, caller, verdict, content_of(entry))

    def _lendable(self, handle: Handle, flags: int) -> int | None:
        """Of a file that the kernel writes by itself it does not tell us when a write has to be on the disk on its
        return (O_SYNC, O_DSYNC): such opens are not lent, unless they have to share what is lent already."""
        synchronous = handle.writable and flags & os.O_DSYNC and self._pages.lent(handle.inode) is None
        return None if synchronous else handle.lendable()

    def _number(self, handle: Handle, caller: Caller, verdict: PageVerdict, content: Content) -> OpenOut:
        if verdict.backing is not None:
            handle.lend(verdict.backing.file.inode)
        else:
            # Opened at once: eviction and the origin then cannot touch what this handle reads.
            handle.attach()
        return _open_out(self._handles.add(handle, caller, verdict, content), handle, verdict)


def _open_out(number: int, handle: Handle, verdict: PageVerdict) -> OpenOut:
    backing_id = 0 if verdict.backing is None else verdict.backing.id
    return OpenOut(number, verdict.keep_cache, verdict.direct_io, backing_id, no_flush=not handle.writable)


def reads_what(handle: Handle, entry: Entry) -> bool:
    """Whether a handle reads the bytes that the entry tells of."""
    return bool(entry.staged) or handle.version is None or handle.version.etag == entry.etag
