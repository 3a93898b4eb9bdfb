"""Attributes of the POSIX origin: lstat and xattrs as ObjectStat, and back."""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stat_module

from tiercache.model import Attributes, Key, Kind, ObjectStat, told_time_ns

UPLOAD_XATTR = b"user.tiercache-upload"
"""Names the upload that wrote the file, as the object metadata of the same name does in an object store."""

KINDS = {
    stat_module.S_IFREG: Kind.FILE,
    stat_module.S_IFDIR: Kind.DIRECTORY,
    stat_module.S_IFLNK: Kind.SYMLINK,
    stat_module.S_IFIFO: Kind.FIFO,
    stat_module.S_IFSOCK: Kind.SOCKET,
    stat_module.S_IFCHR: Kind.CHARACTER_DEVICE,
    stat_module.S_IFBLK: Kind.BLOCK_DEVICE,
}
"""What each file type is here: all that Linux has."""

FILE_TYPES = {kind: file_type for file_type, kind in KINDS.items()}

_VISIBLE = b"user."
_NO_XATTRS = frozenset({errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENODATA, errno.ELOOP})


def stat_etag(status: os.stat_result) -> str:
    """The version of a POSIX file: inode number, mtime and size."""
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def object_stat(key: Key, path: bytes) -> ObjectStat:
    """Describe ``path`` without following a symlink. OSError as lstat."""
    status = os.lstat(path)
    kind = KINDS[stat_module.S_IFMT(status.st_mode)]
    xattrs, upload_id = read_xattrs(path) if kind is not Kind.SYMLINK else ((), "")
    attributes = Attributes(
        stat_module.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
        status.st_atime_ns,
        status.st_ctime_ns,
        xattrs,
    )
    return ObjectStat(
        key,
        kind,
        status.st_size if kind in (Kind.FILE, Kind.SYMLINK) else 0,
        "" if kind is Kind.DIRECTORY else stat_etag(status),
        status.st_mtime_ns,
        attributes,
        os.readlink(path) if kind is Kind.SYMLINK else b"",
        status.st_nlink,
        status.st_ino,
        upload_id,
        status.st_rdev if kind in (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE) else 0,
    )


def read_xattrs(path: bytes) -> tuple[tuple[tuple[bytes, bytes], ...], str]:
    """The user's extended attributes, sorted by name, and our upload id."""
    found: list[tuple[bytes, bytes]] = []
    upload_id = ""
    for text in _names(path):
        name = os.fsencode(text)
        if not name.startswith(_VISIBLE):
            continue
        try:
            value = os.getxattr(path, name, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_XATTRS:  # removed meanwhile, or not ours to read
                continue
            raise
        if name == UPLOAD_XATTR:
            upload_id = value.decode("utf-8", "replace")
        else:
            found.append((name, value))
    return tuple(sorted(found)), upload_id


def _names(path: bytes) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return []
        raise


def apply_attributes(path: bytes, attributes: Attributes) -> None:
    """Set owner, mode, xattrs and times, only where they differ; zero times are left as they are."""
    status = os.lstat(path)
    is_link = stat_module.S_ISLNK(status.st_mode)
    if (status.st_uid, status.st_gid) != (attributes.uid, attributes.gid):
        os.chown(path, attributes.uid, attributes.gid, follow_symlinks=False)
        status = os.lstat(path)  # chown may clear set-user-id
    if not is_link:
        if stat_module.S_IMODE(status.st_mode) != attributes.mode & 0o7777:
            os.chmod(path, attributes.mode & 0o7777)
        _apply_xattrs(path, attributes.xattrs)
    if attributes.mtime_ns or attributes.atime_ns:
        times = (
            told_time_ns(attributes.atime_ns or status.st_atime_ns),
            told_time_ns(attributes.mtime_ns or status.st_mtime_ns),
        )
        if times != (status.st_atime_ns, status.st_mtime_ns):
            os.utime(path, ns=times, follow_symlinks=False)


def _apply_xattrs(path: bytes, wanted: tuple[tuple[bytes, bytes], ...]) -> None:
    current = dict(read_xattrs(path)[0])
    for name, value in wanted:
        if current.get(name) != value:
            os.setxattr(path, name, value)
    for name in current.keys() - dict(wanted).keys():
        with contextlib.suppress(FileNotFoundError):
            os.removexattr(path, name)
