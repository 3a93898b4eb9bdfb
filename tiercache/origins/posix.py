"""The file tree of this machine (HDD, NFS) as an origin: key = absolute path without the leading slash."""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stat_module
from collections.abc import Iterator

from tiercache.errors import Absent, Broken, Changed, InvalidArgument, IsDirectory, NotDirectory, Unsupported
from tiercache.model import Attributes, Key, Kind, ObjectStat, Space, is_below, parent_of
from tiercache.origins.base import LONGEST_KEY_BYTES, Capability, Condition, Source, Upload, require_length, unfinished
from tiercache.origins.posix_attributes import FILE_TYPES, UPLOAD_XATTR, apply_attributes, object_stat, stat_etag
from tiercache.origins.posix_calls import (
    EXCHANGE,
    NO_REPLACE,
    copy_bytes,
    domain_errors,
    located,
    make_directories,
    renameat2,
    show,
)
from tiercache.origins.temporary import PREFIX, temporary_name

_CAPABILITIES = (
    Capability.EMPTY_DIRECTORIES
    | Capability.SYMLINKS
    | Capability.HARD_LINKS
    | Capability.RENAME
    | Capability.EXCHANGE
    | Capability.SPECIAL_FILES
    | Capability.SET_ATTRIBUTES
    | Capability.LISTED_ATTRIBUTES
    | Capability.STORED_ATTRIBUTES
)

_READABLE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # not to hang on a FIFO


class PosixOrigin:
    """Everything under ``/``; ``write`` replaces a name by renaming a finished temporary file over it."""

    @property
    def identity(self) -> str:
        return "file:///"

    def require_key(self, key: Key) -> None:
        require_length(key, LONGEST_KEY_BYTES)

    @property
    def capabilities(self) -> Capability:
        return _CAPABILITIES

    def stat(self, key: Key) -> ObjectStat:
        try:
            with located(key) as path:
                return object_stat(key, path)
        except NotDirectory:
            raise Absent(f"{show(key)} does not exist") from None

    def list(self, directory: Key) -> Iterator[ObjectStat]:
        yield from self._children(directory, vanished_ok=False)

    def walk(self, directory: Key) -> Iterator[ObjectStat]:
        waiting = [(directory, False)]
        while waiting:
            current, vanished_ok = waiting.pop()
            for child in self._children(current, vanished_ok=vanished_ok):
                yield child
                if child.kind is Kind.DIRECTORY:
                    waiting.append((child.key, True))

    def _children(self, directory: Key, *, vanished_ok: bool) -> Iterator[ObjectStat]:
        # the names are read in one go, so that no descriptor stays open while the consumer dawdles
        try:
            with located(directory) as path:
                names = os.listdir(path)
        except Absent:
            if vanished_ok:
                return
            raise
        prefix = directory + b"/" if directory else b""
        for name in names:
            if name.startswith(PREFIX.encode()):
                continue
            try:
                child = self.stat(prefix + name)
            except Absent:  # removed meanwhile
                continue
            yield child

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        with _opened(key) as fd:
            _check_etag(key, stat_etag(os.fstat(fd)), etag)
            data = _pread_all(fd, offset, length)
            _check_etag(key, stat_etag(os.fstat(fd)), etag)  # the bytes are of this version only if it still is one
        if len(data) != length:
            raise Broken(f"{show(key)}: {length} bytes at {offset} wanted, {len(data)} there")
        return memoryview(data)

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        with located(key) as path:
            before = object_stat(key, path)
            if before.kind is Kind.DIRECTORY:
                raise IsDirectory(f"{show(key)} is a directory")
            if before.kind is not Kind.FILE or before.size_bytes > limit_bytes:
                return before, None
        return before, self.read(key, 0, before.size_bytes, before.etag)

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        before = _lstat_or_none(key)
        if before is not None and stat_module.S_ISDIR(before.st_mode):
            raise IsDirectory(f"{show(key)} is a directory")
        linked = before is not None and before.st_nlink > 1 and stat_module.S_ISREG(before.st_mode)
        if upload.in_place and linked:
            # a rename would part it from its other names, so this one case gives up atomicity; the staged
            # bytes are still there for another try, and readers see another etag
            _check_condition(key, upload.condition)
            with located(key) as path:
                _overwrite(path, upload)
        else:
            _replace(key, upload._replace(attributes=upload.attributes or _kept(before)))
        return self._checked(key, upload.source)

    def _checked(self, key: Key, source: Source) -> ObjectStat:
        with located(key) as path:
            after = object_stat(key, path)
        if after.size_bytes != source.size_bytes:
            raise Broken(f"{show(key)}: {after.size_bytes} of {source.size_bytes} bytes arrived")
        return after

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        with contextlib.suppress(Absent, NotDirectory), located(key) as path:
            os.unlink(_temporary_path(path, upload_id))

    def delete(self, key: Key, etag: str = "") -> None:
        with located(key) as path:
            if etag:
                _check_etag(key, stat_etag(os.lstat(path)), etag)
            os.unlink(path)

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        with _opened(source) as fd:
            with located(source) as path:
                before = object_stat(source, path)
            if etag:
                _check_etag(source, before.etag, etag)
            local = Source(f"/proc/self/fd/{fd}", before.size_bytes)
            _replace(target, Upload(local, before.attributes))
            _check_etag(source, stat_etag(os.fstat(fd)), before.etag)
            return self._checked(target, local)

    def rename(self, source: Key, target: Key, *, no_replace: bool = False, exchange: bool = False) -> None:
        if source != target and is_below(target, source):
            raise InvalidArgument(f"{show(source)} cannot be moved into itself")
        flags = (NO_REPLACE if no_replace else 0) | (EXCHANGE if exchange else 0)
        with located(source) as path, located(target) as target_path:
            if flags:
                renameat2(path, target_path, flags)
            else:
                os.rename(path, target_path)
        for directory in {parent_of(source), parent_of(target)}:
            with located(directory) as path:
                _sync_directory(path)

    def make_directory(self, key: Key, attributes: Attributes | None = None) -> ObjectStat:
        with located(key) as path:
            os.mkdir(path)
            if attributes is not None:
                apply_attributes(path, attributes)
            return object_stat(key, path)

    def remove_directory(self, key: Key) -> None:
        with located(key) as path:
            os.rmdir(path)

    def symlink(
        self, key: Key, target: bytes, attributes: Attributes | None = None, *, replaces: str = ""
    ) -> ObjectStat:
        with located(key) as path:
            place = _temporary_path(path, "") if replaces else path
            os.symlink(target, place)
            if attributes is not None:
                apply_attributes(place, attributes)
            if replaces:
                _put_over(place, path, key, replaces)
            return object_stat(key, path)

    def make_special(self, key: Key, kind: Kind, device: int, attributes: Attributes | None = None) -> ObjectStat:
        with located(key) as path:
            os.mknod(path, FILE_TYPES[kind] | 0o600, device)
            if attributes is not None:
                apply_attributes(path, attributes)
            return object_stat(key, path)

    def link(self, source: Key, target: Key) -> ObjectStat:
        with located(source) as path, located(target) as target_path:
            os.link(path, target_path, follow_symlinks=False)
            return object_stat(target, target_path)

    def set_attributes(self, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        with located(key) as path:
            if etag:
                _check_etag(key, stat_etag(os.lstat(path)), etag)
            apply_attributes(path, attributes)
            return object_stat(key, path)

    def space(self, key: Key) -> Space:
        while _lstat_or_none(key) is None:
            key = parent_of(key)
        with located(key) as path:
            got = os.statvfs(path)
            return Space(got.f_blocks * got.f_frsize, got.f_bavail * got.f_frsize, got.f_files, got.f_favail)

    def close(self) -> None:
        return None


@contextlib.contextmanager
def _opened(key: Key) -> Iterator[int]:
    """A descriptor of a regular file; what fails with it inside the block is the domain's error."""
    try:
        with located(key) as path:
            fd = os.open(path, _READABLE)
    except NotDirectory:
        raise Absent(f"{show(key)} does not exist") from None
    try:
        mode = os.fstat(fd).st_mode
        if stat_module.S_ISDIR(mode):
            raise IsDirectory(f"{show(key)} is a directory")
        if not stat_module.S_ISREG(mode):
            raise Unsupported(f"{show(key)} is a pipe, socket or device, which holds no bytes")
        with domain_errors(key):
            yield fd
    finally:
        os.close(fd)


def _pread_all(fd: int, offset: int, length: int) -> bytearray:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        got = os.preadv(fd, [view[done:]], offset + done)
        if not got:
            view.release()
            del data[done:]
            break
        done += got
    return data


def _check_etag(key: Key, found: str, wanted: str) -> None:
    if found != wanted:
        raise Changed(f"{show(key)} is no longer the version that was asked for")


def _lstat_or_none(key: Key) -> os.stat_result | None:
    try:
        with located(key) as path:
            return os.lstat(path)
    except Absent:
        return None


def _check_condition(key: Key, condition: Condition) -> None:
    current = _lstat_or_none(key)
    if condition.absent and current is not None:
        raise Changed(f"{show(key)} exists already")
    if condition.etag:
        _check_etag(key, "" if current is None else stat_etag(current), condition.etag)


def _kept(before: os.stat_result | None) -> Attributes | None:
    """Owner and mode of the file that a writer without attributes replaces."""
    if before is None or not stat_module.S_ISREG(before.st_mode):
        return None
    return Attributes(stat_module.S_IMODE(before.st_mode), before.st_uid, before.st_gid, mtime_ns=0)


def _temporary_path(path: bytes, upload_id: str) -> bytes:
    directory, name = os.path.split(path)
    return os.path.join(directory, os.fsencode(temporary_name(name, upload_id)))


def _replace(key: Key, upload: Upload) -> None:
    make_directories(parent_of(key))
    with located(key) as path:
        temporary = _temporary_path(path, upload.upload_id)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # an interrupted try of the same file
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with _closing(fd):
                copy_bytes(upload, fd)
                _finish(fd, temporary, upload)
            _check_condition(key, upload.condition)
            _put_in_place(temporary, path, key, upload.condition)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _sync_directory(os.path.dirname(path))


def _put_over(temporary: bytes, path: bytes, key: Key, etag: str) -> None:
    try:
        _check_condition(key, Condition(etag=etag))
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _put_in_place(temporary: bytes, path: bytes, key: Key, condition: Condition) -> None:
    if not condition.absent:
        os.rename(temporary, path)
        return
    try:
        os.link(temporary, path)  # fails if the name exists, on every filesystem with hard links
    except FileExistsError:
        raise Changed(f"{show(key)} exists already") from None
    os.unlink(temporary)


def _overwrite(path: bytes, upload: Upload) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with _closing(fd):
        # told before the first byte goes and until all are durable: the next try must know the torn file for its own
        _store_upload_id(fd, unfinished(upload.upload_id))
        os.ftruncate(fd, 0)
        copy_bytes(upload, fd)
        os.fsync(fd)
        _finish(fd, path, upload)


def _finish(fd: int, path: bytes, upload: Upload) -> None:
    """The bytes are in ``fd``: give it its attributes and make everything durable."""
    _store_upload_id(fd, upload.upload_id)
    if upload.attributes is not None:
        apply_attributes(path, upload.attributes)
    os.fsync(fd)


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(fd)


def _store_upload_id(fd: int, upload_id: str) -> None:
    with contextlib.suppress(OSError):  # a filesystem without user xattrs: recovery then goes by the etag
        os.setxattr(fd, UPLOAD_XATTR, upload_id.encode())


def _sync_directory(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems do not know it
            raise
    finally:
        os.close(fd)
