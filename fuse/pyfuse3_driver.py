"""The mount through libfuse: pyfuse3's handlers on a ``Vfs``. pyfuse3 is imported here only.

pyfuse3 keeps its session in module globals, so a process can host one mount with it.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import FileHandleT, FileNameT, FlagT, FUSEError, InodeT, ModeT, XAttrNameT

from tiercache.errors import Absent, MountError
from tiercache.fuse.attributes import PREFERRED_IO_BYTES, Attr, Caller, EntryOut
from tiercache.fuse.guard import Guard
from tiercache.fuse.options import MountOptions
from tiercache.fuse.vfs import Vfs
from tiercache.metrics import Metrics

P = ParamSpec("P")
T = TypeVar("T")

MAX_TASKS = 256
"""Requests under way at once; further ones wait in the kernel."""

SMALLEST_DIRECTORY_LINE_BYTES = 160
"""A READDIRPLUS record with a name of up to eight bytes: more lines than this allows never fit a reply."""

_NO_ENTRY = 0

_in_use = threading.Lock()


def guarded(handler: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """An exception other than FUSEError in a handler would end pyfuse3's main loop, and with it the mount."""
    operation = handler.__name__

    @functools.wraps(handler)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(*args, **kwargs)
        except FUSEError:
            raise
        except Exception as error:
            operations = args[0]
            assert isinstance(operations, Operations)
            raise FUSEError(operations.guard.errno_for(error, operation, args[1:3])) from None

    return wrapper


class Operations(pyfuse3.Operations):
    """Each handler translates arguments and answer; all decisions are the Vfs's."""

    supports_dot_lookup = True
    enable_writeback_cache = False  # it breaks O_APPEND and files that others change (libfuse#191)
    enable_acl = False

    def __init__(self, vfs: Vfs, guard: Guard) -> None:
        super().__init__()
        self._vfs = vfs
        self.guard = guard

    @guarded
    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        try:
            return _entry(await self._vfs.lookup(parent_inode, name))
        except Absent:
            negative = pyfuse3.EntryAttributes()
            negative.st_ino = InodeT(_NO_ENTRY)
            negative.entry_timeout = self._vfs.options.negative_timeout_s
            return negative

    @guarded
    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for node, _ in inode_list:
            self._vfs.forget(node)

    @guarded
    async def getattr(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return _attributes(await self._vfs.getattr(inode))

    @guarded
    async def setattr(
        self,
        inode: InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        answer = await self._vfs.setattr(
            inode,
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            kill_privileges=fields.update_size and ctx.uid != 0,
        )
        return _attributes(answer)

    @guarded
    async def readlink(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> FileNameT:
        return FileNameT(await self._vfs.readlink(inode))

    @guarded
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return _entry(await self._vfs.mknod(parent_inode, name, mode, rdev, _caller(ctx)))

    @guarded
    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return _entry(await self._vfs.mkdir(parent_inode, name, mode, _caller(ctx)))

    @guarded
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: pyfuse3.RequestContext) -> None:
        await self._vfs.unlink(parent_inode, name)

    @guarded
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: pyfuse3.RequestContext) -> None:
        await self._vfs.rmdir(parent_inode, name)

    @guarded
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return _entry(await self._vfs.symlink(parent_inode, name, target, _caller(ctx)))

    @guarded
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        await self._vfs.rename(parent_inode_old, name_old, parent_inode_new, name_new, flags)

    @guarded
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return _entry(await self._vfs.link(inode, new_parent_inode, new_name))

    @guarded
    async def open(self, inode: InodeT, flags: FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        opened = await self._vfs.files.open(inode, flags, _caller(ctx))
        return pyfuse3.FileInfo(FileHandleT(opened.handle), opened.direct_io, opened.keep_cache)

    @guarded
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        entry, opened = await self._vfs.files.create(parent_inode, name, mode, flags, _caller(ctx))
        return pyfuse3.FileInfo(FileHandleT(opened.handle), opened.direct_io, opened.keep_cache), _entry(entry)

    @guarded
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        # Any contiguous buffer will do for pyfuse3, whatever its stub says.
        return await self._vfs.files.read(fh, off, size)  # type: ignore[return-value]

    @guarded
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        return await self._vfs.files.write(fh, off, buf)

    @guarded
    async def flush(self, fh: FileHandleT) -> None:
        if self._vfs.options.read_only:
            # The kernel asks once and saves the round trip of every later close.
            raise FUSEError(errno.ENOSYS)
        await self._vfs.files.flush(fh)

    @guarded
    async def release(self, fh: FileHandleT) -> None:
        await self._vfs.files.release(fh)

    @guarded
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        await self._vfs.files.fsync(fh, data_only=datasync)

    @guarded
    async def opendir(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> FileHandleT:
        return FileHandleT(await self._vfs.opendir(inode))

    @guarded
    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        # The size of the reply is hidden in the token: take pages until one does not fit.
        limit = 4096 // SMALLEST_DIRECTORY_LINE_BYTES
        while lines := await self._vfs.readdirplus(fh, start_id, limit):
            for line in lines:
                if not pyfuse3.readdir_reply(token, FileNameT(line.name), _entry(line.entry), line.cookie):
                    return
            start_id = lines[-1].cookie

    @guarded
    async def releasedir(self, fh: FileHandleT) -> None:
        await self._vfs.releasedir(fh)

    @guarded
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        await self._vfs.fsyncdir(fh)

    @guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        space = await self._vfs.statfs()
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = space.fragment_bytes
        answer.f_blocks = space.total_fragments
        answer.f_bfree = answer.f_bavail = space.free_fragments
        answer.f_files = space.total_inodes
        answer.f_ffree = answer.f_favail = space.free_inodes
        answer.f_namemax = space.max_name_bytes
        return answer

    @guarded
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._vfs.getxattr(inode, name)

    @guarded
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._vfs.setxattr(inode, name, value)

    @guarded
    async def listxattr(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> Sequence[XAttrNameT]:
        return [XAttrNameT(name) for name in await self._vfs.listxattr(inode)]

    @guarded
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: pyfuse3.RequestContext) -> None:
        await self._vfs.removexattr(inode, name)


class Pyfuse3Driver:
    """One mount by libfuse."""

    name = "pyfuse3"
    gone = True  # no other engine could go on with it

    def __init__(self, vfs: Vfs, mountpoint: str, *, metrics: Metrics) -> None:
        self._vfs = vfs
        self._guard = Guard(metrics)
        self._mountpoint = mountpoint
        if not _in_use.acquire(blocking=False):
            raise MountError(f"{mountpoint}: pyfuse3 hosts one mount per process, and this process has one")

    @staticmethod
    def is_free() -> bool:
        """Whether this process may host one more mount with pyfuse3."""
        return not _in_use.locked()

    def mount(self) -> None:
        """Ask the kernel for the mount."""
        try:
            pyfuse3.init(Operations(self._vfs, self._guard), self._mountpoint, _mount_options(self._vfs.options))
        except RuntimeError as error:
            _in_use.release()
            raise MountError(f"{self._mountpoint}: libfuse could not mount: {error}") from None

    async def run(self) -> None:
        """Serve requests until the filesystem is unmounted."""
        await pyfuse3.main(max_tasks=MAX_TASKS)

    async def settled(self) -> None:
        """Return when requests that the kernel had sent before this call were taken. libfuse does not tell: so we send
        one more behind them, which is answered without a look at the origin."""
        await trio.to_thread.run_sync(self._knock, abandon_on_cancel=True)

    def _knock(self) -> None:
        with suppress(OSError):
            os.getxattr(self._mountpoint, "security.tiercache")

    def invalidate_attributes(self, node: int) -> None:
        pyfuse3.invalidate_inode(InodeT(node), attr_only=True)

    def invalidate_name(self, parent: int, name: bytes) -> None:
        pyfuse3.invalidate_entry(InodeT(parent), FileNameT(name))

    def close(self) -> None:
        """Give up the session; the mount point must be unmounted before."""
        pyfuse3.close(unmount=False)
        _in_use.release()


def _mount_options(options: MountOptions) -> set[str]:
    chosen = {*pyfuse3.default_options, f"fsname={options.source}", "subtype=tiercache"}
    if options.allow_other:
        chosen.add("allow_other")
    if options.read_only:
        chosen.add("ro")
    return chosen


def _caller(context: pyfuse3.RequestContext) -> Caller:
    return Caller(context.uid, context.gid, context.pid)


def _attributes(attr: Attr) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = InodeT(attr.node)
    entry.st_mode = ModeT(attr.mode)
    entry.st_nlink = attr.link_count
    entry.st_uid = attr.uid
    entry.st_gid = attr.gid
    entry.st_rdev = attr.device
    entry.st_size = attr.size_bytes
    entry.st_blocks = attr.blocks
    entry.st_blksize = PREFERRED_IO_BYTES
    entry.st_atime_ns = attr.atime_ns
    entry.st_mtime_ns = attr.mtime_ns
    entry.st_ctime_ns = attr.ctime_ns
    entry.attr_timeout = attr.timeout_s
    return entry


def _entry(answer: EntryOut) -> pyfuse3.EntryAttributes:
    entry = _attributes(answer.attr)
    entry.entry_timeout = answer.timeout_s
    return entry
