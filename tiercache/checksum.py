"""The checksum of cached bytes: xxh3_64, 8 bytes (big-endian digest) for each block, joined in block order."""

from __future__ import annotations

import os
from collections.abc import Callable

import xxhash

from tiercache.model import BLOCK_SIZE_BYTES

CHECKSUM_BYTES = 8

_PIECE_BYTES = 512 * 1024
"""How much of a file is in memory while its checksum is made: less than a block, since many are made at a time."""


def block_checksum(data: bytes | memoryview) -> bytes:
    """The checksum of one block."""
    return xxhash.xxh3_64_digest(data)


def block_checksums(data: bytes | memoryview) -> bytes:
    """The checksums of bytes that start at a block's beginning; no bytes have no checksums."""
    view = memoryview(data)
    return b"".join(
        xxhash.xxh3_64_digest(view[start : start + BLOCK_SIZE_BYTES]) for start in range(0, len(view), BLOCK_SIZE_BYTES)
    )


def joined_digest(checksums: bytes) -> bytes:
    """16 bytes that stand for the checksums of all blocks of a file."""
    return xxhash.xxh3_128_digest(checksums)


def file_checksums(fd: int, size_bytes: int, *, check: Callable[[], None] = lambda: None) -> bytes:
    """The checksums of a file's blocks; fewer when it ends before ``size_bytes``. ``check``, called before each block,
    may end it by an exception. Blocking."""
    checksums = bytearray()
    for offset in range(0, size_bytes, BLOCK_SIZE_BYTES):
        check()
        checksum = file_checksum(fd, offset, min(BLOCK_SIZE_BYTES, size_bytes - offset))
        if checksum is None:
            break
        checksums += checksum
    return bytes(checksums)


def file_checksum(fd: int, offset: int, length: int) -> bytes | None:
    """The checksum of a block that lies in a file; None when the file ends before it does. Blocking."""
    digest = xxhash.xxh3_64()
    piece = memoryview(bytearray(min(length, _PIECE_BYTES)))
    end = offset + length
    while offset < end:
        got = os.preadv(fd, [piece[: end - offset]], offset)
        if not got:
            return None
        digest.update(piece[:got])
        offset += got
    return digest.digest()
