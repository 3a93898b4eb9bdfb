"""What the kernel is told of a file: plain tuples made from catalog entries, the same for every driver."""

from __future__ import annotations

import stat
from typing import NamedTuple

from tiercache.model import Entry, Kind, Space, told_time_ns

_FILE_TYPES = {
    Kind.FILE: stat.S_IFREG,
    Kind.DIRECTORY: stat.S_IFDIR,
    Kind.SYMLINK: stat.S_IFLNK,
    Kind.FIFO: stat.S_IFIFO,
    Kind.SOCKET: stat.S_IFSOCK,
    Kind.CHARACTER_DEVICE: stat.S_IFCHR,
    Kind.BLOCK_DEVICE: stat.S_IFBLK,
}
_KINDS = {file_type: kind for kind, file_type in _FILE_TYPES.items()}

_SECTOR_BYTES = 512
_SMALLEST_FRAGMENT_BYTES = 4096
_MOST_FRAGMENTS = 2**31 - 1
"""Old tools keep block counts in 32 bits, signed."""

MAX_NAME_BYTES = 255

PREFERRED_IO_BYTES = 128 * 1024
"""``st_blksize``: what stdio and Python's buffered files take as their unit. Larger ones cost small files a mapping."""


class Attr(NamedTuple):
    """The fields of ``struct stat`` and for how long the kernel may keep them."""

    node: int
    mode: int
    """File type and permission bits."""
    size_bytes: int
    link_count: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    timeout_s: float
    device: int = 0
    """``st_rdev`` of a device file."""

    @property
    def blocks(self) -> int:
        """``st_blocks``, in sectors of 512 bytes."""
        return -(-self.size_bytes // _SECTOR_BYTES)


class EntryOut(NamedTuple):
    """A name's answer: the attributes and for how long the kernel may keep the name itself."""

    attr: Attr
    timeout_s: float


class OpenOut(NamedTuple):
    """The answer to open: a handle id and what the kernel may do with its page cache."""

    handle: int
    keep_cache: bool
    direct_io: bool
    backing_id: int = 0
    """Of a local file that the kernel reads and writes itself; 0 for none."""
    no_flush: bool = False
    """Closing a descriptor of it has nothing to wait for."""


class DirEntry(NamedTuple):
    """One line of a directory stream; ``cookie`` is where the next one starts."""

    name: bytes
    entry: EntryOut
    cookie: int


class FileSystemSpace(NamedTuple):
    """The fields of ``struct statvfs`` that we fill."""

    fragment_bytes: int
    total_fragments: int
    free_fragments: int
    total_inodes: int
    free_inodes: int
    max_name_bytes: int


class Caller(NamedTuple):
    """Who made a request."""

    uid: int
    gid: int
    pid: int
    request: int = 0
    """The kernel's number of the request, where the driver tells it."""


def file_mode(entry: Entry) -> int:
    """``st_mode`` of an entry."""
    return _FILE_TYPES[entry.kind] | (entry.mode & 0o7777)


def attr_of(entry: Entry, node: int, timeout_s: float) -> Attr:
    """Translate a catalog entry for the kernel, which knows it as ``node``."""
    size_bytes = len(entry.link_target) or entry.size_bytes if entry.kind is Kind.SYMLINK else entry.size_bytes
    return Attr(
        node=node,
        mode=file_mode(entry),
        size_bytes=size_bytes,
        link_count=entry.link_count,
        uid=entry.uid,
        gid=entry.gid,
        atime_ns=told_time_ns(entry.atime_ns or entry.mtime_ns),
        mtime_ns=told_time_ns(entry.mtime_ns),
        ctime_ns=entry.ctime_ns or entry.mtime_ns,
        timeout_s=timeout_s,
        device=entry.device,
    )


def kind_of(mode: int) -> Kind:
    """The kind of a file type; a mode without a type means a regular file, as for mknod(2)."""
    return _KINDS[stat.S_IFMT(mode) or stat.S_IFREG]


def file_system_space(space: Space) -> FileSystemSpace:
    """Count space in fragments large enough that their number fits 32 bits, as tools of that age need."""
    fragment_bytes = _SMALLEST_FRAGMENT_BYTES
    while space.total_bytes // fragment_bytes > _MOST_FRAGMENTS:
        fragment_bytes *= 2
    return FileSystemSpace(
        fragment_bytes=fragment_bytes,
        total_fragments=space.total_bytes // fragment_bytes,
        free_fragments=space.free_bytes // fragment_bytes,
        total_inodes=min(space.total_inodes, _MOST_FRAGMENTS),
        free_inodes=min(space.free_inodes, _MOST_FRAGMENTS),
        max_name_bytes=MAX_NAME_BYTES,
    )
