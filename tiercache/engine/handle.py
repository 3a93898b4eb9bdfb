"""An open file of a mount: reads one version, or the inode's newest staged bytes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from tiercache.cache import VersionRef
from tiercache.engine.live import LiveInode, live_entry
from tiercache.errors import Changed, ReadOnly, TierCacheError, Unsupported
from tiercache.model import BLOCK_SIZE_BYTES, Entry, Key

if TYPE_CHECKING:
    from tiercache.engine.files import Files
    from tiercache.engine.writes import Writes
    from tiercache.readahead import Window


class Handle:
    """Made by ``Files.open``. Used from the engine's thread only; several calls may be under way at once."""

    def __init__(
        self,
        files: Files,
        writes: Writes,
        live: LiveInode,
        version: VersionRef | None,
        *,
        writable: bool,
        append: bool,
    ) -> None:
        self._files = files
        self._writes = writes
        self._live = live
        self.append = append
        self.writable = writable
        self.version = version
        """The version that a clean read returns; None while the inode has only staged bytes."""
        self._fd: int | None = None
        """The complete local file of ``version``: once open, eviction and the origin cannot touch this handle."""
        self.window: Window | None = None
        self.lost = False
        """An earlier engine had it, and nothing is left of its bytes."""
        self.lent_inode = 0
        """Inode number of the local file that the kernel reads and writes for this handle; 0 when it asks us."""

    @property
    def inode(self) -> int:
        return self._live.inode

    @property
    def entry(self) -> Entry:
        """The file as it is now, unlinked or not."""
        return live_entry(self._live)

    @property
    def key(self) -> Key | None:
        return self._live.key

    @property
    def is_spilled(self) -> bool:
        """Whether the file goes to the origin while it is written."""
        return self._live.staged is not None and self._live.staged.spilled

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """Up to ``size`` bytes at ``offset``; short only at the end. Changed (ESTALE) when the rest of this handle's
        version is no longer to be had."""
        data = self.read_now(offset, size)
        if data is not None:
            return data
        version = self.version
        assert version is not None
        return await self._files.read_version(self, version, offset, min(size, version.size_bytes - offset))

    def read_now(self, offset: int, size: int) -> bytes | None:
        """As ``read`` where a local file holds all bytes, else None."""
        if self.lost or self._live.lost:
            raise _lost()
        staged = self._live.staged
        if staged is not None:
            return staged.pread(size, offset)
        version = self.version
        if version is None or offset >= version.size_bytes:
            return b""
        if self._fd is None and not self.attach():
            return None
        assert self._fd is not None
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            return None  # a tier that fails is a tier that misses; the cache notices it when it is asked

    def attach(self) -> bool:
        """Open the complete local copy of this handle's version if there is one and it is what is read."""
        if self._fd is None and self._live.staged is None and self.version is not None:
            self._fd = self._files.open_complete(self.version)
        return self._fd is not None

    def is_here(self) -> bool:
        """Whether what is read lies in a local file, or is more than an open fetches."""
        version = self.version
        if self._live.staged is not None or version is None or version.size_bytes > BLOCK_SIZE_BYTES:
            return True
        return self._files.readable(version) is not None

    def agrees(self) -> bool:
        """Whether all open handles of the inode read the same bytes as this one."""
        live = self._live
        if live.staged is not None:
            return True
        etag = "" if self.version is None else self.version.etag
        return all(other.version is not None and other.version.etag == etag for other in live.handles)

    @property
    def local_path(self) -> str | None:
        """A path of the local file that this handle has open, whatever became of its name."""
        return None if self._fd is None else f"/proc/self/fd/{self._fd}"

    def read_file(self, path: str) -> None:
        """Read this local file, which holds all bytes of the handle's version."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def share(self, other: Handle) -> None:
        """Read the local file that ``other`` has open: it may have no name any more."""
        if other._fd is not None:
            self._fd = os.dup(other._fd)

    def use_version(self, version: VersionRef) -> None:
        """The inode's staged bytes became this clean version, or its bytes got a new name."""
        self.version = version
        self._close_fd()
        if self.lent_inode:
            return
        # Opened at once: these bytes are local now, and eviction must not make this handle fetch them again.
        self.attach()

    async def write(self, offset: int, data: bytes | memoryview, *, placed: bool = False) -> int:
        """Write all of ``data``; waits when the staging budget is full. An append handle ignores ``offset``, unless
        the bytes are ``placed``: pages of a mapping have their place in the file."""
        self._require_writable()
        return await self._writes.write(self._live, offset, data, append=self.append and not placed)

    def write_now(self, offset: int, data: bytes | memoryview, *, placed: bool = False) -> int | None:
        """As ``write`` where the staged file is there and has room, else None and nothing is written."""
        self._require_writable()
        return self._writes.write_now(self._live, offset, data, append=self.append and not placed)

    def appended(self, offset: int, data: bytes | memoryview) -> int:
        """How many bytes of ``data``, which was to be appended, are there: all where the staged file ends with them,
        not before ``offset``; the first ones where it ends after them and they lie at ``offset``, because the engine
        was killed in the middle of writing them."""
        staged = self._live.staged
        if not self.append or staged is None:
            return 0
        start = staged.size_bytes - len(data)
        if start >= offset and staged.pread(len(data), start) == bytes(data):
            return len(data)
        begun = staged.pread(len(data), offset)
        return len(begun) if begun == bytes(data[: len(begun)]) and offset + len(begun) == staged.size_bytes else 0

    def _require_writable(self) -> None:
        if self.lost or self._live.lost:
            raise _lost()
        if not self.writable:
            raise ReadOnly("the file was not opened for writing")

    async def allocate(self, mode: int, offset: int, length: int) -> None:
        """fallocate(2), with the kernel's flags. Unsupported for what moves bytes."""
        self._require_writable()
        await self._writes.allocate(self._live, mode, offset, length)

    async def copy_from(self, source: Handle, source_offset: int, offset: int, length: int) -> int:
        """Copy a range of another handle's file without bringing it here; how much was copied. Unsupported where no
        local file holds the source's bytes: the kernel then reads and writes them."""
        self._require_writable()
        fd = source.fileno()
        if fd is None:
            raise Unsupported("the source is not cached as a whole")
        fd = os.dup(fd)  # whatever becomes of the source meanwhile
        try:
            return await self._writes.copy_into(self._live, offset, fd, source_offset, length)
        finally:
            os.close(fd)

    def seek(self, offset: int, whence: int) -> int:
        """lseek(2) with SEEK_DATA or SEEK_HOLE. A file that is not here as a whole has no hole but its end."""
        fd = self.fileno()
        if fd is not None:
            return os.lseek(fd, offset, whence)
        size_bytes = self.entry.size_bytes
        if offset >= size_bytes:
            raise OSError(errno.ENXIO, "past the end of the file")
        return offset if whence == os.SEEK_DATA else size_bytes

    async def flush(self) -> None:
        """close(2) was called on one descriptor, of which there may be copies: keep what close promises."""
        if self.writable:
            await self._writes.closes.flush(self._live)

    def flush_now(self) -> bool:
        """Whether ``flush`` has nothing to do, and so can be left out."""
        return not self.writable or self._writes.closes.flushed(self._live)

    async def fsync(self, *, data_only: bool = False) -> None:
        """Return when the written bytes survive what the profile's ``ack`` promises."""
        await self._writes.closes.fsync(self._live)

    async def close(self) -> None:
        """The last descriptor is gone."""
        self._live.note_kernel_writes()
        self._live.handles.discard(self)
        self._close_fd()
        await self._files.closed(self._live, self)

    def close_now(self) -> bool:
        """The same where nothing has to be waited for; else False, and the handle is open as before."""
        self._live.note_kernel_writes()
        self._live.handles.discard(self)
        try:
            closed = self._files.closed_now(self._live, self)
        except TierCacheError:
            closed = False  # ``close`` tells of it
        if closed:
            self._close_fd()
        else:
            self._live.handles.add(self)
        return closed

    def close_reader(self) -> None:
        """The same for a handle that could not write: there is nothing to wait for."""
        assert not self.writable
        self._live.handles.discard(self)
        self._close_fd()
        self._files.forget(self._live, self)

    def fileno(self) -> int | None:
        """A descriptor of a local file that holds all newest bytes, or None."""
        if self._live.staged is not None:
            return None if self._live.staged.spilled else self._live.staged.fd
        return self._fd if self.attach() else None

    def lendable(self) -> int | None:
        """A descriptor of a local file that the kernel may use instead of asking us: the complete copy of a clean
        version, or the staged file for one who may write it. None where there is none."""
        live = self._live
        if live.staged is None:
            clean = self.version is not None and not self.writable
            xattrs = live.entry.xattrs
            return self._files.lendable(self.version, xattrs) if clean and self.version is not None else None
        if live.staged.spilled:
            return None
        if self.writable:
            lent = live.lent_inode == live.staged.inode
            return self._writes.stages.lending.writable(live.staged, live.key, live.entry.xattrs, lent=lent)
        # Who only reads it may have it in every state: where the kernel has it already, it takes nothing else.
        return live.staged.fd if live.lent_inode else None

    def lend(self, file_inode: int) -> None:
        """The kernel has the file that ``lendable`` gave."""
        self.lent_inode = file_inode
        if self._live.staged is not None and self.writable:
            self._live.may_be_mapped = True
            self._live.seen_mtime_ns = self._live.staged.mtime_ns
        self._close_fd()

    async def write_in_place(self) -> None:
        """Others have the inode's local file open through the kernel: what this handle writes must land in it. Changed
        (ESTALE) where that cannot be."""
        await self._writes.stages.write_in_place(self._live)

    def _close_fd(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lost() -> Changed:
    return Changed("nothing is left of the file: its engine was replaced, or the origin did not take it")
