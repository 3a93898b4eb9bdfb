"""The FUSE protocol's structures and numbers (``include/uapi/linux/fuse.h``, 7.41), and nothing else."""

from __future__ import annotations

import enum
import math
import stat
import struct
from typing import NamedTuple

from tiercache.fuse.attributes import PREFERRED_IO_BYTES, Attr, EntryOut, FileSystemSpace

MAJOR = 7
MINOR = 41


class Opcode(enum.IntEnum):
    """What the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47


class InitFlag(enum.IntFlag):
    """Features that INIT negotiates; the ones that we know of. From bit 32 on they travel in ``flags2``."""

    ASYNC_READ = 1 << 0
    ATOMIC_O_TRUNC = 1 << 3
    EXPORT_SUPPORT = 1 << 4
    BIG_WRITES = 1 << 5
    AUTO_INVAL_DATA = 1 << 12
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    ASYNC_DIO = 1 << 15
    NO_OPEN_SUPPORT = 1 << 17
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    NO_OPENDIR_SUPPORT = 1 << 24
    HANDLE_KILLPRIV_V2 = 1 << 28
    INIT_EXT = 1 << 30
    DIRECT_IO_ALLOW_MMAP = 1 << 36
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39


class SetattrField(enum.IntFlag):
    """Which fields of SETATTR are meant."""

    MODE = 1 << 0
    UID = 1 << 1
    GID = 1 << 2
    SIZE = 1 << 3
    ATIME = 1 << 4
    MTIME = 1 << 5
    ATIME_NOW = 1 << 7
    MTIME_NOW = 1 << 8
    KILL_SUIDGID = 1 << 11


class Notice(enum.IntEnum):
    """Unasked messages to the kernel."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    STORE = 4
    RESEND = 7
    """Send again what was read and not answered."""


UNIQUE_RESENT = 1 << 63
"""Set in the number of a request that is sent again, and to be set in its answer."""

FOPEN_DIRECT_IO = 1 << 0
FOPEN_KEEP_CACHE = 1 << 1
FOPEN_CACHE_DIR = 1 << 3
FOPEN_NOFLUSH = 1 << 5
FOPEN_PASSTHROUGH = 1 << 7

WRITE_FROM_PAGES = 1 << 0
WRITE_KILL_SUIDGID = 1 << 2
OPEN_KILL_SUIDGID = 1 << 0
FSYNC_DATA_ONLY = 1 << 0

IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")

INIT_IN = struct.Struct("<IIII")
INIT_IN_FLAGS2 = struct.Struct("<I")
INIT_OUT = struct.Struct("<IIIIHHIIHHII24x")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY_OUT = struct.Struct("<QQQQII")
ATTR_OUT = struct.Struct("<QII")
SETATTR_IN = struct.Struct("<IIQQQQQQIIIIIIII")
OPEN_IN = struct.Struct("<II")
OPEN_OUT = struct.Struct("<QIi")
CREATE_IN = struct.Struct("<IIII")
MKNOD_IN = struct.Struct("<IIII")
MKDIR_IN = struct.Struct("<II")
READ_IN = struct.Struct("<QQIIQII")
WRITE_IN = struct.Struct("<QQIIQII")
WRITE_OUT = struct.Struct("<II")
RELEASE_IN = struct.Struct("<QIIQ")
FLUSH_IN = struct.Struct("<QIIQ")
FSYNC_IN = struct.Struct("<QII")
RENAME_IN = struct.Struct("<Q")
RENAME2_IN = struct.Struct("<QII")
LINK_IN = struct.Struct("<Q")
SETXATTR_IN = struct.Struct("<II")
GETXATTR_IN = struct.Struct("<II")
GETXATTR_OUT = struct.Struct("<II")
STATFS_OUT = struct.Struct("<QQQQQIIII24x")
DIRENT = struct.Struct("<QQII")
FALLOCATE_IN = struct.Struct("<QQQII")
LSEEK_IN = struct.Struct("<QQII")
LSEEK_OUT = struct.Struct("<Q")
COPY_FILE_RANGE_IN = struct.Struct("<QQQQQQQ")
FORGET_IN = struct.Struct("<Q")
BATCH_FORGET_IN = struct.Struct("<II")
FORGET_ONE = struct.Struct("<QQ")
INVAL_INODE_OUT = struct.Struct("<Qqq")
INVAL_ENTRY_OUT = struct.Struct("<QII")
STORE_OUT = struct.Struct("<QQII")

BACKING_MAP = struct.Struct("<iI8x")
"""``struct fuse_backing_map``: descriptor, flags."""
IOC_BACKING_OPEN = 0x4010E501
"""``_IOW(229, 1, struct fuse_backing_map)``; the result is the backing id."""
IOC_BACKING_CLOSE = 0x4004E502
"""``_IOW(229, 2, uint32_t)``."""
BACKING_ID = struct.Struct("<I")

_WRITE_DATA_START = IN_HEADER.size + WRITE_IN.size
_NANOSECONDS = 1_000_000_000
_ALIGNMENT = 8


class Request(NamedTuple):
    """One message from the kernel."""

    opcode: int
    unique: int
    node: int
    uid: int
    gid: int
    pid: int
    body: bytes
    data: memoryview
    """What a WRITE writes: a view of the buffer that it was read into, until the request is ``kept``."""


def request_of(message: memoryview) -> Request:
    """Split a message into header, body and the data of a WRITE."""
    _, opcode, unique, node, uid, gid, pid, _, _ = IN_HEADER.unpack_from(message)
    end = _WRITE_DATA_START if opcode == Opcode.WRITE else len(message)
    return Request(opcode, unique, node, uid, gid, pid, bytes(message[IN_HEADER.size : end]), message[end:])


def is_resent(request: Request) -> bool:
    """Whether an earlier engine had this request, and did not answer it."""
    return bool(request.unique & UNIQUE_RESENT)


def number_of(request: Request) -> int:
    """The number of a request, the same when it is sent again."""
    return request.unique & ~UNIQUE_RESENT


def kept(request: Request) -> Request:
    """The request with data of its own, for one that outlives the buffer."""
    return request._replace(data=memoryview(bytes(request.data)))


def c_string(body: bytes, offset: int = 0) -> bytes:
    """The NUL-terminated bytes at ``offset``."""
    return body[offset : body.index(b"\0", offset)]


def two_strings(body: bytes, offset: int = 0) -> tuple[bytes, bytes]:
    """Two NUL-terminated strings in a row."""
    first = c_string(body, offset)
    return first, c_string(body, offset + len(first) + 1)


def _seconds(timeout_s: float) -> tuple[int, int]:
    fraction, whole = math.modf(timeout_s)
    return int(whole), int(fraction * _NANOSECONDS)


def pack_attr(attr: Attr) -> bytes:
    """``struct fuse_attr``."""
    atime_s, atime_ns = divmod(attr.atime_ns, _NANOSECONDS)
    mtime_s, mtime_ns = divmod(attr.mtime_ns, _NANOSECONDS)
    ctime_s, ctime_ns = divmod(attr.ctime_ns, _NANOSECONDS)
    unsigned = (1 << 64) - 1  # times before 1970 are negative seconds in an unsigned field
    return ATTR.pack(
        attr.node,
        attr.size_bytes,
        attr.blocks,
        atime_s & unsigned,
        mtime_s & unsigned,
        ctime_s & unsigned,
        atime_ns,
        mtime_ns,
        ctime_ns,
        attr.mode,
        attr.link_count,
        attr.uid,
        attr.gid,
        attr.device,
        PREFERRED_IO_BYTES,
        0,
    )


def pack_attr_out(attr: Attr) -> bytes:
    """``struct fuse_attr_out``."""
    return ATTR_OUT.pack(*_seconds(attr.timeout_s), 0) + pack_attr(attr)


def pack_entry_out(entry: EntryOut) -> bytes:
    """``struct fuse_entry_out``."""
    name_s, name_ns = _seconds(entry.timeout_s)
    attr_s, attr_ns = _seconds(entry.attr.timeout_s)
    return ENTRY_OUT.pack(entry.attr.node, 0, name_s, attr_s, name_ns, attr_ns) + pack_attr(entry.attr)


def pack_negative_entry(timeout_s: float) -> bytes:
    """An entry of node 0: there is no such name, and the kernel may remember that."""
    name_s, name_ns = _seconds(timeout_s)
    return ENTRY_OUT.pack(0, 0, name_s, 0, name_ns, 0) + bytes(ATTR.size)


def pack_dirent(name: bytes, *, node: int, mode: int, cookie: int) -> bytes:
    """``struct fuse_dirent`` with its padding."""
    record = DIRENT.pack(node, cookie, len(name), stat.S_IFMT(mode) >> 12) + name
    return record + bytes(-len(record) % _ALIGNMENT)


def pack_statfs(space: FileSystemSpace) -> bytes:
    """``struct fuse_statfs_out``."""
    return STATFS_OUT.pack(
        space.total_fragments,
        space.free_fragments,
        space.free_fragments,
        space.total_inodes,
        space.free_inodes,
        space.fragment_bytes,
        space.max_name_bytes,
        space.fragment_bytes,
        0,
    )
