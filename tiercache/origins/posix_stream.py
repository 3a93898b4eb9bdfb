"""A file that grows beside its name while it is written, and takes the name when its end is known."""

from __future__ import annotations

import contextlib
import os
import stat as stat_module
from collections.abc import Sequence

from tiercache.errors import Broken, IsDirectory
from tiercache.model import Key, ObjectStat, parent_of
from tiercache.origins.base import Condition, Part, Upload
from tiercache.origins.posix_attributes import object_stat
from tiercache.origins.posix_calls import copy_range, located, make_directories, show
from tiercache.origins.posix_replace import (
    check_condition,
    closing,
    finish,
    kept,
    lstat_or_none,
    put_in_place,
    sync_directory,
    temporary_path,
)


class PosixStream:
    """See ``origins.base.Stream``. Its id is the upload's: that leads to the temporary file."""

    def __init__(self, key: Key, upload: Upload, part_bytes: int) -> None:
        self._key = key
        self._upload = upload
        self._part_bytes = part_bytes
        self._inode = upload.repeating(self._begin)

    def _begin(self) -> int:
        make_directories(parent_of(self._key))
        with located(self._key) as path:
            temporary = temporary_path(path, self.id)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with closing(fd):
                return os.fstat(fd).st_ino

    @property
    def id(self) -> str:
        return self._upload.upload_id

    def part_bytes(self, number: int) -> int:
        return self._part_bytes

    def send(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._upload.repeating(lambda: self._send(part))  # noqa: B023 (called at once)

    def _send(self, part: Part) -> None:
        with located(self._key) as path, closing(self._open(path)) as fd:
            copy_range(self._upload, fd, part.offset, part.offset + part.length)

    def complete(self, size_bytes: int, condition: Condition) -> ObjectStat:
        return self._upload.repeating(lambda: self._complete(size_bytes, condition))

    def _complete(self, size_bytes: int, condition: Condition) -> ObjectStat:
        before = lstat_or_none(self._key)
        if before is not None and stat_module.S_ISDIR(before.st_mode):
            raise IsDirectory(f"{show(self._key)} is a directory")
        with located(self._key) as path:
            if before is None or before.st_ino != self._inode:  # else the answer to the rename was lost
                self._take_name(path, size_bytes, condition, before)
            after = object_stat(self._key, path)
        if after.size_bytes != size_bytes:
            raise Broken(f"{show(self._key)}: {after.size_bytes} of {size_bytes} bytes arrived")
        return after

    def _take_name(self, path: bytes, size_bytes: int, condition: Condition, before: os.stat_result | None) -> None:
        temporary = temporary_path(path, self.id)
        with closing(self._open(path)) as fd:
            found_bytes = os.fstat(fd).st_size
            if found_bytes != size_bytes:
                raise Broken(f"{show(self._key)}: {found_bytes} of {size_bytes} bytes arrived")
            finish(fd, temporary, self._upload._replace(attributes=self._upload.attributes or kept(before)))
        check_condition(self._key, condition)
        put_in_place(temporary, path, self._key, condition)
        sync_directory(os.path.dirname(path))

    def _open(self, path: bytes) -> int:
        try:
            fd = os.open(temporary_path(path, self.id), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise self._gone() from None
        if os.fstat(fd).st_ino == self._inode:
            return fd
        os.close(fd)
        raise self._gone()

    def _gone(self) -> Broken:
        """What others remove does not come back, and neither do the bytes."""
        return Broken(f"{show(self._key)}: what was sent of it is gone, somebody removed the temporary file beside it")
