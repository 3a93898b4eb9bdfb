"""How a file of the POSIX origin takes a name: a temporary one beside it is finished, then renamed over it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stat_module
from collections.abc import Iterator

from tiercache.errors import Absent, Changed
from tiercache.model import Attributes, Key, parent_of
from tiercache.origins.base import Condition, Upload
from tiercache.origins.posix_attributes import UPLOAD_XATTR, apply_attributes, stat_etag
from tiercache.origins.posix_calls import copy_bytes, located, make_directories, show
from tiercache.origins.temporary import temporary_name


def check_etag(key: Key, found: str, wanted: str) -> None:
    if found != wanted:
        raise Changed(f"{show(key)} is no longer the version that was asked for")


def lstat_or_none(key: Key) -> os.stat_result | None:
    try:
        with located(key) as path:
            return os.lstat(path)
    except Absent:
        return None


def check_condition(key: Key, condition: Condition) -> None:
    current = lstat_or_none(key)
    if condition.absent and current is not None:
        raise Changed(f"{show(key)} exists already")
    if condition.etag:
        check_etag(key, "" if current is None else stat_etag(current), condition.etag)


def kept(before: os.stat_result | None) -> Attributes | None:
    """Owner and mode of the file that a writer without attributes replaces."""
    if before is None or not stat_module.S_ISREG(before.st_mode):
        return None
    return Attributes(stat_module.S_IMODE(before.st_mode), before.st_uid, before.st_gid, mtime_ns=0)


def temporary_path(path: bytes, upload_id: str) -> bytes:
    directory, name = os.path.split(path)
    return os.path.join(directory, os.fsencode(temporary_name(name, upload_id)))


def replace(key: Key, upload: Upload) -> None:
    make_directories(parent_of(key))
    with located(key) as path:
        temporary = temporary_path(path, upload.upload_id)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # an interrupted try of the same file
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with closing(fd):
                copy_bytes(upload, fd)
                finish(fd, temporary, upload)
            check_condition(key, upload.condition)
            put_in_place(temporary, path, key, upload.condition)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        sync_directory(os.path.dirname(path))


def put_in_place(temporary: bytes, path: bytes, key: Key, condition: Condition) -> None:
    if not condition.absent:
        os.rename(temporary, path)
        return
    try:
        os.link(temporary, path)  # fails if the name exists, on every filesystem with hard links
    except FileExistsError:
        raise Changed(f"{show(key)} exists already") from None
    os.unlink(temporary)


def finish(fd: int, path: bytes, upload: Upload) -> None:
    """The bytes are in ``fd``: give it its attributes and make everything durable."""
    store_upload_id(fd, upload.upload_id)
    if upload.attributes is not None:
        apply_attributes(path, upload.attributes)
    os.fsync(fd)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def store_upload_id(fd: int, upload_id: str) -> None:
    with contextlib.suppress(OSError):  # a filesystem without user xattrs: recovery then goes by the etag
        os.setxattr(fd, UPLOAD_XATTR, upload_id.encode())


def sync_directory(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems do not know it
            raise
    finally:
        os.close(fd)
