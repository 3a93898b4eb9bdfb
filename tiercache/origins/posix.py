"""The file tree of this machine (HDD, NFS) as an origin: key = absolute path without the leading slash."""

from __future__ import annotations

import contextlib
import os
import stat as stat_module
from collections.abc import Iterator

from tiercache.errors import Absent, Broken, InvalidArgument, IsDirectory, NotDirectory, Unsupported
from tiercache.model import Attributes, Capability, Key, Kind, ObjectStat, Space, is_below, parent_of
from tiercache.origins.base import LONGEST_KEY_BYTES, Condition, Source, Stream, Upload, require_length, unfinished
from tiercache.origins.posix_attributes import FILE_TYPES, apply_attributes, object_stat, stat_etag
from tiercache.origins.posix_calls import (
    EXCHANGE,
    NO_REPLACE,
    copy_bytes,
    domain_errors,
    located,
    renameat2,
    show,
)
from tiercache.origins.posix_replace import (
    check_condition,
    check_etag,
    closing,
    finish,
    kept,
    lstat_or_none,
    replace,
    store_upload_id,
    sync_directory,
    temporary_path,
)
from tiercache.origins.posix_stream import PosixStream
from tiercache.origins.temporary import PREFIX

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

PART_BYTES = 16 * 1024 * 1024
"""How much of a file that goes up while it is written is copied at a time."""

_READABLE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # not to hang on a FIFO


class PosixOrigin:
    """Everything under ``/``; ``write`` replaces a name by renaming a finished temporary file over it."""

    def __init__(self, *, part_bytes: int = PART_BYTES) -> None:
        self._part_bytes = part_bytes

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
            check_etag(key, stat_etag(os.fstat(fd)), etag)
            data = _pread_all(fd, offset, length)
            check_etag(key, stat_etag(os.fstat(fd)), etag)  # the bytes are of this version only if it still is one
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
        before = lstat_or_none(key)
        if before is not None and stat_module.S_ISDIR(before.st_mode):
            raise IsDirectory(f"{show(key)} is a directory")
        linked = before is not None and before.st_nlink > 1 and stat_module.S_ISREG(before.st_mode)
        if upload.in_place and linked:
            # a rename would part it from its other names, so this one case gives up atomicity; the staged
            # bytes are still there for another try, and readers see another etag
            check_condition(key, upload.condition)
            with located(key) as path:
                _overwrite(path, upload)
        else:
            replace(key, upload._replace(attributes=upload.attributes or kept(before)))
        return self._checked(key, upload.source)

    def stream(self, key: Key, upload: Upload, *, part_max_bytes: int) -> Stream:
        """``StreamingOrigin.stream``: the temporary file that an upload of this id would fill, filled bit by bit."""
        return PosixStream(key, upload, min(self._part_bytes, part_max_bytes))

    def _checked(self, key: Key, source: Source) -> ObjectStat:
        with located(key) as path:
            after = object_stat(key, path)
        if after.size_bytes != source.size_bytes:
            raise Broken(f"{show(key)}: {after.size_bytes} of {source.size_bytes} bytes arrived")
        return after

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        with contextlib.suppress(Absent, NotDirectory), located(key) as path:
            os.unlink(temporary_path(path, upload_id or parted_id))

    def delete(self, key: Key, etag: str = "") -> None:
        with located(key) as path:
            if etag:
                check_etag(key, stat_etag(os.lstat(path)), etag)
            os.unlink(path)

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        with _opened(source) as fd:
            with located(source) as path:
                before = object_stat(source, path)
            if etag:
                check_etag(source, before.etag, etag)
            local = Source(f"/proc/self/fd/{fd}", before.size_bytes)
            replace(target, Upload(local, before.attributes))
            check_etag(source, stat_etag(os.fstat(fd)), before.etag)
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
                sync_directory(path)

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
            place = temporary_path(path, "") if replaces else path
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
                check_etag(key, stat_etag(os.lstat(path)), etag)
            apply_attributes(path, attributes)
            return object_stat(key, path)

    def space(self, key: Key) -> Space:
        while lstat_or_none(key) is None:
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


def _put_over(temporary: bytes, path: bytes, key: Key, etag: str) -> None:
    try:
        check_condition(key, Condition(etag=etag))
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _overwrite(path: bytes, upload: Upload) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with closing(fd):
        # told before the first byte goes and until all are durable: the next try must know the torn file for its own
        store_upload_id(fd, unfinished(upload.upload_id))
        os.ftruncate(fd, 0)
        copy_bytes(upload, fd)
        os.fsync(fd)
        finish(fd, path, upload)
