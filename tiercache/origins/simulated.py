"""A slower origin than the one at hand: an HDD or a far S3 for the benchmark."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

from tiercache.model import Attributes, Capability, Key, Kind, ObjectStat, Space
from tiercache.origins.base import Origin, Upload

_LISTED_PER_REQUEST = 1000
_JITTER = 0.1


class SimulatedOrigin:
    """Adds latency to each request and shares one bandwidth between all transfers.

    ``latency_s`` is the mean, spread evenly by 10 % (seeded); ``bandwidth_bytes_per_s`` of 0 means unlimited.
    An HDD is also ``serial``: one request at a time, as with one head.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        latency_s: float = 0.0,
        bandwidth_bytes_per_s: float = 0.0,
        serial: bool = False,
        seed: int = 0,
    ) -> None:
        self._origin = origin
        self._latency_s = latency_s
        self._bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._serial = serial
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._free_at_s = 0.0
        self._closed = threading.Event()

    @property
    def identity(self) -> str:
        return self._origin.identity

    def require_key(self, key: Key) -> None:
        self._origin.require_key(key)

    @property
    def capabilities(self) -> Capability:
        return self._origin.capabilities

    def _delay(self, size_bytes: int = 0) -> None:
        """Wait as long as a request that moves ``size_bytes`` takes; nobody holds the lock while waiting."""
        transfer_s = size_bytes / self._bandwidth_bytes_per_s if self._bandwidth_bytes_per_s else 0.0
        with self._lock:
            latency_s = self._latency_s * (1 + self._random.uniform(-_JITTER, _JITTER))
            now_s = time.monotonic()
            queued_s = transfer_s + (latency_s if self._serial else 0.0)
            self._free_at_s = max(self._free_at_s, now_s) + queued_s
            wait_s = self._free_at_s - now_s + (0.0 if self._serial else latency_s)
        self._closed.wait(wait_s)

    def stat(self, key: Key) -> ObjectStat:
        self._delay()
        return self._origin.stat(key)

    def list(self, directory: Key) -> Iterator[ObjectStat]:
        return self._paged(self._origin.list(directory))

    def walk(self, directory: Key) -> Iterator[ObjectStat]:
        return self._paged(self._origin.walk(directory))

    def _paged(self, entries: Iterator[ObjectStat]) -> Iterator[ObjectStat]:
        self._delay()
        for number, entry in enumerate(entries, 1):
            yield entry
            if not number % _LISTED_PER_REQUEST:
                self._delay()

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        self._delay(length)
        return self._origin.read(key, offset, length, etag)

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        found, data = self._origin.read_whole(key, limit_bytes)
        self._delay(len(data) if data is not None else 0)
        return found, data

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        self._delay(upload.source.size_bytes)
        return self._origin.write(key, upload)

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        self._delay()
        self._origin.abort_uploads(key, upload_id, parted_id)

    def delete(self, key: Key, etag: str = "") -> None:
        self._delay()
        self._origin.delete(key, etag)

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        self._delay()
        return self._origin.copy(source, target, etag)

    def rename(self, source: Key, target: Key, *, no_replace: bool = False, exchange: bool = False) -> None:
        self._delay()
        self._origin.rename(source, target, no_replace=no_replace, exchange=exchange)

    def make_directory(self, key: Key, attributes: Attributes | None = None) -> ObjectStat:
        self._delay()
        return self._origin.make_directory(key, attributes)

    def remove_directory(self, key: Key) -> None:
        self._delay()
        self._origin.remove_directory(key)

    def symlink(
        self, key: Key, target: bytes, attributes: Attributes | None = None, *, replaces: str = ""
    ) -> ObjectStat:
        self._delay()
        return self._origin.symlink(key, target, attributes, replaces=replaces)

    def make_special(self, key: Key, kind: Kind, device: int, attributes: Attributes | None = None) -> ObjectStat:
        self._delay()
        return self._origin.make_special(key, kind, device, attributes)

    def link(self, source: Key, target: Key) -> ObjectStat:
        self._delay()
        return self._origin.link(source, target)

    def set_attributes(self, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        self._delay()
        return self._origin.set_attributes(key, attributes, etag)

    def space(self, key: Key) -> Space:
        return self._origin.space(key)

    def close(self) -> None:
        self._closed.set()
        self._origin.close()
