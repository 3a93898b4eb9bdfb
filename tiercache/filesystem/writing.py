"""Open files for writing: the C implementation of ``io`` over the staged file, published when it is closed."""

from __future__ import annotations

import io
import os
import sys
import warnings
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fsspec.core import OpenFile

from tiercache.errors import TierCacheError, os_error

if TYPE_CHECKING:
    from tiercache.client import Writer
    from tiercache.filesystem.filesystem import TierCacheFileSystem

    Buffered = io.BufferedWriter
else:
    Buffered = object

BUFFER_BYTES = 128 * 1024
"""Small writes are gathered to this size; larger ones go straight to the staged file."""


class Publishing(Buffered):
    """What every written file does: nothing of it is visible until ``close``, and nothing after ``discard``.

    The name keeps its old content when the block of ``with`` raises, when the file is never closed, and when the
    process dies.
    """

    fs: TierCacheFileSystem
    path: str
    blocksize = BUFFER_BYTES
    compression = None
    autocommit = True
    _mode: str
    _writer: Writer
    _pid: int
    _pending = False
    """Closed by the caller, kept for the end of the transaction."""

    def begin(self, fs: TierCacheFileSystem, path: str, mode: str, writer: Writer, *, autocommit: bool) -> None:
        """Tie a fresh file object to its staged file."""
        self.fs = fs
        self.path = path
        self._mode = mode
        self.autocommit = autocommit
        self._writer = writer
        self._pid = os.getpid()

    @property
    def mode(self) -> str:
        """As given to ``open``."""
        return self._mode

    @property
    def size(self) -> int:
        """Bytes in the staged file, buffered ones not counted."""
        return self._writer.size

    @property
    def full_name(self) -> str:
        """The path with its protocol."""
        return str(self.fs.unstrip_protocol(self.path))

    def fileno(self) -> int:
        """The staged file's descriptor; what was written before is in it. An fsync of it survives a power loss from
        the moment on at which the file is closed."""
        self.flush()
        return super().fileno()

    def close(self) -> None:
        """Publish what was written, or in a transaction keep it for the commit."""
        if self.closed:
            return
        if self._pid != os.getpid():
            # A forked copy: the file belongs to the parent, and so does what is in the buffer.
            self._close_raw()
            return
        if _block_raised():
            self.discard()
            return
        try:
            self.flush()
        except BaseException:
            self.discard()
            raise
        self._close_raw()
        if self.autocommit:
            self._publish()
        else:
            self._pending = True

    def commit(self) -> None:
        """Publish a file of a transaction; one that was discarded stays so."""
        if not self.closed:
            self.close()
        if self._pending:
            self._pending = False
            self._publish()

    def discard(self) -> None:
        """Throw away what was written; the name keeps its old content."""
        if self.closed and not self._pending:
            return
        self._pending = False
        self._close_raw()
        if self._pid == os.getpid():
            self._writer.discard()

    def _publish(self) -> None:
        try:
            self._writer.close()
        except TierCacheError as error:
            raise os_error(error, self.path) from error

    def _close_raw(self) -> None:
        # The raw file first: a buffered one whose raw file is closed counts as closed and does not flush.
        self.raw.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if not hasattr(self, "_writer") or self.closed:
            return
        if self._pid == os.getpid():
            warnings.warn(f"{self!r} was never closed: it is discarded", ResourceWarning, source=self, stacklevel=2)
        with suppress(Exception):
            self.discard()

    def __reduce__(self) -> Any:
        raise TypeError("a file that is open for writing cannot be pickled")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}>"


class WriteFile(Publishing, io.BufferedWriter):
    """Modes ``wb``, ``xb`` and ``ab``."""


class UpdateFile(Publishing, io.BufferedRandom):  # type: ignore[misc, override]  # two bases have the same methods
    """Modes with ``+``."""


def _block_raised() -> bool:
    """Whether fsspec's OpenFile closes us because the block of its ``with`` raised.

    It drops the exception before it calls ``close``, so that only its frame knows. That an exception is being handled
    is not enough: an ``except`` block may write and close a file of its own.
    """
    if sys.exc_info()[0] is None:
        return False
    frame = sys._getframe(2)
    for _ in range(6):
        if frame.f_code is OpenFile.__exit__.__code__:
            return any(argument is not None for argument in frame.f_locals.get("args", ()))
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
