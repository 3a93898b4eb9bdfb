"""What the catalog knows of one version: its size, its copies, its resident blocks and their checksums."""

from __future__ import annotations

from typing import NamedTuple

from tiercache.model import Key, OriginId, Tier, VersionId


class Copy(NamedTuple):
    """One file that holds bytes of a version."""

    tier: Tier
    inode: int
    ctime_ns: int
    verified_run: int
    """Run id of the engine that last verified the bytes; 0 for never."""


class VersionRecord(NamedTuple):
    """One immutable state of an object, as far as it is resident."""

    origin: OriginId
    key: Key
    etag: str
    size_bytes: int
    complete: bool
    """Every block is in and checked."""
    copies: tuple[Copy, ...] = ()
    """RAM first."""
    blocks: bytes = b""
    """Bitmap of the resident blocks (little-endian bit order) of an incomplete NVMe copy; empty when complete."""
    checksums: bytes = b""
    """xxh3_64 per block, 8 bytes each; empty when unknown."""


class Hit(NamedTuple):
    """The few fields of an entry and its version record that a hit on the first copy needs."""

    version: VersionId
    checked_ns: int
    size_bytes: int
    tier: Tier
    inode: int
    ctime_ns: int
    verified_run: int
