"""The contract that every origin keeps: plain blocking calls, errors in the domain's words, no retries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from tiercache.errors import Broken, NameTooLong
from tiercache.model import Attributes, BaseVersion, Capability, Key, Kind, ObjectStat, PartedUpload, Space

T = TypeVar("T")

OBJECT_KEY_LIMIT_BYTES = 1024
"""S3's documented limit, and that of GCS and Azure."""

LONGEST_KEY_BYTES = 0xFFFF
"""For origins that set no limit: what the catalog can hold."""


def require_length(key: Key, limit_bytes: int) -> None:
    """NameTooLong for a key of more bytes."""
    if len(key) > limit_bytes:
        raise NameTooLong(f"/{key.decode('utf-8', 'backslashreplace')}: longer than the {limit_bytes} bytes of a key")


class Condition(NamedTuple):
    """When a write may replace the name: no fields = always (replace); see ``etag`` and ``absent``."""

    etag: str = ""
    """Only if the current object still has this etag (If-Match)."""
    absent: bool = False
    """Only if there is no object (If-None-Match: ``*``)."""


ALWAYS = Condition()


def unfinished(upload_id: str) -> str:
    """What stands for the upload id of a file that is being written in place, or was when that failed."""
    return f"{upload_id} unfinished"


Progress = Callable[[int], None]
"""Called with the number of further bytes sent. May raise to cancel the write."""


class Source(NamedTuple):
    """Bytes to upload: a local file, read at explicit offsets so that one may be read in parallel."""

    path: str
    size_bytes: int
    checksums: bytes = b""
    """Of its blocks (``tiercache.checksum``), where they are known: what is read to be sent is compared with them."""


class Spoiled(Broken):
    """The origin has other bytes than were sent, under this etag."""

    def __init__(self, message: str, etag: str) -> None:
        super().__init__(message)
        self.etag = etag


class Suspended(Exception):
    """To be raised by ``Progress``: end the write, but keep what a later one can go on with."""


class Resume(Protocol):
    """The memory of an upload in parts, by which a later write of the same bytes goes on where one has ended."""

    @property
    def parted(self) -> PartedUpload | None:
        """What an earlier write has begun."""
        ...

    def begun(self, parted: PartedUpload) -> None:
        """The store has begun one. Returns when that is durable; what it raises ends the write."""
        ...

    def confirmed(self, parted: PartedUpload) -> None:
        """Further parts are there. From any thread."""
        ...

    def ended(self) -> None:
        """It was completed or given up: nothing is left to go on with. From any thread."""
        ...


def directly(request: Callable[[], T]) -> T:
    """Make the request once."""
    return request()


def freely(size_bytes: int) -> None:
    """Send at once."""


class Repeating(Protocol):
    """Makes a request, again if it fails in a way that may pass."""

    def __call__(self, request: Callable[[], T], /) -> T: ...


class Upload(NamedTuple):
    """What to write, and how."""

    source: Source
    attributes: Attributes | None = None
    condition: Condition = ALWAYS
    upload_id: str = ""
    """Stored with the object."""
    in_place: bool = False
    """With Capability.HARD_LINKS, a file that has further names keeps them, and they have the bytes too; this alone is
    not atomic, and ``stat`` tells ``unfinished(upload_id)`` while it lasts and after it failed."""
    base: BaseVersion | None = None
    """The version of the same name that the bytes were made from: what is unchanged may be copied inside the store."""
    progress: Progress | None = None
    pace: Callable[[int], None] = freely
    """Called before so many bytes are sent, and returns when they may go. May raise to cancel, like ``progress``."""
    resume: Resume | None = None
    repeating: Repeating = directly
    """For the requests of a write that makes many; each may be made again."""


class Origin(Protocol):
    """A bucket, a directory or a host, addressed by keys.

    Methods block and are called from worker threads, many at once. They raise only
    ``TierCacheError`` kinds: Absent, Denied, Busy, Changed, Broken, Unsupported, InvalidName, NoSpace, Exists,
    NotDirectory, IsDirectory, NotEmpty. Each returns in bounded time (the configured timeouts).
    Retrying is the caller's affair (``origins.retry``).
    """

    @property
    def identity(self) -> str:
        """Canonical URL of the whole bucket, host or tree, endpoint included, without secrets."""
        ...

    def require_key(self, key: Key) -> None:
        """NameTooLong or InvalidName for a key that it can never hold, told without asking it: nothing is staged under
        one, since it could never go up."""
        ...

    @property
    def capabilities(self) -> Capability: ...

    def stat(self, key: Key) -> ObjectStat:
        """Describe one name, attributes included. On an object store ``key`` is a directory when anything lies
        under ``key + b"/"`` (or a marker exists): the directory wins over an object of the same name.
        Absent if neither."""
        ...

    def list(self, directory: Key) -> Iterator[ObjectStat]:
        """The direct children, in any order, one page at a time. Names without a POSIX spelling are included as
        they are, but for an empty name directly under the root, whose key would be the root's.
        Absent if there is no such directory, NotDirectory if it is a file. Raises midway rather than end early."""
        ...

    def walk(self, directory: Key) -> Iterator[ObjectStat]:
        """Every object below ``directory`` (files, symlinks, markers as DIRECTORY, POSIX directories), parents first.
        On an object store a name that is both file and directory is told as the file, beside what lies under it."""
        ...

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        """Exactly ``length`` bytes at ``offset`` of the version ``etag``; the range lies inside the object.
        Changed if the object has another etag, Absent if gone, Broken if the answer is short, long or another range."""
        ...

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        """Describe an object and fetch it in one round trip if it is at most ``limit_bytes`` long (else None)."""
        ...

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        """Replace ``key`` by the source's bytes, atomically but for ``Upload.in_place``; missing parent directories are
        made. Changed if the condition fails; on every failure nothing of it is left behind (multipart aborted,
        temporary file removed), but with ``Upload.resume``: then the parts of a large file stay after Busy, Denied and
        Suspended. The result's size is checked against the source."""
        ...

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        """Remove what an interrupted ``write`` of this id may have left: temporary files, and with ``parted_id`` the
        parts of the upload that the store knows by it. Uploads of others to the same key stay. Idempotent."""
        ...

    def delete(self, key: Key, etag: str = "") -> None:
        """Remove a file or symlink. Absent if there is none; Changed if ``etag`` is given and differs."""
        ...

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        """Copy a file inside the origin without moving its bytes through us, attributes included.
        Changed as in ``read``."""
        ...

    def rename(self, source: Key, target: Key, *, no_replace: bool = False, exchange: bool = False) -> None:
        """Atomic rename of a file or directory; Unsupported without Capability.RENAME."""
        ...

    def make_directory(self, key: Key, attributes: Attributes | None = None) -> ObjectStat:
        """Make one directory (its parent exists). On an object store: a marker object. Exists if the name is taken."""
        ...

    def remove_directory(self, key: Key) -> None:
        """Remove an empty directory (or its marker). NotEmpty, Absent, NotDirectory."""
        ...

    def symlink(
        self, key: Key, target: bytes, attributes: Attributes | None = None, *, replaces: str = ""
    ) -> ObjectStat:
        """Make a symlink. Exists, unless it ``replaces`` what has this etag; Changed if that is another one by now."""
        ...

    def make_special(self, key: Key, kind: Kind, device: int, attributes: Attributes | None = None) -> ObjectStat:
        """Make one of ``SPECIAL_KINDS``; Unsupported without Capability.SPECIAL_FILES."""
        ...

    def link(self, source: Key, target: Key) -> ObjectStat: ...

    def set_attributes(self, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        """Store mode, owner, times and xattrs of an existing name; the returned stat may carry a new etag for the
        same bytes."""
        ...

    def space(self, key: Key) -> Space:
        """Size and free space; an object store answers with large round numbers."""
        ...

    def close(self) -> None: ...


class Part(NamedTuple):
    """One stretch of an object; numbers start at 1."""

    number: int
    offset: int
    length: int


class Stream(Protocol):
    """An object that is written while its end is not known. Nothing of it shows before ``complete``, and what was sent
    stays at the store, by ``id``, until then or until ``Origin.abort_uploads(key, "", id)``. Used by one thread at a
    time."""

    @property
    def id(self) -> str:
        """The store's name for it."""
        ...

    def part_bytes(self, number: int) -> int:
        """How long the part of this number has to be, unless it is the last. NoSpace if there cannot be so many."""
        ...

    def send(self, parts: Sequence[Part]) -> None:
        """Have the store take parts of the source's file. Those that it has are not sent again: after Busy, call it
        anew. None is under way any more when it returns or raises."""
        ...

    def complete(self, size_bytes: int, condition: Condition) -> ObjectStat:
        """All parts are there: the object replaces what has its name. Changed if the condition fails."""
        ...


@runtime_checkable
class StreamingOrigin(Protocol):
    """An origin that can take an object while it is written."""

    def stream(self, key: Key, upload: Upload, *, part_max_bytes: int) -> Stream:
        """Begin one. ``upload.source`` is the file that grows, ``progress`` and ``pace`` as in a write; its size and
        condition are told at the end. Parts are no longer than ``part_max_bytes`` if the origin takes such short ones.
        Unsupported if this origin cannot, after all."""
        ...
