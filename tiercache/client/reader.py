"""Reading one version of a file: from its local copy where there is one, through the engine where there is none."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tiercache import ipc
from tiercache.errors import Broken, Changed
from tiercache.model import BLOCK_SIZE_BYTES, Entry, Key

T = TypeVar("T")

if TYPE_CHECKING:
    from tiercache.client.origin import RemoteOrigin

OPEN_ATTEMPTS: Final = 3
"""How often a file that was evicted between the engine's answer and our open is asked for again."""

STREAM_MIN_BYTES: Final = 1024 * 1024
"""What a small sequential read of a version that cannot be kept asks for; the rest serves the next reads."""

PREAD_MAX_BYTES: Final = 1 << 30
"""Linux reads less than 2 GiB at a time."""


class LocalFile:
    """An open cache file and which of its blocks hold bytes. What is resident stays so: files are never punched."""

    __slots__ = ("_blocks", "descriptor", "inode", "whole")

    def __init__(self, descriptor: int, *, inode: int, whole: bool) -> None:
        self.descriptor = descriptor
        self.inode = inode
        self.whole = whole
        self._blocks = 0

    def has(self, offset: int, length: int) -> bool:
        mask = _mask(offset, length)
        return self.whole or self._blocks & mask == mask

    def add(self, offset: int, length: int) -> None:
        """Blocks that lie wholly or partly in a range that the engine made resident."""
        self._blocks |= _mask(offset, length)

    def add_bitmap(self, bitmap: bytes | None) -> None:
        """What the catalog says; None for all."""
        if bitmap is None:
            self.whole = True
        else:
            self._blocks |= int.from_bytes(bitmap, "little")

    def pread(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes; short only when the file is."""
        data = os.pread(self.descriptor, min(length, PREAD_MAX_BYTES), offset)
        if len(data) == length:
            return data
        parts = [data]
        got = len(data)
        while data and got < length:
            data = os.pread(self.descriptor, min(length - got, PREAD_MAX_BYTES), offset + got)
            parts.append(data)
            got += len(data)
        return b"".join(parts)


def _mask(offset: int, length: int) -> int:
    first = offset // BLOCK_SIZE_BYTES
    last = -(-(offset + length) // BLOCK_SIZE_BYTES)
    return ((1 << (last - first)) - 1) << first


class Reader:
    """One version of one file, by offset. Threads may share it; a forked child may go on with it.

    It reads the same version for its whole life: Changed (ESTALE) when bytes that are not here any more cannot be had
    of that version. Other errors are the origin's.
    """

    def __init__(
        self,
        origin: RemoteOrigin,
        key: Key,
        entry: Entry,
        *,
        size_bytes: int,
        file: LocalFile | None,
        data: bytes | None = None,
    ) -> None:
        self._origin = origin
        self.key = key
        self.entry = entry
        self.size = size_bytes
        self._file = file
        self._data = data
        """The whole object, when it is small and no tier keeps it."""
        self._opened: list[LocalFile] = [file] if file is not None else []
        """Every file this reader ever opened: another thread may still read the one before."""
        self._kept = True
        """False once the engine said that this version cannot be kept: then bytes come in its answers."""
        self._id = b""
        self._told = -1
        """The block that read-ahead was last told of."""
        self._chunk = (0, b"")
        """Offset and bytes of the last streamed answer."""
        self.closed = False

    @property
    def etag(self) -> str:
        """The version's etag; empty while its bytes are staged."""
        return "" if self.entry.staged else self.entry.etag

    # -- reading ----------------------------------------------------------------------------------

    def pread(self, offset: int, length: int) -> bytes:
        """The bytes of ``[offset, offset + length)`` that lie inside the file."""
        if self.closed:
            raise ValueError("read of a closed file")
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        if self._data is not None:
            return self._data[offset : offset + length]
        file = self._holding(offset, length)
        if file is not None:
            data = self._attempt(lambda: file.pread(offset, length))
            if data is not None and len(data) == length:
                return data
            self._distrust(file)
        return self._stream(offset, length)

    def readinto(self, offset: int, buffer: Any) -> int:
        """Like ``pread`` into a writable buffer; returns the number of bytes."""
        if self.closed:
            raise ValueError("read of a closed file")
        view = memoryview(buffer).cast("B")
        length = min(len(view), self.size - offset)
        if length <= 0:
            return 0
        if self._data is None:
            file = self._holding(offset, length)
            if file is not None:
                target = view[: min(length, PREAD_MAX_BYTES)]
                got = self._attempt(lambda: os.preadv(file.descriptor, [target], offset))
                if got:
                    return got
        data = self.pread(offset, length)
        view[: len(data)] = data
        return len(data)

    def fileno(self) -> int:
        """A descriptor of a local file that holds the whole version, for mmap and sendfile; it is the reader's own.
        io.UnsupportedOperation while there is none: see ``make_whole``."""
        file = self._file
        if file is None or not file.whole:
            raise io.UnsupportedOperation("fileno: no local file holds all of it")
        return file.descriptor

    def make_whole(self) -> bool:
        """Bring in what is missing, so that ``fileno`` works; False if the version cannot be kept."""
        step = ipc.FETCH_MAX_BYTES
        for offset in range(0, self.size, step):
            if self._holding(offset, min(step, self.size - offset)) is None:
                return False
        file = self._file
        if file is None and self.size:
            return False
        if file is not None and file.has(0, self.size):
            file.whole = True
        return file is not None

    def _attempt(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except OSError:
            # A tier that fails is a tier that misses; staged bytes have no other place.
            if self.entry.staged:
                raise
            return None

    def _distrust(self, file: LocalFile) -> None:
        """The file does not give what it should: leave it to the engine, which notices and drops it."""
        if self.entry.staged:
            raise Broken(f"{self._name}: its staged file is shorter than it was")
        if self._file is file:
            self._file = None
            self._kept = False

    # -- residency --------------------------------------------------------------------------------

    def _holding(self, offset: int, length: int) -> LocalFile | None:
        """A file that holds the range now, after fetching what it lacks; None when the version cannot be kept."""
        file = self._file
        if file is not None and file.whole:
            return file
        if not self._kept:
            return None
        if file is not None and self._is_resident(file, offset, length):
            self._tell_advance(offset, length)
            return file
        return self._fetch(offset, length)

    def _is_resident(self, file: LocalFile, offset: int, length: int) -> bool:
        if file.has(offset, length):
            return True
        file.add_bitmap(self._origin.resident_blocks(self.entry.version, file.inode))
        return file.has(offset, length)

    def _fetch(self, offset: int, length: int) -> LocalFile | None:
        """Ask for the missing range block by block at least, in pieces that one request may have."""
        start = offset - offset % BLOCK_SIZE_BYTES
        end = min(self.size, -(-(offset + length) // BLOCK_SIZE_BYTES) * BLOCK_SIZE_BYTES)
        file: LocalFile | None = None
        for piece in range(start, end, ipc.FETCH_MAX_BYTES):
            piece_length = min(ipc.FETCH_MAX_BYTES, end - piece)
            current = self._file
            if current is not None and self._is_resident(current, piece, piece_length):
                file = current
                continue
            file = self._fetch_piece(piece, piece_length)
            if file is None:
                return None
        if file is not None and not self._is_resident(file, offset, length):
            # Evicted and filled anew between two pieces: the last file has the last pieces only.
            return None
        return file

    def _fetch_piece(self, offset: int, length: int) -> LocalFile | None:
        for _ in range(OPEN_ATTEMPTS):
            answer = self._ask("fetch", offset, length)
            self._told = (offset + length - 1) // BLOCK_SIZE_BYTES
            if "path" not in answer:
                self._kept = False
                return None
            file = self._file
            if file is None or file.inode != answer["inode"]:
                file = open_answered(answer, whole=False)
                if file is None:
                    continue
                self._opened.append(file)
                self._file = file
            file.add(offset, length)
            if answer["complete"]:
                file.whole = True
            return file
        return None

    def _tell_advance(self, offset: int, length: int) -> None:
        """Reads that need no request still move the read-ahead; one notice a block."""
        block = (offset + length - 1) // BLOCK_SIZE_BYTES
        if block != self._told:
            self._told = block
            self._origin.notify("advance", **self._range(offset, length))

    # -- through the engine -----------------------------------------------------------------------

    def _stream(self, offset: int, length: int) -> bytes:
        """Bytes in the engine's answers, a bounded number each."""
        start, chunk = self._chunk
        if start <= offset and offset + length <= start + len(chunk):
            return chunk[offset - start : offset - start + length]
        sequential = offset == start + len(chunk) or start <= offset < start + len(chunk)
        wanted = max(length, STREAM_MIN_BYTES) if sequential else length
        end = min(self.size, offset + wanted)
        parts = []
        for piece in range(offset, end, ipc.DATA_CHUNK_BYTES):
            data = self._ask("read", piece, min(ipc.DATA_CHUNK_BYTES, end - piece))
            parts.append(data)
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(whole) != end - offset:
            raise Broken(f"{self._name}: {len(whole)} bytes at {offset} instead of {end - offset}")
        self._chunk = (offset, whole) if len(whole) <= ipc.DATA_CHUNK_BYTES else (end, b"")
        return whole[:length]

    def _ask(self, op: str, offset: int, length: int) -> Any:
        if self.entry.staged:
            raise Changed(f"{self._name}: replaced while it was open")
        return self._origin.request(op, **self._range(offset, length))

    def _range(self, offset: int, length: int) -> dict[str, Any]:
        if not self._id:
            self._id = os.urandom(8)
        return {
            "key": self.key,
            "etag": self.entry.etag,
            "size": self.size,
            "offset": offset,
            "length": length,
            "reader": self._id,
        }

    @property
    def _name(self) -> str:
        return "/" + self.key.decode("utf-8", "backslashreplace")

    def close(self) -> None:
        """Close the local files. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for file in self._opened:
            os.close(file.descriptor)
        self._opened.clear()
        self._file = None
        self._kept = False
        if self._id:
            self._origin.notify("leave", reader=self._id)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def open_answered(answer: dict[str, Any], *, whole: bool) -> LocalFile | None:
    """Open the file that the engine named; None if it is another or none by now."""
    try:
        descriptor = os.open(answer["path"], os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(descriptor).st_ino != answer["inode"]:
        os.close(descriptor)
        return None
    return LocalFile(descriptor, inode=answer["inode"], whole=whole)
