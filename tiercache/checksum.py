"""The checksum of cached bytes: xxh3_64, 8 bytes (big-endian digest) for each block, joined in block order."""

from __future__ import annotations

import xxhash

from tiercache.model import BLOCK_SIZE_BYTES

CHECKSUM_BYTES = 8


def block_checksum(data: bytes | memoryview) -> bytes:
    """The checksum of one block."""
    return xxhash.xxh3_64_digest(data)


def block_checksums(data: bytes | memoryview) -> bytes:
    """The checksums of bytes that start at a block's beginning; no bytes have no checksums."""
    view = memoryview(data)
    return b"".join(
        xxhash.xxh3_64_digest(view[start : start + BLOCK_SIZE_BYTES]) for start in range(0, len(view), BLOCK_SIZE_BYTES)
    )
