"""An open file of a mount: reads one version, or the inode's newest staged bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tiercache.cache import VersionRef
from tiercache.engine.live import LiveInode, live_entry
from tiercache.errors import ReadOnly
from tiercache.model import Entry, Key

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
        self._append = append
        self.writable = writable
        self.version = version
        """The version that a clean read returns; None while the inode has only staged bytes."""
        self._fd: int | None = None
        """The complete local file of ``version``: once open, eviction and the origin cannot touch this handle."""
        self.window: Window | None = None

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

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """Up to ``size`` bytes at ``offset``; short only at the end. Changed (ESTALE) when the rest of this handle's
        version is no longer to be had."""
        staged = self._live.staged
        if staged is not None:
            return staged.pread(size, offset)
        version = self.version
        if version is None or offset >= version.size_bytes:
            return b""
        if self._fd is not None or self.attach():
            assert self._fd is not None
            return os.pread(self._fd, size, offset)
        return await self._files.read_version(self, version, offset, min(size, version.size_bytes - offset))

    def attach(self) -> bool:
        """Open the complete local copy of this handle's version if there is one."""
        if self._fd is None and self.version is not None:
            self._fd = self._files.open_complete(self.version)
        return self._fd is not None

    def share(self, other: Handle) -> None:
        """Read the local file that ``other`` has open: it may have no name any more."""
        if other._fd is not None:
            self._fd = os.dup(other._fd)

    def use_version(self, version: VersionRef) -> None:
        """The inode's staged bytes became this clean version, or its bytes got a new name."""
        self.version = version
        self._close_fd()
        # Opened at once: these bytes are local now, and eviction must not make this handle fetch them again.
        self.attach()

    async def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write all of ``data``; waits when the staging budget is full. An append handle ignores ``offset``."""
        if not self.writable:
            raise ReadOnly("the file was not opened for writing")
        return await self._writes.write(self._live, offset, data, append=self._append)

    async def flush(self) -> None:
        """close(2) was called on one descriptor: make what was written recoverable and start its way to the origin."""
        await self._writes.flush(self._live, last_writer=self.writable and self._live.writers == 1)

    async def fsync(self, *, data_only: bool = False) -> None:
        """Return when the written bytes survive what the profile's ``ack`` promises."""
        await self._writes.fsync(self._live)

    async def close(self) -> None:
        """The last descriptor is gone."""
        self._live.handles.discard(self)
        self._close_fd()
        await self._files.closed(self._live, self)

    def fileno(self) -> int | None:
        """A descriptor of a local file that holds all newest bytes, or None."""
        if self._live.staged is not None:
            return self._live.staged.fd
        return self._fd if self.attach() else None

    def _close_fd(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
