"""The fsspec filesystem: reading and writing files through the tiers."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from glob import has_magic
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK

from tiercache.client import RemoteOrigin, Writer
from tiercache.errors import Absent, TierCacheError
from tiercache.filesystem.base import builtin_error, raising
from tiercache.filesystem.changes import COPY_BYTES
from tiercache.filesystem.layers import TextFile, compressed
from tiercache.filesystem.pins import PinsFileSystem
from tiercache.filesystem.reading import LOCAL_BUFFER_BYTES, RangeIO, ReadFile, WholeIO
from tiercache.filesystem.writing import Publishing, UpdateFile, WriteFile
from tiercache.model import Capability, Key


class TierCacheFileSystem(PinsFileSystem):
    """Files of an object store or a file tree, kept in RAM and on NVMe of this node.

    Registered as ``tiercache``: ``tiercache::s3://bucket/key``, or ``tiercache://NAME/key`` for an origin of the
    configuration.
    """

    # -- reading ----------------------------------------------------------------------------------

    def open(
        self,
        path: Any,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb" and compression is None:
            # Not through fsspec's own open(): a warm open is as short as that of a local file.
            return self._open_read(self._strip_protocol(path), block_size)
        if "b" not in mode:
            text = {name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs}
            binary = self.open(path, mode.replace("t", "") + "b", block_size, cache_options, compression, **kwargs)
            return TextFile(binary, **text)
        path = self._strip_protocol(path)
        autocommit = kwargs.pop("autocommit", not self._intrans)
        file = self._open(path, mode, block_size, autocommit, **kwargs)
        if not autocommit and isinstance(file, Publishing):
            self.transaction.files.append(file)
        return compressed(file, path, mode, compression)

    def _open(
        self,
        path: Any,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return self._open_read(self._strip_protocol(path), block_size)
        return self._open_write(self._strip_protocol(path), mode, block_size, autocommit=autocommit)

    def _open_read(self, path: str, block_size: int | None) -> ReadFile:
        origin, key = self._locate(path)
        found = origin.open_local(key)
        if found is not None:
            file = ReadFile(WholeIO(found[0]), block_size or LOCAL_BUFFER_BYTES)
            file.size = found[1]
        else:
            try:
                reader = origin.open_read(key)
            except TierCacheError as error:
                raise builtin_error(error, path) from error
            file = ReadFile(RangeIO(reader, path), block_size or ReadFile.blocksize)
            file.size = reader.size
        file.fs = self
        file.path = path
        return file

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        origin, key = self._locate(path)
        try:
            return origin.cat(key, start, end)
        except TierCacheError as error:
            raise builtin_error(error, path) from error

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        if type(path) is str and not recursive and on_error == "raise" and not has_magic(path):
            return self.cat_file(path, **kwargs)
        return super().cat(path, recursive=recursive, on_error=on_error, **kwargs)

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | Sequence[int],
        ends: int | Sequence[int],
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """The bytes of several ranges. ``max_gap`` is not needed: ranges are joined into blocks further down."""
        return super().cat_ranges(paths, starts, ends, on_error=on_error, **kwargs)  # type: ignore[no-any-return]

    # -- writing ----------------------------------------------------------------------------------

    def _open_write(self, path: str, mode: str, block_size: int | None, *, autocommit: bool) -> Publishing:
        access = mode.replace("b", "")
        if access.replace("+", "") not in ("w", "x", "a", "r") or access.count("+") > 1:
            raise ValueError(f"invalid mode: {mode!r}")
        origin, key = self._locate(path)
        with raising(path):
            key = self._written_key(origin, key, must_exist=access[0] == "r")
            writer = self._create(origin, key, exclusive="x" in access, keep=access[0] in "ar")
        buffer_bytes = block_size or Publishing.blocksize
        raw = writer.raw()
        file: Publishing = (UpdateFile if "+" in access else WriteFile)(raw, buffer_bytes)
        file.begin(self, path, mode, writer, autocommit=autocommit)
        if access[0] == "a":
            file.seek(0, io.SEEK_END)
        return file

    def _written_key(self, origin: RemoteOrigin, key: Key, *, must_exist: bool) -> Key:
        """Where a symbolic link leads, as when a local file is opened. Absent if the file must exist and does not."""
        if not must_exist and Capability.SYMLINKS not in origin.capabilities:
            return key
        try:
            return origin.follow(key, origin.info(key))[0]
        except Absent:
            if must_exist:
                raise
            return key

    def _create(self, origin: RemoteOrigin, key: Key, *, exclusive: bool, keep: bool) -> Writer:
        try:
            return origin.create(key, exclusive=exclusive, keep=keep)
        except Absent:
            # No directory for it in a file tree; an object store needs none, and neither should its users' code.
            self._make_parents(origin, key)
            return origin.create(key, exclusive=exclusive, keep=keep)

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb", **kwargs) as file:
            file.write(value)

    # -- to and from local files ------------------------------------------------------------------

    def put_file(
        self, lpath: Any, rpath: Any, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb") as source, self.open(rpath, "xb" if mode == "create" else "wb", **kwargs) as target:
            callback.set_size(os.fstat(source.fileno()).st_size)
            while data := source.read(COPY_BYTES):
                target.write(data)
                callback.relative_update(len(data))
