"""Reading a stretch of the local file that is being uploaded: at once, or bit by bit where memory is short."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import xxhash

from tiercache.checksum import CHECKSUM_BYTES
from tiercache.errors import Broken
from tiercache.memory import Memory, Purpose
from tiercache.model import BLOCK_SIZE_BYTES
from tiercache.origins.base import Source
from tiercache.origins.limits import Part

_STREAMED_BYTES = 256 * 1024
"""How much of a part is in memory that is too large to be there as a whole."""


class BlockChecks:
    """Compares bytes that are read for sending with the checksums of the source, block by block; not blocks of which
    only a piece is read."""

    def __init__(self, source: Source, offset: int) -> None:
        self._source = source
        self._at = offset
        self._digest: xxhash.xxh3_64 | None = None

    def update(self, data: bytes | memoryview) -> None:
        """The next bytes. Broken if a block that they complete is not as it was."""
        view = memoryview(data)
        while view and self._source.checksums:
            in_block = self._at % BLOCK_SIZE_BYTES
            if not in_block:
                self._digest = xxhash.xxh3_64()
            piece = view[: BLOCK_SIZE_BYTES - in_block]
            if self._digest is not None:
                self._digest.update(piece)
            self._at += len(piece)
            view = view[len(piece) :]
            if not self._at % BLOCK_SIZE_BYTES or self._at == self._source.size_bytes:
                self._compare()

    def _compare(self) -> None:
        number = (self._at - 1) // BLOCK_SIZE_BYTES
        expected = self._source.checksums[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]
        if self._digest is not None and self._digest.digest() != expected:
            raise Broken(f"{self._source.path} changed while it was sent: block {number} is not what it was")


def read_part(fd: int, source: Source, part: Part) -> bytes:
    """The bytes of one part. Broken if the local file is shorter than it was said to be, or not what it was."""
    data = _read(fd, source, part)
    BlockChecks(source, part.offset).update(data)
    return data


def _read(fd: int, source: Source, part: Part) -> bytes:
    data = os.pread(fd, part.length, part.offset)
    while len(data) < part.length:  # rare: an interrupted read, or a part over 2 GiB
        more = os.pread(fd, part.length - len(data), part.offset + len(data))
        if not more:
            raise Broken(f"{source.path} ended at {part.offset + len(data)} of {source.size_bytes} bytes")
        data += more
    return data


class Body(NamedTuple):
    """What to send: bytes, or a file that gives them when it is read."""

    data: bytes | PartFile
    md5: bytes


@contextmanager
def held_body(memory: Memory, fd: int, source: Source, part: Part) -> Iterator[Body]:
    """A part for sending, and the memory for it while it is sent. One that is larger than the uploads' share of the
    memory is read from the file as it goes."""
    if part.length <= memory.piece_bytes(Purpose.UPLOAD):
        with memory.held_in_thread(Purpose.UPLOAD, part.length):
            data = read_part(fd, source, part)
            yield Body(data, hashlib.md5(data, usedforsecurity=False).digest())
        return
    with memory.held_in_thread(Purpose.UPLOAD, _STREAMED_BYTES):
        file = PartFile(fd, source, part)
        digest = hashlib.md5(usedforsecurity=False)
        checks = BlockChecks(source, part.offset)
        while piece := file.read(_STREAMED_BYTES):
            digest.update(piece)
            checks.update(piece)
        file.seek(0)
        yield Body(file, digest.digest())


class PartFile(io.RawIOBase):
    """One part of an open file as a file of its own, read at explicit offsets: many may share the descriptor."""

    def __init__(self, fd: int, source: Source, part: Part) -> None:
        super().__init__()
        self._fd = fd
        self._source = source
        self._part = part
        self._at = 0

    def __len__(self) -> int:
        return self._part.length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._part.length}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Broken when the file is shorter than it was said to be."""
        left = max(0, self._part.length - self._at)
        length = left if size is None or size < 0 else min(size, left)
        data = _read(self._fd, self._source, Part(self._part.number, self._part.offset + self._at, length))
        self._at += length
        return data
