"""System calls of the POSIX origin: paths of keys, renameat2, copying, and errno turned into the domain's errors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Iterator

from tiercache import errors
from tiercache.model import Key, parent_of
from tiercache.origins.base import Upload

NO_REPLACE = 1
EXCHANGE = 2

LONGEST_PATH_BYTES = 3840
"""Less than the kernel's limit: a temporary name beside the last component may be longer than it."""

_AT_FDCWD = -100
_CHUNK_BYTES = 4 * 1024 * 1024

_ERRORS: dict[int, type[errors.TierCacheError]] = {
    errno.ENOENT: errors.Absent,
    errno.EEXIST: errors.Exists,
    errno.ENOTDIR: errors.NotDirectory,
    errno.EISDIR: errors.IsDirectory,
    errno.ENOTEMPTY: errors.NotEmpty,
    errno.EACCES: errors.Denied,
    errno.EPERM: errors.Denied,
    errno.EROFS: errors.ReadOnly,
    errno.ENOSPC: errors.NoSpace,
    errno.EDQUOT: errors.NoSpace,
    errno.EFBIG: errors.NoSpace,
    errno.E2BIG: errors.NoSpace,
    errno.ENAMETOOLONG: errors.NameTooLong,
    errno.EILSEQ: errors.InvalidName,
    errno.EINVAL: errors.InvalidArgument,
    errno.EXDEV: errors.CrossOrigin,
    errno.EOPNOTSUPP: errors.Unsupported,
    errno.ENOSYS: errors.Unsupported,
    errno.EMLINK: errors.Unsupported,
    errno.ENODATA: errors.NoAttribute,
    errno.ESTALE: errors.Changed,
    errno.ELOOP: errors.Unsupported,
    errno.EAGAIN: errors.Busy,
    errno.EBUSY: errors.Busy,
    errno.EINTR: errors.Busy,
    errno.EMFILE: errors.Busy,
    errno.ENFILE: errors.Busy,
    errno.ENOMEM: errors.Busy,
    errno.ETIMEDOUT: errors.Busy,
    errno.ECONNRESET: errors.Busy,
    errno.ENETUNREACH: errors.Busy,
    errno.EHOSTUNREACH: errors.Busy,
    errno.EHOSTDOWN: errors.Busy,
}


def show(key: Key) -> str:
    """The path of ``key`` for a message."""
    return "/" + os.fsdecode(key)


def path_of(key: Key) -> bytes:
    """The absolute path of ``key``. InvalidName if it could leave the tree or no path can spell it."""
    if key:
        for part in key.split(b"/"):
            if part in (b"", b".", b"..") or b"\0" in part:
                raise errors.InvalidName(f"{os.fsdecode(key)!r} is not a path that a directory can hold")
    return b"/" + key


@contextlib.contextmanager
def located(key: Key) -> Iterator[bytes]:
    """A path of ``key`` for system calls inside the block, whose OSErrors become the domain's errors.

    The kernel takes paths of up to 4,095 bytes, but a tree may be deeper: a longer path starts at a descriptor of a
    directory on the way, which the block holds open.
    """
    with domain_errors(key), contextlib.ExitStack() as held:
        path = path_of(key)
        while len(path) > LONGEST_PATH_BYTES:
            cut = path.rindex(b"/", 0, LONGEST_PATH_BYTES)
            fd = os.open(path[:cut], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, fd)
            path = b"/proc/self/fd/%d/%s" % (fd, path[cut + 1 :])
        yield path


def make_directories(key: Key) -> None:
    """Make a directory and what is missing above it; fine if it is there."""
    try:
        with located(key) as path:
            os.makedirs(path, exist_ok=True)
    except errors.Absent:  # what is too long for one path is reached once there is something to start from
        make_directories(parent_of(key))
        with located(key) as path:
            os.makedirs(path, exist_ok=True)


@contextlib.contextmanager
def domain_errors(key: Key) -> Iterator[None]:
    """Turn an OSError into the domain's error of the same meaning; an unknown errno is Broken."""
    try:
        yield
    except OSError as error:
        raise classify(error, key) from error


def classify(error: OSError, key: Key) -> errors.TierCacheError:
    """The domain's error for an OSError about ``key``."""
    kind = _ERRORS.get(error.errno or 0, errors.Broken)
    return kind(f"/{os.fsdecode(key)}: {error.strerror or error}")


def renameat2(source: bytes, target: bytes, flags: int) -> None:
    """rename(2) with RENAME_NOREPLACE or RENAME_EXCHANGE, which Python's os module lacks."""
    call = _libc().renameat2
    if call(_AT_FDCWD, source, _AT_FDCWD, target, flags) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.EINVAL:  # "into itself" was refused before, so the filesystem does not know the flag
        number = errno.EOPNOTSUPP
    raise OSError(number, os.strerror(number), source, None, target)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    path = ctypes.c_char_p
    libc.renameat2.argtypes = [ctypes.c_int, path, ctypes.c_int, path, ctypes.c_uint]
    return libc


def copy_bytes(upload: Upload, target_fd: int) -> None:
    """Copy the whole source file into ``target_fd``; in the kernel (or by sharing extents) where that works."""
    copy_range(upload, target_fd, 0, upload.source.size_bytes)


def copy_range(upload: Upload, target_fd: int, offset: int, end: int) -> None:
    """The same for what lies between two offsets, to the same place."""
    source = upload.source
    source_fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy = _copy_in_kernel
        while offset < end:
            wanted = min(_CHUNK_BYTES, end - offset)
            upload.pace(wanted)
            try:
                moved = copy(source_fd, target_fd, offset, wanted)
            except OSError as error:
                if copy is _copy_through_us or error.errno not in _NO_KERNEL_COPY:
                    raise
                copy = _copy_through_us
                continue
            if not moved:
                raise errors.Broken(f"{source.path} ended at {offset} of {end} bytes")
            offset += moved
            if upload.progress is not None:
                upload.progress(moved)
    finally:
        os.close(source_fd)


_NO_KERNEL_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM})


def _copy_in_kernel(source_fd: int, target_fd: int, offset: int, wanted: int) -> int:
    return os.copy_file_range(source_fd, target_fd, wanted, offset, offset)


def _copy_through_us(source_fd: int, target_fd: int, offset: int, wanted: int) -> int:
    data = memoryview(os.pread(source_fd, wanted, offset))
    done = 0
    while done < len(data):
        done += os.pwrite(target_fd, data[done:], offset + done)
    return done
