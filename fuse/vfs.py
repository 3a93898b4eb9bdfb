"""The filesystem as the kernel asks for it: requests by inode, answers as plain tuples, errors in the domain's words.

It knows no driver and no protocol, and holds no policy: it translates between the kernel's view and ``Namespace``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Changed, InvalidArgument, NoAttribute, Unsupported
from tiercache.fuse.attributes import (
    Attr,
    Caller,
    DirEntry,
    EntryOut,
    FileSystemSpace,
    file_system_space,
    kind_of,
)
from tiercache.fuse.backing import Backings
from tiercache.fuse.directories import Child, Line, Stream, Streams
from tiercache.fuse.estate import Estate
from tiercache.fuse.files import OpenFiles
from tiercache.fuse.handles import HandleTable
from tiercache.fuse.hits import Hits
from tiercache.fuse.latest import LATEST, LatestLinks
from tiercache.fuse.nodes import Nodes, handed_down, without_privileges
from tiercache.fuse.notices import Notices
from tiercache.fuse.openless import Openless
from tiercache.fuse.options import MountOptions
from tiercache.fuse.pages import PageCache, content_of
from tiercache.model import Entry, Key, Kind, parent_of

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


class Vfs:
    """One mount of one namespace, from ``root_key`` down. What is asked by handle is in ``files``."""

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
        self._latest = LatestLinks(namespace, self._nodes)
        self._streams = Streams(namespace.key_of)
        self.backings = Backings()
        self._pages = PageCache(self.backings)
        self.notices = Notices(namespace, self._nodes, self._pages)
        self._openless = Openless(namespace)
        self.files = OpenFiles(
            namespace,
            self._nodes,
            self._handles,
            self._streams,
            self._pages,
            self._openless,
            self.notices,
            estate,
        )
        self.hits = Hits(namespace, self._nodes, self._handles, self._streams, self._pages, self._openless)

    def node(self, inode: int) -> int:
        """What the kernel calls an inode."""
        return self._nodes.node(inode)

    # -- names ------------------------------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes) -> EntryOut:
        try:
            return self._nodes.entry_out(await self._namespace.lookup(self.hits.key_of_name(parent, name)))
        except Absent:
            if name != LATEST:
                raise
        return await self._latest.look_up(self._nodes.key(parent))

    def forget(self, node: int) -> None:
        """The kernel dropped the node. Ids are persisted, so there is nothing else to forget."""
        inode = self._nodes.inode(node)
        self._pages.forgotten(inode)
        self._nodes.forgotten(inode)
        self._openless.forget(inode)
        self._latest.forget(inode)

    async def getattr(self, node: int) -> Attr:
        inode = self._nodes.inode(node)
        try:
            return self._nodes.attr(await self._namespace.getattr(inode))
        except (Absent, Changed):
            left = self._namespace.nameless(inode) or self._nodes.removed_entry(inode) or self._latest.entry(inode)
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
        self._nodes.require_writable()
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
            self.files.wrote(inode)
        return self._nodes.attr(entry)

    # ``resumed``: an earlier engine may have made it; then that is the answer.

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller, *, resumed: bool = False) -> EntryOut:
        self._nodes.require_writable()
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
        entry, opened = await self.files.create(parent, name, mode, os.O_CREAT | os.O_WRONLY | exclusive, caller)
        try:
            await self.files.flush(opened.handle)
        finally:
            await self.files.release(opened.handle)
        return entry

    async def _make_special(
        self, parent: int, name: bytes, kind: Kind, mode: int, device: int, caller: Caller, *, resumed: bool
    ) -> EntryOut:
        self._nodes.require_writable()
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
        self._nodes.require_writable()
        key = self._nodes.child(parent, name)
        gid, _ = await self._inherited(parent, caller)
        with self.notices.acting():
            entry = await self._namespace.symlink(key, target, uid=caller.uid, gid=gid, resumed=resumed)
        return self._nodes.entry_out(entry)

    async def readlink(self, node: int) -> bytes:
        inode = self._nodes.inode(node)
        entry = self._latest.entry(inode) or await self._namespace.getattr(inode)
        if entry.kind is not Kind.SYMLINK:
            raise InvalidArgument("not a symbolic link")
        return entry.link_target

    async def link(self, node: int, parent: int, name: bytes, *, resumed: bool = False) -> EntryOut:
        self._nodes.require_writable()
        key = self._nodes.child(parent, name)
        with self.notices.acting():
            entry = await self._namespace.link(self._nodes.inode(node), key, resumed=resumed)
            return self._nodes.entry_out(entry)

    async def unlink(self, parent: int, name: bytes) -> None:
        self._nodes.require_writable()
        with self.notices.acting():
            await self._namespace.unlink(self._nodes.child(parent, name))

    async def rmdir(self, parent: int, name: bytes) -> None:
        self._nodes.require_writable()
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
        self._nodes.require_writable()
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
        self._nodes.require_writable()
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
        """What is staged under which names is durable on return, though not its bytes. What the origin has done by
        itself is the origin's to keep."""
        await self._namespace.sync_names()

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
        self._nodes.require_writable()
        self._check_user_attribute(name)
        with self.notices.acting():
            await self._namespace.setxattr(self._nodes.inode(node), name, value, create=create, replace=replace)

    async def listxattr(self, node: int) -> Sequence[bytes]:
        return await self._namespace.listxattr(self._nodes.inode(node))

    async def removexattr(self, node: int, name: bytes) -> None:
        self._nodes.require_writable()
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

    async def _inherited(self, parent: int, caller: Caller) -> tuple[int, int]:
        """Group of a new name, and the mode bit that a directory inherits: a set-group-id directory hands both down."""
        return handed_down(await self._namespace.getattr(self._nodes.inode(parent)), caller)
