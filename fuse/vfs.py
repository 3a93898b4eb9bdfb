"""The filesystem as the kernel asks for it: requests by inode, answers as plain tuples, errors in the domain's words.

It knows no driver and no protocol, and holds no policy: it translates between the kernel's view and ``Namespace``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from tiercache.engine.handle import Handle
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, InvalidArgument, InvalidName, NameTooLong, NoAttribute, ReadOnly, Unsupported
from tiercache.fuse.attributes import (
    MAX_NAME_BYTES,
    Attr,
    Caller,
    DirEntry,
    EntryOut,
    FileSystemSpace,
    OpenOut,
    attr_of,
    file_system_space,
)
from tiercache.fuse.directories import Child, Line, Stream, Streams
from tiercache.fuse.guard import errno_for
from tiercache.fuse.handles import HandleTable
from tiercache.fuse.options import MountOptions
from tiercache.fuse.pages import PageCache, content_of
from tiercache.model import Entry, Key, Kind, has_posix_spelling, is_below, join, name_of, parent_of

ROOT_NODE = 1
"""The kernel's name for the root of a mount."""

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

_PRIVILEGE_BITS = stat.S_ISUID | stat.S_ISGID

_acting: ContextVar[Vfs | None] = ContextVar("tiercache_vfs_acting", default=None)
"""The mount that changes a name itself just now: its kernel side knows of that change and needs no notice."""


class Change(NamedTuple):
    """A name that changed behind the kernel's back."""

    parent: int
    name: bytes
    node: int
    """0 when the inode is not known."""
    in_use: bool
    """Its file is open or it is a directory: drop its attributes, but leave the name in place."""


class Vfs:
    """One mount of one namespace, from ``root_key`` down.

    Node ids are the catalog's inode ids, which are persisted and never reused, except that the kernel calls the root 1:
    the two ids swap places.
    """

    def __init__(self, namespace: Namespace, root_key: Key, *, root_inode: int, options: MountOptions) -> None:
        self._namespace = namespace
        self._root_key = root_key
        self._root_inode = root_inode
        self.options = options
        self._handles = HandleTable()
        self._streams = Streams(namespace.key_of)
        self._pages = PageCache()
        self._privileged: set[int] = set()  # inodes with set-user-id or set-group-id bits: a write must clear them
        self.on_change: Callable[[Change], None] | None = None

    # -- names ------------------------------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes) -> EntryOut:
        directory = self._key(parent)
        if name == b".":
            key = directory
        elif name == b"..":
            key = directory if self._inode(parent) == self._root_inode else parent_of(directory)
        else:
            key = self._child(directory, name, must_spell=False)
        return self._entry_out(await self._namespace.lookup(key))

    def forget(self, node: int) -> None:
        """The kernel dropped the node. Ids are persisted, so there is nothing else to forget."""
        inode = self._inode(node)
        self._pages.forgotten(inode)
        self._privileged.discard(inode)

    async def getattr(self, node: int) -> Attr:
        return self._attr(await self._namespace.getattr(self._inode(node)))

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
        inode = self._inode(node)
        if mode is None and (uid is not None or gid is not None or kill_privileges):
            mode = await self._mode_without_privileges(inode)
        before = content_of(await self._namespace.getattr(inode))
        with self._changing():
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
        return self._attr(entry)

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> EntryOut:
        self._check_writable()
        key = self._child(self._key(parent), name)
        gid, inherited = await self._inherited(parent, caller)
        with self._changing():
            entry = await self._namespace.mkdir(key, mode=(mode & 0o7777) | inherited, uid=caller.uid, gid=gid)
        return self._entry_out(entry)

    async def mknod(self, parent: int, name: bytes, mode: int, caller: Caller) -> EntryOut:
        """Make an empty regular file. An origin holds no devices, pipes or sockets."""
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise OSError(errno.EPERM, "only regular files can be made here")
        entry, opened = await self.create(parent, name, mode, os.O_CREAT | os.O_EXCL | os.O_WRONLY, caller)
        try:
            await self.flush(opened.handle)
        finally:
            await self.release(opened.handle)
        return entry

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> EntryOut:
        self._check_writable()
        key = self._child(self._key(parent), name)
        gid, _ = await self._inherited(parent, caller)
        with self._changing():
            return self._entry_out(await self._namespace.symlink(key, target, uid=caller.uid, gid=gid))

    async def readlink(self, node: int) -> bytes:
        entry = await self._namespace.getattr(self._inode(node))
        if entry.kind is not Kind.SYMLINK:
            raise InvalidArgument("not a symbolic link")
        return entry.link_target

    async def link(self, node: int, parent: int, name: bytes) -> EntryOut:
        self._check_writable()
        key = self._child(self._key(parent), name)
        with self._changing():
            return self._entry_out(await self._namespace.link(self._inode(node), key))

    async def unlink(self, parent: int, name: bytes) -> None:
        self._check_writable()
        with self._changing():
            await self._namespace.unlink(self._child(self._key(parent), name))

    async def rmdir(self, parent: int, name: bytes) -> None:
        self._check_writable()
        with self._changing():
            await self._namespace.rmdir(self._child(self._key(parent), name))

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        self._check_writable()
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            raise InvalidArgument(f"unknown rename flags {flags:#x}")
        source = self._child(self._key(parent), name)
        target = self._child(self._key(new_parent), new_name)
        before = await self._namespace.lookup(source)
        with self._changing():
            await self._namespace.rename(
                source, target, no_replace=bool(flags & RENAME_NOREPLACE), exchange=bool(flags & RENAME_EXCHANGE)
            )
        if before.kind is Kind.FILE:
            after = await self._namespace.getattr(before.inode)
            self._pages.renamed(before.inode, content_of(before), content_of(after))

    # -- files ------------------------------------------------------------------------------------

    async def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[EntryOut, OpenOut]:
        self._check_writable()
        key = self._child(self._key(parent), name)
        gid, _ = await self._inherited(parent, caller)
        with self._changing():
            entry, handle = await self._namespace.create(
                key,
                mode=mode & 0o7777,
                uid=caller.uid,
                gid=gid,
                exclusive=bool(flags & os.O_EXCL),
                truncate=bool(flags & os.O_TRUNC),
                append=bool(flags & os.O_APPEND),
            )
        return self._entry_out(entry), self._opened(entry, handle, caller)

    async def open(self, node: int, flags: int, caller: Caller) -> OpenOut:
        access = flags & os.O_ACCMODE
        truncate = bool(flags & os.O_TRUNC)
        write = access != os.O_RDONLY
        if write or truncate:
            self._check_writable()
        inode = self._inode(node)
        with self._changing() if truncate else contextlib.nullcontext():
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
        if truncate:
            self._wrote(inode)
        return self._opened(entry, handle, caller)

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """Up to ``size_bytes``; short only at the end of the file."""
        return await self._handles.get(handle).file.read(offset, size_bytes)

    async def write(
        self, handle: int, offset: int, data: bytes | memoryview, *, kill_privileges: bool | None = None
    ) -> int:
        """Write all of ``data``. ``kill_privileges`` None: judged by who opened the file."""
        opened = self._handles.get(handle)
        inode = opened.file.inode
        if inode in self._privileged and (opened.caller.uid != 0 if kill_privileges is None else kill_privileges):
            await self._kill_privileges(inode)
        written = await opened.file.write(offset, data)
        self._wrote(inode)
        return written

    async def flush(self, handle: int) -> None:
        """A descriptor was closed (close(2) waits for this)."""
        await self._handles.get(handle).file.flush()

    async def fsync(self, handle: int, *, data_only: bool) -> None:
        await self._handles.get(handle).file.fsync(data_only=data_only)

    async def release(self, handle: int) -> None:
        """The last descriptor of this open is gone; nobody waits for the answer."""
        opened = self._handles.pop(handle)
        if not opened.direct_io:
            self._pages.closed(opened.file.inode)
        await opened.file.close()

    async def close(self) -> None:
        """The mount is gone: no release will come for what is still open. What was written goes its way."""
        for opened in self._handles.drain():
            try:
                await opened.file.close()
            except Exception as error:
                errno_for(error, "close", f"inode {opened.file.inode} at the end of the mount")

    async def drop_privileges(self, node: int) -> None:
        """Clear set-user-id bits as a write by an ordinary user does."""
        await self._kill_privileges(self._inode(node))

    # -- directories ------------------------------------------------------------------------------

    async def opendir(self, node: int) -> int:
        self._key(node)
        return self._streams.open(self._inode(node))

    async def readdirplus(self, handle: int, offset: int, limit: int) -> list[DirEntry]:
        """At most ``limit`` entries from cookie ``offset`` on; an empty list is the end. Offset 0 starts over."""
        stream = self._streams.get(handle)
        if offset == 0:
            stream.take(await self._snapshot(stream.inode))
        found: list[DirEntry] = []
        while not found:
            # A page whose names are all gone must not look like the end.
            lines = stream.lines(offset, limit)
            if not lines:
                break
            for line in lines:
                entry = await self._current(stream, line)
                if entry is not None:
                    found.append(DirEntry(line.name, self._listed(entry), line.cookie))
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
        above = own if inode == self._root_inode else await namespace.lookup(parent_of(key))
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
        return await self._namespace.getxattr(self._inode(node), name)

    async def setxattr(
        self, node: int, name: bytes, value: bytes, *, create: bool = False, replace: bool = False
    ) -> None:
        self._check_writable()
        self._check_user_attribute(name)
        with self._changing():
            await self._namespace.setxattr(self._inode(node), name, value, create=create, replace=replace)

    async def listxattr(self, node: int) -> Sequence[bytes]:
        return await self._namespace.listxattr(self._inode(node))

    async def removexattr(self, node: int, name: bytes) -> None:
        self._check_writable()
        self._check_user_attribute(name)
        with self._changing():
            await self._namespace.removexattr(self._inode(node), name)

    @staticmethod
    def _check_user_attribute(name: bytes) -> None:
        if not name.startswith(b"user."):
            raise Unsupported(f"only attributes in user. can be set: {name!r}")

    async def statfs(self) -> FileSystemSpace:
        return file_system_space(await self._namespace.space())

    # -- changes by others ------------------------------------------------------------------------

    def note_change(self, key: Key, inode: int) -> None:
        """The namespace's listener: a name changed, by this mount or by anyone else."""
        if self._streams:
            self._streams.note_change(key, inode)
        if _acting.get() is self:
            return
        self._pages.replaced(inode)
        if self.on_change is not None:
            change = self._change(key, inode)
            if change is not None:
                self.on_change(change)

    def _change(self, key: Key, inode: int) -> Change | None:
        directory = self._namespace.tree.entry(parent_of(key))
        if key == self._root_key or not is_below(key, self._root_key) or directory is None:
            return None
        entry = self._namespace.tree.entry(key)
        is_directory = entry is not None and entry.kind is Kind.DIRECTORY
        return Change(
            parent=self._node(directory.inode),
            name=name_of(key),
            node=self._node(inode) if inode else 0,
            in_use=is_directory or self._pages.is_open(inode),
        )

    # -- inside -----------------------------------------------------------------------------------

    def _inode(self, node: int) -> int:
        if node == ROOT_NODE:
            return self._root_inode
        return ROOT_NODE if node == self._root_inode else node

    _node = _inode  # swapping two ids is its own inverse

    def _key(self, node: int) -> Key:
        return self._root_key if node == ROOT_NODE else self._namespace.key_of(self._inode(node))

    def _child(self, directory: Key, name: bytes, *, must_spell: bool = True) -> Key:
        if len(name) > MAX_NAME_BYTES:
            raise NameTooLong(f"a name has at most {MAX_NAME_BYTES} bytes")
        if not has_posix_spelling(name):
            if must_spell:
                raise InvalidName(f"an origin cannot hold the name {name!r}")
            raise Absent(f"{name!r}: no such file or directory")
        return join(directory, name)

    def _check_writable(self) -> None:
        if self.options.read_only:
            raise ReadOnly("the mount is read-only")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        token = _acting.set(self)
        try:
            yield
        finally:
            _acting.reset(token)

    async def _inherited(self, parent: int, caller: Caller) -> tuple[int, int]:
        """Group of a new name, and the mode bit that a directory inherits: a set-group-id directory hands both down."""
        entry = await self._namespace.getattr(self._inode(parent))
        if entry.mode & stat.S_ISGID:
            return entry.gid, stat.S_ISGID
        return caller.gid, 0

    async def _mode_without_privileges(self, inode: int) -> int | None:
        """The mode that is left when a file changes hands, None when nothing changes."""
        entry = await self._namespace.getattr(inode)
        if entry.kind is not Kind.FILE or not entry.mode & _PRIVILEGE_BITS:
            return None
        dropped = stat.S_ISUID
        if entry.mode & stat.S_IXGRP:  # without group execution the bit has another meaning (mandatory locking)
            dropped |= stat.S_ISGID
        return entry.mode & ~dropped

    async def _kill_privileges(self, inode: int) -> None:
        mode = await self._mode_without_privileges(inode)
        self._privileged.discard(inode)
        if mode is not None:
            with self._changing():
                await self._namespace.setattr(inode, mode=mode)

    def _wrote(self, inode: int) -> None:
        self._pages.written(inode)
        if self._streams:
            self._streams.note_write(inode)

    def _opened(self, entry: Entry, handle: Handle, caller: Caller) -> OpenOut:
        verdict = self._pages.opened(entry.inode, content_of(entry))
        number = self._handles.add(handle, caller, direct_io=verdict.direct_io)
        return OpenOut(number, verdict.keep_cache, verdict.direct_io)

    def _attr(self, entry: Entry) -> Attr:
        if entry.mode & _PRIVILEGE_BITS and entry.kind is Kind.FILE:
            self._privileged.add(entry.inode)
        return attr_of(entry, self._node(entry.inode), self.options.timeout_s)

    def _entry_out(self, entry: Entry) -> EntryOut:
        return EntryOut(self._attr(entry), self.options.timeout_s)

    def _listed(self, entry: Entry) -> EntryOut:
        """A directory line. Where a listing did not tell mode and owner, the kernel must ask before it uses them."""
        answer = self._entry_out(entry)
        if entry.attributes_known or not self.options.posix_metadata or entry.kind is Kind.DIRECTORY:
            return answer
        return EntryOut(answer.attr._replace(timeout_s=0.0), 0.0)
