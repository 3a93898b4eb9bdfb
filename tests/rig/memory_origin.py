"""An object store in memory: a verified fake (it passes the conformance suite), and one that misbehaves on request."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tiercache.errors import Absent, Changed, Exists, IsDirectory, NotDirectory, NotEmpty, TierCacheError, Unsupported
from tiercache.model import Attributes, Capability, Key, Kind, ObjectStat, Space, is_below
from tiercache.origins.base import LONGEST_KEY_BYTES, Upload, require_length

_names = itertools.count()


@dataclass(frozen=True)
class _Object:
    data: bytes
    etag: str
    modified_ns: int
    attributes: Attributes | None = None
    upload_id: str = ""


class MemoryOrigin:
    """Keys and objects as an S3 bucket has them: a directory is a prefix, or a marker made by ``make_directory``."""

    def __init__(self) -> None:
        self.identity = f"memory://{next(_names)}"
        self.capabilities = Capability.CONDITIONAL_WRITE | Capability.STORED_ATTRIBUTES | Capability.SET_ATTRIBUTES
        self._lock = threading.Lock()
        self._objects: dict[Key, _Object] = {}
        self._markers: set[Key] = set()
        self._etags = itertools.count(1)

    def put(self, key: Key, data: bytes) -> ObjectStat:
        """Another client writes an object."""
        with self._lock:
            return self._put(key, data)

    def require_key(self, key: Key) -> None:
        require_length(key, LONGEST_KEY_BYTES)

    def stat(self, key: Key) -> ObjectStat:
        with self._lock:
            return self._stat(key)

    def list(self, directory: Key) -> Iterator[ObjectStat]:
        with self._lock:
            self._check_directory(directory)
            children = {self._child(directory, key) for key in self._names_below(directory)}
            found = [self._stat(key)._replace(attributes=None) for key in sorted(children)]
        yield from found

    def walk(self, directory: Key) -> Iterator[ObjectStat]:
        with self._lock:
            self._check_directory(directory)
            found = [
                _directory(key) if key in self._markers else self._describe(key)._replace(attributes=None)
                for key in sorted(self._names_below(directory))
            ]
        yield from found

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise Absent(f"{key!r} does not exist")
        if found.etag != etag:
            raise Changed(f"{key!r} is no longer {etag}")
        return memoryview(found.data)[offset : offset + length]

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        with self._lock:
            described = self._stat(key)
            if described.kind is Kind.DIRECTORY:
                raise IsDirectory(f"{key!r} is a directory")
            found = self._objects[key]
        return described, memoryview(found.data) if len(found.data) <= limit_bytes else None

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        with open(upload.source.path, "rb") as file:
            data = file.read(upload.source.size_bytes)
        upload.pace(len(data))
        if upload.progress is not None:
            upload.progress(len(data))
        condition = upload.condition
        with self._lock:
            old = self._objects.get(key)
            other = condition.etag and (old is None or old.etag != condition.etag)
            if other or (condition.absent and old is not None):
                raise Changed(f"{key!r} is not as the write needs it")
            return self._put(key, data, attributes=upload.attributes, upload_id=upload.upload_id)

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        """Nothing is ever left: a write is one step."""

    def delete(self, key: Key, etag: str = "") -> None:
        with self._lock:
            found = self._need(key)
            if etag and found.etag != etag:
                raise Changed(f"{key!r} is no longer {etag}")
            del self._objects[key]

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        with self._lock:
            found = self._need(source)
            if etag and found.etag != etag:
                raise Changed(f"{source!r} is no longer {etag}")
            return self._put(target, found.data, attributes=found.attributes)

    def rename(self, source: Key, target: Key, *, no_replace: bool = False, exchange: bool = False) -> None:
        raise Unsupported("an object store has no rename")

    def make_directory(self, key: Key, attributes: Attributes | None = None) -> ObjectStat:
        with self._lock:
            if key in self._objects or self._is_directory(key):
                raise Exists(f"{key!r} exists")
            self._markers.add(key)
            return _directory(key)

    def remove_directory(self, key: Key) -> None:
        with self._lock:
            if key in self._objects and not self._is_directory(key):
                raise NotDirectory(f"{key!r} is a file")
            if any(name != key for name in self._names_below(key)):
                raise NotEmpty(f"{key!r} is not empty")
            if key not in self._markers:
                raise Absent(f"{key!r} does not exist")
            self._markers.discard(key)

    def symlink(self, key: Key, target: bytes, attributes: Attributes | None = None) -> ObjectStat:
        raise Unsupported("no symlinks")

    def make_special(self, key: Key, kind: Kind, device: int, attributes: Attributes | None = None) -> ObjectStat:
        raise Unsupported("no pipes, sockets or devices")

    def link(self, source: Key, target: Key) -> ObjectStat:
        raise Unsupported("no hard links")

    def set_attributes(self, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        with self._lock:
            found = self._need(key)
            if etag and found.etag != etag:
                raise Changed(f"{key!r} is no longer {etag}")
            self._objects[key] = replace(found, attributes=attributes)
            return self._describe(key)

    def space(self, key: Key) -> Space:
        return Space(1 << 50, 1 << 49, 1 << 40, 1 << 39)

    def close(self) -> None:
        """Nothing is open."""

    def _put(self, key: Key, data: bytes, *, attributes: Attributes | None = None, upload_id: str = "") -> ObjectStat:
        etag = f"etag-{next(self._etags)}"
        self._objects[key] = _Object(bytes(data), etag, time.time_ns(), attributes, upload_id)
        return self._describe(key)

    def _need(self, key: Key) -> _Object:
        if self._is_directory(key):
            raise IsDirectory(f"{key!r} is a directory")
        if key not in self._objects:
            raise Absent(f"{key!r} does not exist")
        return self._objects[key]

    def _stat(self, key: Key) -> ObjectStat:
        if self._is_directory(key):
            return _directory(key)
        if key not in self._objects:
            raise Absent(f"{key!r} does not exist")
        return self._describe(key)

    def _describe(self, key: Key) -> ObjectStat:
        found = self._objects[key]
        return ObjectStat(
            key=key,
            kind=Kind.FILE,
            size_bytes=len(found.data),
            etag=found.etag,
            modified_ns=found.modified_ns,
            attributes=found.attributes,
            upload_id=found.upload_id,
        )

    def _check_directory(self, key: Key) -> None:
        if not self._is_directory(key):
            raise NotDirectory(f"{key!r} is a file") if key in self._objects else Absent(f"{key!r} does not exist")

    def _is_directory(self, key: Key) -> bool:
        return not key or key in self._markers or any(name != key for name in self._names_below(key))

    def _names_below(self, directory: Key) -> list[Key]:
        names = itertools.chain(self._objects, self._markers)
        return [name for name in names if name != directory and is_below(name, directory)]

    @staticmethod
    def _child(directory: Key, key: Key) -> Key:
        start = len(directory) + 1 if directory else 0
        return key[:start] + key[start:].partition(b"/")[0]


class StoreOrigin(MemoryOrigin):
    """With S3's capabilities: attributes travel with the bytes only."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities &= ~Capability.SET_ATTRIBUTES


def _directory(key: Key) -> ObjectStat:
    return ObjectStat(key=key, kind=Kind.DIRECTORY, size_bytes=0, etag="", modified_ns=0)


class Request(NamedTuple):
    """One request for bytes, as it came in."""

    op: str
    key: Key
    offset: int
    length: int


class UnrulyOrigin(MemoryOrigin):
    """A MemoryOrigin that holds, fails and cuts requests for bytes when a test tells it to, and keeps their log."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self._arrivals = threading.Condition()
        self._open = threading.Event()
        self._open.set()
        self._failures: deque[BaseException] = deque()
        self._keep_bytes: int | None = None

    def hold(self) -> None:
        """Requests for bytes wait until ``release``."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def wait_for_requests(self, wanted: int) -> None:
        """Block until that many requests for bytes came in all; fails after a while instead of hanging."""
        with self._arrivals:
            assert self._arrivals.wait_for(lambda: len(self.requests) >= wanted, timeout=30), self.requests

    def fail_next(self, *errors: BaseException) -> None:
        """The next requests for bytes raise these, one each."""
        self._failures.extend(errors)

    def cut(self, keep_bytes: int | None) -> None:
        """From now on answers end after so many bytes; None mends it."""
        self._keep_bytes = keep_bytes

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        self._arrive(Request("read", key, offset, length))
        return super().read(key, offset, length, etag)[: self._keep_bytes]

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        self._arrive(Request("read_whole", key, 0, limit_bytes))
        described, data = super().read_whole(key, limit_bytes)
        return described, None if data is None else data[: self._keep_bytes]

    def _arrive(self, request: Request) -> None:
        with self._arrivals:
            self.requests.append(request)
            failure = self._failures.popleft() if self._failures else None
            self._arrivals.notify_all()
        assert self._open.wait(30), "a test forgot to release the origin"
        if failure is not None:
            raise failure if not isinstance(failure, TierCacheError) else type(failure)(*failure.args)
