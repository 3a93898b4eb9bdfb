"""Open files for reading: the C implementation of ``io`` over a cache file, or over the client's ranges."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tiercache.errors import TierCacheError, os_error

if TYPE_CHECKING:
    from tiercache.client import Reader
    from tiercache.filesystem.filesystem import TierCacheFileSystem

BUFFER_BYTES = 128 * 1024
"""What one small read fetches from the client; reads of more bypass the buffer."""

LOCAL_BUFFER_BYTES = 8 * 1024
"""The same for a file that is here whole. Small: a larger one and the 100 KB of a typical sample together pass malloc's
trim threshold, and each open would give the memory back to the kernel and fault it in again (10 µs)."""


class ReadFile(io.BufferedReader):
    """A version of an object, open for reading. Its content never changes while it is open."""

    fs: TierCacheFileSystem
    path: str
    size: int
    mode = "rb"
    blocksize = BUFFER_BYTES
    compression = None

    @property
    def full_name(self) -> str:
        """The path with its protocol."""
        return str(self.fs.unstrip_protocol(self.path))

    def info(self) -> dict[str, Any]:
        """What the filesystem says of this path now."""
        return self.fs.info(self.path)

    def readuntil(self, char: bytes = b"\n", blocks: int | None = None) -> bytes:
        """The bytes up to and including the next ``char``, or to the end of the file."""
        found: list[bytes] = []
        while part := self.read(blocks or self.blocksize):
            end = part.find(char)
            if end >= 0:
                end += len(char)
                self.seek(end - len(part), io.SEEK_CUR)
                found.append(part[:end])
                break
            found.append(part)
        return b"".join(found)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _reopen, (self.fs, self.path, self.tell())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}>"


class WholeIO(io.FileIO):
    """The raw file below a ReadFile whose bytes are all in one local file; takes over the descriptor."""

    __slots__ = ()

    def _dealloc_warn(self, source: object) -> None:
        """Some libraries leave files to the garbage collector. Like fsspec's own files, ours do not warn of it."""


class RangeIO(io.RawIOBase):
    """The raw file below a ReadFile whose bytes are not all in one cache file: each read asks the client."""

    def __init__(self, reader: Reader, path: str) -> None:
        self._reader = reader
        self._path = path
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        match whence:
            case io.SEEK_SET:
                base = 0
            case io.SEEK_CUR:
                base = self._position
            case io.SEEK_END:
                base = self._reader.size
            case _:
                raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        try:
            count = self._reader.readinto(self._position, buffer)
        except TierCacheError as error:
            raise os_error(error, self._path) from error
        self._position += count
        return count

    def readall(self) -> bytes:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        try:
            data = self._reader.pread(self._position, max(self._reader.size - self._position, 0))
        except TierCacheError as error:
            raise os_error(error, self._path) from error
        self._position += len(data)
        return bytes(data)

    def fileno(self) -> int:
        return self._reader.fileno()

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


def _reopen(fs: TierCacheFileSystem, path: str, position: int) -> Any:
    file = fs.open(path, "rb")
    file.seek(position)
    return file
