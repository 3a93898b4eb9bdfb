"""One staged file, open for as long as somebody reads or writes it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

from tiercache.errors import Lost, NoSpace, Unsupported
from tiercache.staging.disk import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, Disk, disk_error, told
from tiercache.staging.room import Room
from tiercache.units import format_size


class StagedFile:
    """Plain blocking calls on one descriptor. Made by ``Staging``, shared by all users of the same id in the engine.

    The descriptor may rest: it is closed while nobody is likely to use it (so that thousands of files can wait for
    their upload) and opened again at the next use.
    """

    def __init__(
        self,
        staged_id: int,
        path: str,
        disk: Disk,
        room: Room,
        *,
        fd: int = -1,
        name_number: int = 0,
        on_open: Callable[[StagedFile], None],
    ) -> None:
        self.id = staged_id
        self.path = path
        self.suspect = False
        """An fsync failed: the kernel forgot that bytes are unwritten, so a later success means nothing."""
        self.spilled = False
        """It goes to the origin while it is written."""
        self.gone_bytes = 0
        """The bytes before this went to the origin, or are on their way, and their place becomes a hole: they can be
        neither read nor changed here."""
        self.ended = False
        """All of a spilled file is on its way: nothing may be written to it."""
        self.name_number = name_number
        """How many names the directory had got when this one was made; 0 for one that an earlier run made."""
        self._fd = fd
        self._disk = disk
        self._room = room
        self._on_open = on_open
        self._holders = 0
        self._closing = False
        self._replaced_fds: list[int] = []
        """Descriptors from before ``detach`` that are held."""

    @property
    def fd(self) -> int:
        """The descriptor, valid until the next call that lets it rest. Lost if the file is gone."""
        if self._fd < 0:
            self._reopen()
        return self._fd

    def _reopen(self) -> None:
        self._must_be_staged()
        try:
            self._fd = self._disk.open(self.path)
        except FileNotFoundError:
            raise self._gone() from None
        except OSError as error:
            raise disk_error("opening a staged file", error) from error
        self._on_open(self)

    def _must_be_staged(self) -> None:
        if self._closing:
            raise Lost(f"{self.path}: is no longer staged")

    def _gone(self) -> Lost:
        return Lost(f"{self.path}: the staged file is gone")

    def status(self) -> os.stat_result:
        """What the disk tells of it now, whoever wrote it. A descriptor that rests goes on resting. Lost if the file is
        gone."""
        if self._fd >= 0:
            return os.fstat(self._fd)
        self._must_be_staged()
        try:
            return os.stat(self.path)
        except FileNotFoundError:
            raise self._gone() from None

    @property
    def size_bytes(self) -> int:
        """The size now, whoever wrote it."""
        return self.status().st_size

    @property
    def mtime_ns(self) -> int:
        """Time of the last change of the bytes, whoever made it."""
        return self.status().st_mtime_ns

    @property
    def allocated_bytes(self) -> int:
        """What it takes on the disk: a hole costs nothing."""
        status = self.status()
        return min(status.st_size, status.st_blocks * 512)

    @property
    def inode(self) -> int:
        return self.status().st_ino

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write all of ``data`` at ``offset``. NoSpace, Broken."""
        self.require_here(offset)

        def write() -> int:
            with told("writing a staged file"):
                self._disk.write(self.fd, data, offset)
            return len(data)

        return self._room.found(write, len(data))

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, short only at the end. NoSpace for bytes that are gone."""
        self.require_here(offset)
        with told("reading a staged file"):
            return os.pread(self.fd, size, offset)

    def truncate(self, size_bytes: int) -> None:
        """Set the size. NoSpace, Broken."""
        self.require_here(size_bytes)
        with told("resizing a staged file"):
            self._disk.truncate(self.fd, size_bytes)

    def allocate(self, mode: int, offset: int, length: int) -> None:
        """fallocate(2): room for a range, a hole, or zeros, by ``mode``. Unsupported, NoSpace, Broken."""
        self.require_here(offset)
        self._allocate(mode, offset, length)

    def _allocate(self, mode: int, offset: int, length: int) -> None:
        def allocate() -> None:
            try:
                self._disk.allocate(self.fd, mode, offset, length)
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                    raise Unsupported("the disk of the staging directory cannot allocate that way") from error
                raise disk_error("allocating room in a staged file", error) from error

        self._room.found(allocate, length)

    def give_back(self, offset: int, length: int) -> None:
        """Let the disk have the room of a range that is gone: it becomes a hole. Unsupported, Broken."""
        self._allocate(FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, offset, length)

    def detach(self, path: str) -> int:
        """The same for all that is gone, where others may have the file open: they keep it as it is, and what goes on
        has no name that anybody could open. ``path`` is free, for a moment. The new descriptor. NoSpace, Broken."""
        size_bytes, offset = self.size_bytes, self.gone_bytes
        with told("parting with what went to the origin"):
            fd = self._disk.create(path)
            try:
                self._disk.unlink(path)
                self._disk.truncate(fd, size_bytes)
                while offset < size_bytes:
                    done = self._disk.copy_range(self.fd, fd, offset, offset, size_bytes - offset)
                    if not done:
                        raise OSError(errno.EIO, "the staged file ended before its end")
                    offset += done
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self.path)
            except BaseException:
                os.close(fd)
                raise
        self._replaced_fds.append(self._fd)
        self._fd = fd
        self._close_replaced()
        return fd

    def require_whole(self) -> None:
        """NoSpace where bytes are gone."""
        self.require_here(0)

    def require_here(self, offset: int) -> None:
        """NoSpace for bytes that are gone."""
        if offset < self.gone_bytes:
            raise NoSpace(
                f"the file does not fit in staging, so its first {format_size(self.gone_bytes)} went to the origin "
                "while it was written; they can be neither read nor changed before it is closed"
            )

    def fsync(self) -> None:
        """Make the bytes durable. Lost when that fails, now and at every later call."""
        if self.suspect:
            raise self.distrust()
        try:
            self._disk.sync_data(self.fd)
        except OSError as error:
            self.suspect = True
            raise self.distrust() from disk_error("fsync", error)

    def distrust(self) -> Lost:
        """The error that tells of a failed fsync."""
        return Lost(f"{self.path}: an earlier fsync failed, so written bytes may be missing; write the file anew")

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """The descriptor for a worker thread: it stays open until the block ends, whatever becomes of the file."""
        fd = self.fd
        self._holders += 1
        try:
            yield fd
        finally:
            self._holders -= 1
            self._close_replaced()
            if self._closing and not self._holders:
                self._close()

    def is_written_elsewhere(self, *, while_held: bool = True) -> bool:
        """Whether another process can write to the file: it has it open, or mapped. ``while_held`` as long as we use it
        ourselves, which hides others; False where the filesystem does not tell."""
        if not os.path.exists(self.path):
            return False  # gone, as its upload will tell; what we have open is all that is left
        if not self.rest():
            return while_held
        try:
            return self._disk.has_writer(self.path)
        except OSError:
            return False

    def rest(self) -> bool:
        """Close the descriptor until the next use; False while a worker thread uses it, or nothing else leads to the
        file."""
        if self._holders or self.spilled:
            return False
        self._close()
        return True

    def close(self) -> None:
        """Close the descriptor for good, as soon as no worker thread uses it. Idempotent."""
        self._closing = True
        if not self._holders:
            self._close()

    def _close_replaced(self) -> None:
        while self._replaced_fds and not self._holders:
            os.close(self._replaced_fds.pop())

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
