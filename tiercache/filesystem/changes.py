"""Changing names: directories, removal, moves and copies inside the origins."""

from __future__ import annotations

import time
from glob import has_magic
from typing import Any

from tiercache.client import RemoteOrigin
from tiercache.errors import Absent, Exists, NotDirectory, TierCacheError
from tiercache.filesystem.base import builtin_error, raising
from tiercache.filesystem.names import NamesFileSystem, ends_as_directory
from tiercache.model import Capability, Entry, Key, Kind, parent_of

COPY_BYTES = 4 * 1024 * 1024
"""Bytes moved at a time where they have to pass through this process."""


class ChangesFileSystem(NamesFileSystem):
    """The writing half of the names. A directory that is a prefix needs no making: it is there while used."""

    # -- directories ------------------------------------------------------------------------------

    def mkdir(self, path: Any, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip(path)
        origin, key = self._locate_or_make_bucket(path, create_parents=create_parents, **kwargs)
        if not key or not _has_directories(origin):
            return
        with raising(path):
            try:
                origin.mkdir(key)
            except (Absent, NotDirectory):
                if not create_parents or not parent_of(key):
                    raise
                self._make_parents(origin, key)
                origin.mkdir(key)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        path = self._strip(path)
        origin, key = self._locate(path)
        if not key or not _has_directories(origin):
            return
        with raising(path):
            if not exist_ok and _find(origin, key) is not None:
                raise Exists(f"{path}: exists already")
            _make_directories(origin, key)

    def rmdir(self, path: Any) -> None:
        path = self._strip(path)
        origin, key = self._locate(path)
        with raising(path):
            origin.rmdir(key)

    def _make_parents(self, origin: RemoteOrigin, key: Key) -> None:
        if _has_directories(origin):
            _make_directories(origin, parent_of(key))

    def _locate_or_make_bucket(self, path: str, **kwargs: Any) -> tuple[RemoteOrigin, Key]:
        head, rest = self._place.split(path)
        if self.target_protocol and head and not rest and head not in self._roots:
            # The only name that is no key: a bucket is the target filesystem's affair.
            self._target().mkdir(head, **kwargs)
        return self._locate(path)

    # -- removal ----------------------------------------------------------------------------------

    def rm_file(self, path: Any) -> None:
        path = self._strip(path)
        origin, key = self._locate(path)
        with raising(path):
            origin.unlink(key)

    def _rm(self, path: Any) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and directories if ``recursive``. If a name is missing, nothing is removed."""
        given = [self._strip(item) for item in (path if isinstance(path, list | tuple | set) else [path])]
        if maxdepth is not None:
            self._rm_expanded(given, maxdepth)
            return
        names = [name for item in given for name in self._literal_or_matches(item)]
        for name, entry in [(name, self._entry(name)) for name in names]:
            self._rm_one(name, entry, recursive=recursive)

    def _rm_one(self, path: str, entry: Entry, *, recursive: bool) -> None:
        origin, key = self._locate(path)
        with raising(path):
            if entry.kind is not Kind.DIRECTORY:
                origin.unlink(key)
                return
            if not recursive:
                raise IsADirectoryError(f"{path} is a directory: set recursive=True to remove it")
            origin.remove_tree(key)

    def _rm_expanded(self, paths: list[str], maxdepth: int) -> None:
        for name in reversed(self.expand_path(paths, recursive=True, maxdepth=maxdepth)):
            if self.isdir(name):
                # It stays while something below maxdepth is in it.
                if not self.ls(name, detail=False):
                    self.rmdir(name)
            else:
                self.rm_file(name)

    def _literal_or_matches(self, path: str) -> list[str]:
        # A name may contain what elsewhere is a pattern: the name itself comes first.
        if not has_magic(path) or self.lexists(path):
            return [path]
        return self.expand_path(path)  # type: ignore[no-any-return]

    def _entry(self, path: str) -> Entry:
        origin, key = self._locate(path)
        with raising(path):
            return origin.info(key)

    # -- moves and copies -------------------------------------------------------------------------

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Move a file or a whole directory: one step where the origin renames, else copied inside it and then removed.

        As ``mv`` of the shell: into the target if that is a directory, replacing it if it is a file.
        """
        if not isinstance(path1, str) or not isinstance(path2, str) or maxdepth is not None:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        source, target = self._strip(path1), self._strip(path2)
        if has_magic(source) and not self.lexists(source):
            super().mv(path1, path2, recursive=recursive, **kwargs)
            return
        if ends_as_directory(path2) or self.isdir(target):
            target = target.rstrip("/") + "/" + source.rpartition("/")[2]
        if source != target:
            self._rename(source, target)

    def _rename(self, source: str, target: str) -> None:
        origin, key = self._locate(source)
        other, other_key = self._locate(target)
        if other is not origin:
            super().mv(source, target, recursive=True)
            return
        try:
            with raising(source):
                try:
                    origin.rename(key, other_key)
                except Absent:
                    origin.info(key)
                    self._make_parents(origin, other_key)
                    origin.rename(key, other_key)
        except OSError as error:
            error.filename2 = target
            raise

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        """Copy inside the origin, without moving the bytes through this machine; between origins through it."""
        path1, path2 = self._strip(path1), self._strip(path2)
        origin, key = self._locate(path1)
        other, other_key = self._locate(path2)
        with raising(path1):
            key, entry = origin.follow(key, origin.info(key))
            if entry.kind is Kind.DIRECTORY:
                self.makedirs(path2, exist_ok=True)
                return
            self._make_parents(other, other_key)
            if other is origin:
                origin.copy(key, other_key)
                return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while data := source.read(COPY_BYTES):
                target.write(data)

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> None:
        """Make an empty file; with ``truncate=False`` only set the time of an existing one."""
        path = self._strip(path)
        if not truncate:
            origin, key = self._locate(path)
            try:
                origin.setattr(key, mtime_ns=time.time_ns())
            except Absent:
                pass
            except TierCacheError as error:
                raise builtin_error(error, path) from error
            else:
                return
        with self.open(path, "wb", **kwargs):
            pass

    def chmod(self, path: Any, mode: int) -> None:
        """Set the permission bits, as attributes of the object where the origin is an object store."""
        path = self._strip(path)
        origin, key = self._locate(path)
        with raising(path):
            origin.setattr(key, mode=mode & 0o7777)


def _has_directories(origin: RemoteOrigin) -> bool:
    return Capability.EMPTY_DIRECTORIES in origin.capabilities


def _find(origin: RemoteOrigin, key: Key) -> Entry | None:
    try:
        return origin.info(key)
    except Absent:
        return None


def _make_directories(origin: RemoteOrigin, key: Key) -> None:
    """Make ``key`` and what is missing above it; fine if it is there, NotDirectory if it or a parent is a file."""
    if not key:
        return
    entry = _find(origin, key)
    if entry is not None:
        if entry.kind is Kind.FILE:
            raise NotDirectory(f"{key!r} is a file")
        return
    _make_directories(origin, parent_of(key))
    try:
        origin.mkdir(key)
    except Exists:
        # Another process made it meanwhile.
        return
