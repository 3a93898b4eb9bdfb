"""Any fsspec filesystem as an origin: hdfs, sftp, memory, …, and s3fs on request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fsspec

from tiercache.config import FetchConfig
from tiercache.errors import (
    Absent,
    Broken,
    Changed,
    ConfigError,
    Exists,
    InvalidName,
    IsDirectory,
    NotDirectory,
    NotEmpty,
    Unsupported,
)
from tiercache.memory import Memory, Purpose
from tiercache.model import Attributes, Capability, Key, Kind, ObjectStat, Space, is_below
from tiercache.origins import metadata
from tiercache.origins.base import LONGEST_KEY_BYTES, OBJECT_KEY_LIMIT_BYTES, Condition, Source, Upload, require_length
from tiercache.origins.fsspec_errors import domain_errors
from tiercache.origins.fsspec_info import stat_of
from tiercache.origins.obstore_calls import text_of
from tiercache.origins.temporary import PREFIX, temporary_name
from tiercache.units import MIB

_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "cos", "obs", "b2"})
"""Their paths start with a bucket, a write appears at once and whole, and directories are prefixes."""

_S3 = frozenset({"s3", "s3a"})
_WHOLE_WRITES = _BUCKETS | {"memory", "http", "https"}
_RENAMING = frozenset({"file", "local", "sftp", "ssh", "hdfs", "webhdfs", "arrow_hdfs", "smb"})
_READ_ONLY = frozenset({"http", "https", "github", "zip", "tar", "git", "data", "reference"})
_SPACE = Space(1 << 50, 1 << 50, 1 << 31, 1 << 31)
_UNKNOWN_BUFFERS_BYTES = 64 * MIB
"""What a filesystem may hold while it uploads: it does not tell."""


class FsspecOrigin:
    """One bucket, host or tree behind fsspec's blocking interface; its caches are off.

    fsspec has no If-Match. A read is therefore confirmed by asking for the object's state afterwards, and a condition
    of a write is checked just before it.
    """

    def __init__(self, filesystem: Any, root: str, identity: str, protocol: str, *, memory: Memory) -> None:
        self._fs = filesystem
        self._memory = memory
        self._root = root
        self._identity = identity
        self._protocol = protocol
        self._is_bucket = protocol in _BUCKETS

    @property
    def identity(self) -> str:
        return self._identity

    def require_key(self, key: Key) -> None:
        require_length(key, OBJECT_KEY_LIMIT_BYTES if self._is_bucket else LONGEST_KEY_BYTES)
        self._path(key)

    @property
    def capabilities(self) -> Capability:
        if self._protocol in _READ_ONLY:
            return Capability.READ_ONLY
        able = Capability.NONE if self._is_bucket else Capability.EMPTY_DIRECTORIES
        if self._protocol in _RENAMING:
            able |= Capability.RENAME
        if self._protocol in _S3:
            able |= Capability.STORED_ATTRIBUTES
        return able

    @contextlib.contextmanager
    def _errors(self, key: Key) -> Iterator[None]:
        try:
            with domain_errors(self._name(key)):
                yield
        except Absent as error:
            if self._is_bucket and not key:  # never an empty or deleted directory
                raise Broken(f"{self._name(key)}: the bucket does not exist") from error
            raise

    def _path(self, key: Key) -> str:
        path = f"{self._root}/{text_of(key)}" if key else self._root or "/"
        if key and self._key(self._fs._strip_protocol(path)) != key:
            raise InvalidName(f"{key!r} cannot be spelled in a path of {self._protocol}")
        return path

    def _key(self, path: str) -> Key:
        return os.fsencode(path.removeprefix(self._root).removeprefix("/"))

    def _name(self, key: Key) -> str:
        return f"{self._identity.partition('?')[0].rstrip('/')}/{key.decode('utf-8', 'backslashreplace')}"

    def stat(self, key: Key) -> ObjectStat:
        path = self._path(key)
        with self._errors(key):
            try:
                found = self._described(key, self._fresh_info(path))
            except NotADirectoryError:
                raise Absent(f"{self._name(key)} does not exist") from None
            if self._is_bucket and found.kind is Kind.FILE and self._has_children(path):
                return ObjectStat(key, Kind.DIRECTORY, 0, "", 0)  # the directory wins
            return self._with_metadata(found, path)

    def _fresh_info(self, path: str) -> Mapping[str, Any]:
        self._fs.invalidate_cache(path)
        info: Mapping[str, Any] = self._fs.info(path)
        return info

    def _has_children(self, path: str) -> bool:
        listed = self._fs.ls(path, detail=True, **self._uncached())
        return any(child["name"].rstrip("/") != path.strip("/") for child in listed)

    def _uncached(self) -> dict[str, Any]:
        return {"refresh": True} if self._is_bucket else {}

    def _described(self, key: Key, info: Mapping[str, Any]) -> ObjectStat:
        return stat_of(key, info, "" if info.get("type") == "directory" else self._fingerprint(info))

    def _fingerprint(self, info: Mapping[str, Any]) -> str:
        return str(fsspec.utils.tokenize(dict(info)))

    def _with_metadata(self, found: ObjectStat, path: str) -> ObjectStat:
        """Attributes and upload id, which s3fs keeps in object metadata."""
        if self._protocol not in _S3 or found.kind is not Kind.FILE:
            return found
        stored = self._fs.metadata(path, refresh=True)
        stored = {name.replace("_", "-"): value for name, value in stored.items()}  # s3fs spells dashes so
        kind, attributes = metadata.decode(stored, Kind.FILE, found.modified_ns)
        target = bytes(self._fs.cat_file(path)) if kind is Kind.SYMLINK else b""
        return found._replace(
            kind=kind, attributes=attributes, link_target=target, upload_id=metadata.upload_id_of(stored)
        )

    def list(self, directory: Key) -> Iterator[ObjectStat]:
        path = self._path(directory)
        with self._errors(directory):
            self._fs.invalidate_cache(path)
            listed = self._fs.ls(path, detail=True, **self._uncached())
            if any(self._key(info["name"]) == directory and info["type"] != "directory" for info in listed):
                raise NotDirectory(f"{self._name(directory)} is a file")
            if not listed and directory and self._fs.info(path)["type"] != "directory":
                raise NotDirectory(f"{self._name(directory)} is a file")
        yield from self._entries(listed, directory)

    def _entries(self, listed: Sequence[Mapping[str, Any]], directory: Key) -> Iterator[ObjectStat]:
        directories = {self._listed_key(info) for info in listed if info["type"] == "directory"}
        for info in listed:
            key = self._listed_key(info)
            is_shadowed = info["type"] != "directory" and key in directories
            if key != directory and not is_shadowed and not key.rpartition(b"/")[2].startswith(PREFIX.encode()):
                yield self._described(key, info)

    def _listed_key(self, info: Mapping[str, Any]) -> Key:
        return self._key(str(info["name"]).rstrip("/") if info["type"] == "directory" else str(info["name"]))

    def walk(self, directory: Key) -> Iterator[ObjectStat]:
        if self._is_bucket:
            yield from self._objects(directory)
            return
        waiting = [directory]
        while waiting:
            current = waiting.pop()
            try:
                for entry in self.list(current):
                    yield entry
                    if entry.kind is Kind.DIRECTORY:
                        waiting.append(entry.key)
            except Absent:  # removed meanwhile
                if current == directory:
                    raise

    def _objects(self, directory: Key) -> Iterator[ObjectStat]:
        path = self._path(directory)
        with self._errors(directory):
            self._fs.invalidate_cache(path)
            found: Mapping[str, Mapping[str, Any]] = self._fs.find(path, detail=True, refresh=True)
        for name, info in found.items():
            if (key := self._key(name)) == directory:
                raise NotDirectory(f"{self._name(directory)} is a file")
            if key.endswith(b"/"):
                if key[:-1] != directory:
                    yield ObjectStat(key[:-1], Kind.DIRECTORY, 0, "", 0)
            else:
                yield self._described(key, info)
        if not found and directory:
            raise Absent(f"{self._name(directory)} does not exist")

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        if not length:
            return memoryview(b"")
        path = self._path(key)
        with self._errors(key):
            try:
                data = bytes(self._fs.cat_file(path, start=offset, end=offset + length))
            finally:
                self._confirm(key, path, etag)  # a version that changed explains any other failure
        if len(data) != length:
            raise Broken(f"{self._name(key)}: {length} bytes at {offset} wanted, {len(data)} arrived")
        return memoryview(data)

    def _confirm(self, key: Key, path: str, etag: str) -> None:
        if self._described(key, self._fresh_info(path)).etag != etag:
            raise Changed(f"{self._name(key)} is no longer the version that was asked for")

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        path = self._path(key)
        with self._errors(key):
            found = self._described(key, self._fresh_info(path))
            if found.kind is Kind.DIRECTORY:
                raise IsDirectory(f"{self._name(key)} is a directory")
            found = self._with_metadata(found, path)
        if found.kind is Kind.SYMLINK or found.size_bytes > limit_bytes:
            return found, None
        return found, self.read(key, 0, found.size_bytes, found.etag)

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        path = self._path(key)
        with self._errors(key):
            self._check(key, path, upload.condition)
            upload.pace(upload.source.size_bytes)
            if self._protocol in _WHOLE_WRITES:
                self._put(path, upload)
            else:
                self._put_and_rename(path, upload)
            if upload.progress is not None:
                upload.progress(upload.source.size_bytes)
            found = self._with_metadata(self._described(key, self._fresh_info(path)), path)
        if found.size_bytes != upload.source.size_bytes:
            raise Broken(f"{self._name(key)}: {found.size_bytes} of {upload.source.size_bytes} bytes arrived")
        return found

    def _check(self, key: Key, path: str, condition: Condition) -> None:
        try:
            current = self._described(key, self._fresh_info(path))
        except FileNotFoundError:
            current = None
        if current is not None and current.kind is Kind.DIRECTORY and not self._is_bucket:
            raise IsDirectory(f"{self._name(key)} is a directory")
        if condition.absent and current is not None and current.kind is not Kind.DIRECTORY:
            raise Changed(f"{self._name(key)} exists already")
        if condition.etag and (current is None or current.etag != condition.etag):
            raise Changed(f"{self._name(key)} is no longer the version that was to be replaced")

    def _put(self, path: str, upload: Upload) -> None:
        extra: dict[str, Any] = {}
        if self._protocol in _S3:
            extra["Metadata"] = metadata.encode(upload.attributes, Kind.FILE, upload_id=upload.upload_id)
            if upload.condition.absent:
                extra["mode"] = "create"
        self._make_parents(path)
        try:
            self._send(upload.source, path, **extra)
        except FileExistsError:
            raise Changed(f"{path} exists already") from None

    def _put_and_rename(self, path: str, upload: Upload) -> None:
        self._make_parents(path)
        temporary = self._temporary(path, upload.upload_id)
        try:
            self._send(upload.source, temporary)
            self._move_over(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.rm_file(temporary)
            raise

    def _send(self, source: Source, path: str, **extra: Any) -> None:
        """Upload with bounded memory, as far as the filesystem lets us: s3fs would hold 10 chunks of 50 MiB."""
        held_bytes = _UNKNOWN_BUFFERS_BYTES
        if self._protocol in _S3:
            chunk_bytes = min(16 * MIB, max(5 * MIB, self._memory.piece_bytes(Purpose.UPLOAD) // 2))
            extra |= {"chunksize": chunk_bytes, "max_concurrency": 1}
            held_bytes = 2 * chunk_bytes
        with self._memory.held_in_thread(Purpose.UPLOAD, min(source.size_bytes, held_bytes)):
            self._fs.put_file(source.path, path, **extra)

    def _make_parents(self, path: str) -> None:
        if not self._is_bucket:
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)

    def _temporary(self, path: str, upload_id: str) -> str:
        directory, _, name = path.rpartition("/")
        return f"{directory}/{temporary_name(os.fsencode(name), upload_id)}"

    def _move_over(self, source: str, target: str) -> None:
        try:
            self._fs.mv(source, target)
        except OSError:
            if not self._fs.exists(target) or not self._fs.exists(source):
                raise
            self._fs.rm_file(target)  # hdfs does not rename over a file
            self._fs.mv(source, target)

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        if self._protocol in _WHOLE_WRITES:
            return
        temporary = self._temporary(self._path(key), upload_id)
        with self._errors(key), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(temporary)

    def delete(self, key: Key, etag: str = "") -> None:
        path = self._path(key)
        with self._errors(key):
            found = self._described(key, self._fresh_info(path))
            if found.kind is Kind.DIRECTORY:
                raise IsDirectory(f"{self._name(key)} is a directory")
            if etag and found.etag != etag:
                raise Changed(f"{self._name(key)} is no longer the version that was to be deleted")
            self._fs.rm_file(path)

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        source_path, target_path = self._path(source), self._path(target)
        with self._errors(source):
            before = self._described(source, self._fresh_info(source_path))
            if etag and before.etag != etag:
                raise Changed(f"{self._name(source)} is no longer the version that was asked for")
            self._make_parents(target_path)
            self._fs.cp_file(source_path, target_path)
            self._confirm(source, source_path, before.etag)
            copied = self._with_metadata(self._described(target, self._fresh_info(target_path)), target_path)
        if copied.size_bytes != before.size_bytes:
            raise Broken(f"{self._name(target)}: {copied.size_bytes} of {before.size_bytes} bytes arrived")
        return copied

    def rename(self, source: Key, target: Key, *, no_replace: bool = False, exchange: bool = False) -> None:
        if exchange or Capability.RENAME not in self.capabilities:
            raise Unsupported(f"{self._protocol} cannot do this rename in one step")
        if source != target and is_below(target, source):
            raise Unsupported(f"{self._name(source)} cannot be moved into itself")
        with self._errors(source):
            if no_replace and self._fs.exists(self._path(target)):
                raise Exists(f"{self._name(target)} exists already")
            self._move_over(self._path(source), self._path(target))

    def make_directory(self, key: Key, attributes: Attributes | None = None) -> ObjectStat:
        if self._is_bucket:
            raise Unsupported(f"{self._protocol} by fsspec keeps no empty directories")
        with self._errors(key):
            if self._fs.exists(self._path(key)):
                raise Exists(f"{self._name(key)} exists already")
            self._fs.mkdir(self._path(key), create_parents=False)
        return self.stat(key)

    def remove_directory(self, key: Key) -> None:
        with self._errors(key):
            if any(True for _ in self.list(key)):
                raise NotEmpty(f"{self._name(key)} is not empty")
            self._fs.rmdir(self._path(key))

    def symlink(
        self, key: Key, target: bytes, attributes: Attributes | None = None, *, replaces: str = ""
    ) -> ObjectStat:
        raise Unsupported(f"{self._protocol} by fsspec has no symlinks")

    def make_special(self, key: Key, kind: Kind, device: int, attributes: Attributes | None = None) -> ObjectStat:
        raise Unsupported(f"{self._protocol} by fsspec holds no pipes, sockets or devices")

    def link(self, source: Key, target: Key) -> ObjectStat:
        raise Unsupported(f"{self._protocol} by fsspec has no hard links")

    def set_attributes(self, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        raise Unsupported(f"{self._protocol} by fsspec cannot change attributes")

    def space(self, key: Key) -> Space:
        return _SPACE

    def close(self) -> None:
        return None


def open_filesystem(
    url: str, options: Mapping[str, Any], *, fetch: FetchConfig, memory: Memory
) -> tuple[FsspecOrigin, Key]:
    """The origin and key of any URL that fsspec knows. ConfigError for an unknown scheme or a missing package."""
    protocol = _protocol(url)
    arguments = dict(options)
    if protocol in _BUCKETS:
        arguments |= {"use_listings_cache": False}
    if protocol in _S3:
        config = {
            "connect_timeout": fetch.connect_timeout_s,
            "read_timeout": fetch.timeout_s,
            "retries": {"total_max_attempts": 1, "mode": "standard"},  # retrying is the caller's affair
        }
        arguments["config_kwargs"] = config | dict(arguments.get("config_kwargs") or {})
        protocol = "s3"
    try:
        filesystem = fsspec.filesystem(protocol, skip_instance_cache=True, **_url_options(url) | arguments)
    except (ValueError, ImportError, TypeError) as error:
        raise ConfigError(f"{url}: {error}") from error
    if protocol in _S3:
        filesystem.retries = 1
    root = _host(url) if protocol in _BUCKETS else ""
    path = filesystem._strip_protocol(url)
    origin = FsspecOrigin(filesystem, root, filesystem_identity(url, options), protocol, memory=memory)
    return origin, os.fsencode(path.removeprefix(root).strip("/"))


def filesystem_identity(url: str, options: Mapping[str, Any] | None = None) -> str:
    """Bucket or host, with the port and the S3 endpoint, without user and password."""
    protocol = _protocol(url)
    if protocol in _S3:
        from tiercache.origins.s3.options import S3Options

        known = {name: value for name, value in (options or {}).items() if name in ("endpoint_url", "client_kwargs")}
        return S3Options.parse(known).identity(_host(url))
    if protocol in ("file", "local"):
        return "file:///"
    host = (options or {}).get("host", "") if not _host(url) else _host(url).rpartition("@")[2]
    return f"{protocol}://" if protocol == "memory" else f"{protocol}://{host}"


def _protocol(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else "file"


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


def _url_options(url: str) -> dict[str, Any]:
    """Host, port and user that the filesystem takes from its URL."""
    return dict(fsspec.get_filesystem_class(_protocol(url))._get_kwargs_from_urls(url))
