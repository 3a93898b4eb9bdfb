"""What is done to the files of a tier: plain blocking calls, safe from any thread, errors as OSError."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from tiercache.model import VersionId

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY_NAME = re.compile(r"[0-9a-f]{2}")
_FILE_NAME = re.compile(r"[0-9a-f]{32}")


class FileIdentity(NamedTuple):
    """What tells one state of a file from another: any write through the kernel changes ``ctime_ns``."""

    inode: int
    ctime_ns: int
    size_bytes: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_ino, status.st_ctime_ns, status.st_size)


class FoundFile(NamedTuple):
    """A file of a tier that was there when the tier was scanned."""

    identity: FileIdentity
    used_ns: int
    """The later of access and change, as far as the disk keeps them: orders the warm-up of a policy."""


def write_extent(path: str, offset: int, data: bytes | memoryview, *, size_bytes: int) -> FileIdentity:
    """Write bytes at their own offset of the sparse file of an object of ``size_bytes``, which is made if need be."""
    fd = _open_for_write(path)
    try:
        if os.fstat(fd).st_size != size_bytes:
            os.ftruncate(fd, size_bytes)
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            if not written:
                raise OSError(errno.EIO, "the disk took no bytes", path)
            offset += written
            view = view[written:]
        return FileIdentity.of(os.fstat(fd))
    finally:
        os.close(fd)


def read_extent(fd: int, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes at ``offset``; fewer only at the end of the file."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length:
        part = os.pread(fd, length - got, offset + got)
        if not part:
            break
        parts.append(part)
        got += len(part)
    return b"".join(parts)


def open_for_read(path: str) -> int:
    """A descriptor that does not follow a link and does not survive exec."""
    return os.open(path, os.O_RDONLY | _FLAGS)


def unlink_quietly(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def scan(directory: str) -> Iterator[tuple[VersionId, FoundFile]]:
    """Every file of a tier by version. Names that no tier makes are left alone and not reported."""
    with os.scandir(directory) as folders:
        for folder in folders:
            if _DIRECTORY_NAME.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                yield from _scan_folder(folder.path)


def _scan_folder(path: str) -> Iterator[tuple[VersionId, FoundFile]]:
    with os.scandir(path) as files:
        for file in files:
            if _FILE_NAME.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                status = file.stat(follow_symlinks=False)
                used_ns = max(status.st_atime_ns, status.st_ctime_ns)
                yield VersionId(bytes.fromhex(file.name)), FoundFile(FileIdentity.of(status), used_ns)


def _open_for_write(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | _FLAGS
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        return os.open(path, flags, 0o600)
