"""Text and compression over an open file, which keep the rule that only an orderly close publishes."""

from __future__ import annotations

import io
from contextlib import suppress
from types import TracebackType
from typing import Any

from fsspec.compression import compr
from fsspec.core import PickleableTextIOWrapper, get_compression


class TextFile(PickleableTextIOWrapper):  # type: ignore[misc]  # fsspec has no types
    """Text over a binary file."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            discard(self.buffer)
        self.close()

    def __del__(self) -> None:
        """Leave it to the file below to be closed or discarded."""

    def __reduce__(self) -> Any:
        return TextFile, self.args


class CompressedFile(io.BufferedIOBase):
    """A codec over a binary file. Unlike the codecs' own classes, closing it closes the file below."""

    def __init__(self, codec: str, file: Any, mode: str) -> None:
        self._file = file
        self._codec_name = codec
        self._codec = compr[codec](file, mode=mode[0])
        self._ended = False
        self.mode = mode
        self.path = file.path
        self.fs = file.fs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._codec, name)

    def readable(self) -> bool:
        return "r" in self.mode

    def writable(self) -> bool:
        return "r" not in self.mode

    def seekable(self) -> bool:
        return bool(self._codec.seekable())

    def read(self, size: int | None = -1) -> bytes:
        return bytes(self._codec.read(-1 if size is None else size))

    def read1(self, size: int = -1) -> bytes:
        read = getattr(self._codec, "read1", self._codec.read)
        return bytes(read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return bytes(self._codec.readline(-1 if size is None else size))

    def write(self, data: Any) -> int:
        return int(self._codec.write(data))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._codec.seek(offset, whence))

    def tell(self) -> int:
        return int(self._codec.tell())

    def flush(self) -> None:
        # IOBase flushes once more when it closes, after the codec wrote its trailer.
        if self.writable() and not self._ended:
            self._codec.flush()

    def close(self) -> None:
        if self.closed:
            return
        self._ended = True
        try:
            self._codec.close()
        except BaseException:
            discard(self._file)
            raise
        finally:
            self._file.close()
            super().close()

    def discard(self) -> None:
        """Throw away what was written; the name keeps its old content."""
        self._ended = True
        discard(self._file)
        with suppress(ValueError):
            # The codec's trailer finds its file closed.
            self._codec.close()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and self.writable():
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        """Leave it to the file below to be closed or discarded."""

    def __reduce__(self) -> Any:
        return CompressedFile, (self._codec_name, self._file, self.mode)


def compressed(file: Any, path: str, mode: str, compression: str | None) -> Any:
    """The file with its codec in front; ``infer`` goes by the path's suffix."""
    codec = get_compression(path, compression)
    return file if codec is None else CompressedFile(codec, file, mode)


def discard(file: Any) -> None:
    """Discard a written file, below whatever layers; close a read one."""
    getattr(file, "discard", file.close)()
