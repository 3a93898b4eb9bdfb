"""Writing a file: straight into the engine's staging directory, visible to nobody until it is published."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tiercache import ipc
from tiercache.client.connection import Connection
from tiercache.client.dirty_pages import may_be_synced
from tiercache.errors import (
    Broken,
    EngineUnreachable,
    InvalidArgument,
    NoSpace,
    TierCacheError,
    Unsupported,
    errno_of,
    os_error,
)
from tiercache.model import Entry, Key
from tiercache.units import format_size

if TYPE_CHECKING:
    from tiercache.client.origin import RemoteOrigin

_NEITHER_READ_NOR_WRITE = os.O_WRONLY | os.O_RDWR
"""An access mode of Linux (open(2), "File access mode"): a descriptor that can be synced, but not read nor written."""


class Writer:
    """A staged file that this process writes with plain system calls.

    ``close`` publishes it: it replaces the name at once on this node and goes to the origin. ``discard``, garbage
    collection, an exception in a ``with`` block and the end of the process leave the name as it was. The connection
    that it was created on is its lease: it belongs to the writer until one of these. A forked child can only close it.
    """

    def __init__(
        self, origin: RemoteOrigin, key: Key, connection: Connection, *, staged: int, path: str, size_bytes: int
    ) -> None:
        self._origin = origin
        self.key = key
        self._connection = connection
        self.staged = staged
        self.path = path
        """Where the bytes go, until it is published."""
        self._granted_bytes = size_bytes
        """The file may grow to this size before the engine must be asked."""
        self._pid = os.getpid()
        self._sent_bytes = 0
        """The file's bytes up to here went to the origin, for want of room, and are not in the staged file any more."""
        self._may_spill = True
        """False once others may read and write the staged file anywhere: then they find all of it."""
        self._sync_descriptor = -1
        self._failed = False
        """A sync failed: the bytes are suspect and must not be published."""
        self._given_out = False
        """Somebody has the descriptor and may call fsync with it, of which we are not told."""
        self.closed = False
        self.entry: Entry | None = None
        """What became of it, once it is published."""
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self.closed = True
            raise Broken(f"{self._name}: its staged file cannot be opened: {error}") from error

    # -- writing ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The descriptor. Bytes written through it directly count in the staging budget only once it is published. An
        fsync of it is kept when the file is published, for what is not written anew after it. Of a file that did not
        fit in staging it can be synced and nothing else: the staged file has holes in it."""
        self._require_open()
        if self._sent_bytes:
            if self._sync_descriptor < 0:
                self._sync_descriptor = os.open(self.path, _NEITHER_READ_NOR_WRITE | os.O_CLOEXEC)
            return self._sync_descriptor
        self._given_out = True
        self._may_spill = False
        return self._descriptor

    def write(self, data: Any) -> int:
        """Write all of ``data`` at the file position. Waits while the staging budget is full; NoSpace when in vain."""
        with memoryview(data) as view, view.cast("B") as rest:
            done, helped_at = 0, -1
            while done < len(rest):
                part = rest[done : done + ipc.STAGING_GRANT_BYTES]
                part = part[: self._room(len(part))]
                try:
                    done += os.write(self._descriptor, part)
                except OSError as error:
                    if done == helped_at:  # in vain, or the disk is not full but broken
                        raise self._local_error("write", error) from error
                    self._find_room(error, len(part))
                    helped_at = done
            return done

    def _room(self, length: int) -> int:
        """Make sure that bytes may be written at the file position; how many, if not all. The bytes before it may go to
        the origin for that."""
        position = self.tell()
        self._require_here(position)
        missing = position + length - self._granted_bytes
        if missing > 0 and self._may_spill:
            self._ask_for_room(position, min(missing, ipc.STAGING_GRANT_BYTES))
        if not self._may_spill:
            self.reserve(position + length)
        return min(length, self._granted_bytes - position)

    def _ask_for_room(self, position: int, length: int) -> None:
        try:
            answer = self._request("room", position=position, length=length)
        except Unsupported:  # an engine of an earlier release
            self._may_spill = False
            return
        self._sent_bytes = max(self._sent_bytes, answer["sent"])
        self._granted_bytes += answer["granted"]

    def _require_here(self, offset: int) -> None:
        if offset < self._sent_bytes:
            raise NoSpace(
                f"{self._name}: does not fit in staging, so its first {format_size(self._sent_bytes)} went to the "
                "origin while it was written; they can be neither read nor changed before it is closed"
            )

    def _find_room(self, error: OSError, length: int) -> None:
        """The disk refused so many bytes at the file position: the engine makes room for them. Else the error."""
        told = self._local_error("write", error)
        if not isinstance(told, NoSpace):
            raise told from error
        try:
            self._request("allocate", offset=self.tell(), length=length)
        except Unsupported:
            raise told from error

    def reserve(self, end: int) -> None:
        """Make sure that the file may grow to ``end`` bytes."""
        self._require_open()
        while end > self._granted_bytes:
            needed = min(end - self._granted_bytes, ipc.STAGING_GRANT_BYTES)
            self._granted_bytes += self._request("reserve", length=needed)

    def truncate(self, size_bytes: int) -> None:
        """Set the size; what is added reads as zeros."""
        self._require_here(size_bytes)
        self.reserve(size_bytes)
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise self._local_error("truncate", error) from error

    def readinto(self, buffer: Any) -> int:
        """Read at the file position."""
        self._require_here(self.tell())
        return os.readv(self._descriptor, [buffer])

    def pread(self, offset: int, length: int) -> bytes:
        """Bytes as they are in the staged file now."""
        self._require_open()
        self._require_here(offset)
        return os.pread(self._descriptor, length, offset)

    def tell(self) -> int:
        """The file position."""
        self._require_open()
        return os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the file position; returns the new one."""
        self._require_open()
        return os.lseek(self._descriptor, offset, whence)

    @property
    def size(self) -> int:
        """The present size in bytes."""
        return os.fstat(self._descriptor).st_size

    def raw(self) -> io.RawIOBase:
        """An unbuffered file object over this writer, to be wrapped by ``io.BufferedWriter`` or ``io.BufferedRandom``.
        Closing it does not close the writer; it works until the writer is closed."""
        return StagedIO(self)

    # -- ending -----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make what was written so far durable on this node. After a failure the file cannot be published."""
        self._require_open()
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            # The kernel forgets that these pages were dirty: a second fdatasync would succeed without them.
            self._failed = True
            raise self._local_error("sync", error) from error
        self._request("sync")

    def close(self) -> None:
        """Publish the file. Idempotent; when it raises, the name is as it was, or an upload error of a synchronous
        profile was told and the bytes are staged."""
        if self.closed:
            return
        if self._pid != os.getpid():
            self._end()
            return
        try:
            self._require_open()
            # Nothing that was synced may be less than that under its name: what is published is, as a whole.
            synced = {"sync": True} if self._given_out and may_be_synced(self._descriptor) else {}
            self.entry = ipc.entry_of(self._request("publish", **synced))
        except BaseException:
            # The connection is closed with it: what the engine has not published it discards.
            self._end(keep_connection=False)
            raise
        self._end()

    def discard(self) -> None:
        """Throw away what was written; the name stays as it was. Idempotent."""
        if self.closed:
            return
        try:
            if self._pid == os.getpid() and not self._connection.closed:
                self._request("discard")
        except TierCacheError:
            self._end(keep_connection=False)
        else:
            self._end()

    def _end(self, *, keep_connection: bool = True) -> None:
        self.closed = True
        # The number may soon be another file's.
        descriptors = self._descriptor, self._sync_descriptor
        self._descriptor = self._sync_descriptor = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)
        if self._pid != os.getpid() or not keep_connection:
            self._connection.close()
        else:
            self._origin.give_back(self._connection)

    def _request(self, op: str, **arguments: Any) -> Any:
        try:
            return self._connection.request(op, {"staged": self.staged, **arguments})
        except EngineUnreachable as error:
            raise EngineUnreachable(f"{self._name}: {error}; what was written to it is discarded") from error

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("write to a closed file")
        if self._pid != os.getpid():
            raise InvalidArgument(f"{self._name}: opened for writing before the fork; only the parent can write it")
        if self._failed:
            raise Broken(f"{self._name}: a sync failed before, its bytes cannot be trusted")

    def _local_error(self, what: str, error: OSError) -> TierCacheError:
        kind = NoSpace if errno_of(error) == errno_of(NoSpace()) else Broken
        return kind(f"{self._name}: cannot {what} its staged file: {error.strerror}")

    @property
    def _name(self) -> str:
        return "/" + self.key.decode("utf-8", "backslashreplace")

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # No request here, it could wait: the connection is the lease, and its end discards the file.
        if not getattr(self, "closed", True) and not sys.is_finalizing():
            self._end(keep_connection=False)


class StagedIO(io.RawIOBase):
    """A raw file over a writer; as a file object it raises OSError where the writer raises the domain's errors."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        self._check()
        return self._writer.fileno()

    def tell(self) -> int:
        self._check()
        return self._writer.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        return self._writer.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        self._check()
        try:
            return self._writer.readinto(buffer)
        except TierCacheError as error:
            raise os_error(error, self._writer.path) from error

    def write(self, data: Any, /) -> int:
        self._check()
        try:
            return self._writer.write(data)
        except TierCacheError as error:
            raise os_error(error, self._writer.path) from error

    def truncate(self, size: int | None = None, /) -> int:
        self._check()
        size = self._writer.tell() if size is None else size
        try:
            self._writer.truncate(size)
        except TierCacheError as error:
            raise os_error(error, self._writer.path) from error
        return size

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
