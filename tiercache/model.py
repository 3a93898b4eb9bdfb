"""The words of the project as types: keys, versions, entries, attributes and states."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, NewType

import xxhash

Key = bytes
"""A name inside an origin: bytes, components separated by ``/``, no leading slash; ``b""`` is the root."""

OriginId = NewType("OriginId", bytes)
"""8 bytes, a digest of the origin's identity string."""

VersionId = NewType("VersionId", bytes)
"""16 bytes, a digest of origin, exact key and etag. It names the bytes in every tier."""

BLOCK_SIZE_BYTES = 4 * 1024 * 1024
"""Unit of residency, checksum and fetch. Objects up to this size are one whole GET."""


def origin_id(identity: str) -> OriginId:
    """Digest an origin's identity string (canonical URL of bucket or host, endpoint included)."""
    return OriginId(xxhash.xxh3_64_digest(identity.encode("utf-8", "surrogateescape")))


def version_id(origin: OriginId, key: Key, etag: str) -> VersionId:
    """Name one immutable state of one object."""
    hasher = xxhash.xxh3_128(origin)
    hasher.update(len(key).to_bytes(4, "little"))
    hasher.update(key)
    hasher.update(etag.encode("utf-8", "surrogateescape"))
    return VersionId(hasher.digest())


def parent_of(key: Key) -> Key:
    """The directory that holds ``key``; the root for a top-level name."""
    return key.rpartition(b"/")[0]


def name_of(key: Key) -> bytes:
    """The last component of ``key``."""
    return key.rpartition(b"/")[2]


def join(directory: Key, name: bytes) -> Key:
    """The key of ``name`` inside ``directory``."""
    return directory + b"/" + name if directory else name


def is_below(key: Key, directory: Key) -> bool:
    """Whether ``key`` is ``directory`` itself or lies anywhere under it."""
    return not directory or key == directory or key.startswith(directory + b"/")


def has_posix_spelling(key: Key) -> bool:
    """Whether a mount can show ``key``: no empty, ``.``, ``..`` or over-long component, no NUL or newline-only name."""
    if not key:
        return True
    return all(
        part not in (b"", b".", b"..") and len(part) <= 255 and b"\0" not in part and part.strip(b"\n")
        for part in key.split(b"/")
    )


def block_count(size_bytes: int) -> int:
    """How many blocks an object of this size has."""
    return -(-size_bytes // BLOCK_SIZE_BYTES)


class Kind(enum.IntEnum):
    """What a name stands for. ABSENT is a remembered negative lookup."""

    ABSENT = 0
    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3
    FIFO = 4
    SOCKET = 5
    CHARACTER_DEVICE = 6
    BLOCK_DEVICE = 7


SPECIAL_KINDS = frozenset({Kind.FIFO, Kind.SOCKET, Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE})
"""Names without bytes, which the kernel serves itself: only a file tree has them."""


class Tier(enum.IntEnum):
    """Where a copy of a version lies; the fastest sorts first."""

    RAM = 0
    NVME = 1

    @property
    def label(self) -> str:
        """The name in metrics, logs and status."""
        return self.name.lower()


class Durability(enum.IntEnum):
    """What bytes survive: each level survives what those below it do, and more. Words in settings and answers are
    the names in lower case."""

    MEMORY = 0
    """A crash of the program and of the engine."""
    LOCAL = 1
    """A power loss too."""
    REPLICA = 2
    """The loss of this node too, by copies on others."""
    ORIGIN = 3
    """Everything that the origin survives."""

    @property
    def label(self) -> str:
        return self.name.lower()


class StagedState(enum.StrEnum):
    """Where a staged file is on its way to the origin. CLEAN is not among them: its record is gone."""

    STAGED = "staged"
    SEALED = "sealed"
    UPLOADING = "uploading"
    CONFLICT = "conflict"
    LOST = "lost"
    CANCELLED = "cancelled"
    """Unlinked, renamed or replaced while an upload may have been under way: no file, only the duty to see to it that
    the origin does not keep what that upload brought."""


class Keep(enum.StrEnum):
    """Whose bytes are to stay when others changed a file at the origin while it was changed here."""

    OURS = "ours"
    """They go up over what the origin has."""
    THEIRS = "theirs"
    """Ours are given up; of a lost file what is left of them stays in ``staging/lost``."""
    BOTH = "both"
    """Ours go up beside theirs, under another name."""


class Capability(enum.Flag):
    """What an origin can do natively; the engine works around what is missing."""

    NONE = 0
    EMPTY_DIRECTORIES = enum.auto()
    """Directories exist by themselves. Without it a directory is a key prefix (or a marker object)."""
    SYMLINKS = enum.auto()
    HARD_LINKS = enum.auto()
    RENAME = enum.auto()
    """``rename`` is one atomic step for files and directories. Without it the engine copies and deletes."""
    SPECIAL_FILES = enum.auto()
    """It holds pipes, sockets and devices."""
    EXCHANGE = enum.auto()
    """``rename(exchange=True)`` works."""
    SET_ATTRIBUTES = enum.auto()
    """``set_attributes`` works without a new upload."""
    LISTED_ATTRIBUTES = enum.auto()
    """``list`` and ``walk`` fill ``ObjectStat.attributes``."""
    CONDITIONAL_WRITE = enum.auto()
    """``write`` enforces ``Condition`` atomically; without it the check and the write are two steps."""
    STORED_ATTRIBUTES = enum.auto()
    """``write`` keeps ``attributes`` with the object."""
    READ_ONLY = enum.auto()


class Attributes(NamedTuple):
    """POSIX attributes that an origin keeps with an object.

    Times are nanoseconds since the epoch, ``mode`` is the low 12 bits.
    """

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    atime_ns: int = 0
    ctime_ns: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


_EPOCH_NS = 1
"""How the epoch itself is kept: a time of 0 means that it is not known."""


def kept_time_ns(time_ns: int) -> int:
    """A time that somebody set, as ``Attributes`` and ``Entry`` keep it."""
    return time_ns or _EPOCH_NS


def told_time_ns(time_ns: int) -> int:
    """A time that was kept, as it was set."""
    return 0 if time_ns == _EPOCH_NS else time_ns


class ObjectStat(NamedTuple):
    """What an origin says of one object.

    ``attributes`` is None where the answer does not tell them (an object store's listing): size, etag and
    ``modified_ns`` are always true. ``etag`` is an opaque non-empty string for files, ``""`` for directories.
    """

    key: Key
    kind: Kind
    size_bytes: int
    etag: str
    modified_ns: int
    attributes: Attributes | None = None
    link_target: bytes = b""
    link_count: int = 1
    file_id: int = 0
    """The origin's own inode number (POSIX), to recognise hard links; 0 elsewhere."""
    upload_id: str = ""
    """The id that our upload stored with the object, if it was ours; only from ``stat``."""
    device: int = 0
    """Which device a device file stands for (``st_rdev``)."""


class PartedUpload(NamedTuple):
    """An upload in parts that a store has begun and not completed."""

    id: str
    """The store's own: whoever does not know it is not to touch the upload."""
    part_bytes: int
    etags: Mapping[int, str] = MappingProxyType({})
    """What the store has confirmed, by the number of the part."""


class BaseVersion(NamedTuple):
    """The version at the origin that a changed file was made from, and what its blocks were."""

    etag: str
    size_bytes: int
    checksums: bytes
    """xxh3_64 of each block (``tiercache.checksum``)."""


class Space(NamedTuple):
    """What statfs reports, in bytes and in number of inodes."""

    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int


class Entry(NamedTuple):
    """One name as the catalog knows it."""

    kind: Kind
    inode: int
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    atime_ns: int = 0
    ctime_ns: int = 0
    link_count: int = 1
    checked_ns: int = 0
    """Wall clock when the origin last confirmed this; freshness is ``now - checked_ns < ttl``."""
    version: VersionId = VersionId(b"")
    etag: str = ""
    staged: int = 0
    """Id of the staged file that holds the newest bytes; 0 when clean."""
    attributes_known: bool = False
    """False while mode, owner and times are defaults, because only a listing told of the object."""
    link_target: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    device: int = 0
    """Which device a device file stands for (``st_rdev``), at most 32 bits."""
