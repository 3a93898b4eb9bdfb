"""Names whose newest version the NVMe tier does not evict, because somebody said so; they outlive the engine."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import trio

from tiercache.catalog import Catalog
from tiercache.durable import write_file
from tiercache.engine.status import resident_bytes
from tiercache.errors import Broken, InvalidArgument
from tiercache.metrics import Metrics
from tiercache.model import Entry, Key, Kind, OriginId, VersionId, join, parent_of

FILE_NAME = "pins.json"
"""Below the cache directory."""

PINS_MAX = 1000
NAMES_AT_ONCE = 1000
"""Looked at between two chances for other tasks to run."""

log = logging.getLogger("tiercache.engine")


class Pin(NamedTuple):
    """A file, or a directory with all that is below."""

    origin: OriginId
    key: Key


class Pins:
    """Asked for each candidate of an eviction, so it goes by the catalog alone, and by the name: a version that a newer
    one has replaced is not pinned any more.

    All together keep at most ``share_max`` of the tier from being evicted; what is beyond that is evicted as if nobody
    had pinned it, and counted.
    """

    def __init__(self, catalog: Catalog, root: Path, *, bytes_max: int, metrics: Metrics) -> None:
        self._catalog = catalog
        self._path = root / FILE_NAME
        self._bytes_max = bytes_max
        self._metrics = metrics
        self._pins: dict[Pin, str] = {}
        """With the names that users know them by."""
        self._kept: dict[VersionId, int] = {}
        """Sizes in bytes of what was kept from an eviction."""
        self._kept_bytes = 0
        self._changes = trio.Lock()

    def recall(self) -> None:
        """Go on with what is pinned. A file that cannot be read is told and left alone; then nothing is pinned."""
        try:
            rows = json.loads(self._path.read_bytes()) if self._path.exists() else []
            self._pins = {Pin(OriginId(bytes.fromhex(o)), Key(bytes.fromhex(k))): name for o, k, name in rows}
        except (OSError, ValueError, TypeError) as error:
            log.error("nothing is pinned: %s cannot be read (%s); pin again, or mend it and restart", self._path, error)

    async def add(self, pin: Pin, name: str) -> None:
        """Durable when it returns. InvalidArgument when there are too many; Broken when the disk does not take it."""
        async with self._changes:
            if pin not in self._pins and len(self._pins) >= PINS_MAX:
                raise InvalidArgument(
                    f"{name}: there are {PINS_MAX} pins already; pin a directory above, or unpin some"
                )
            await self._write({**self._pins, pin: name})

    async def remove(self, pin: Pin) -> bool:
        """Whether it was pinned by this very name. Durable when it returns."""
        async with self._changes:
            if pin not in self._pins:
                return False
            await self._write({other: name for other, name in self._pins.items() if other != pin})
        for version in list(self._kept):
            self.holds(version)
        return True

    def holds(self, version: VersionId) -> bool:
        """Whether an NVMe copy is not to be evicted."""
        size_bytes = self._pinned_bytes(version) if self._pins else None
        kept_bytes = self._kept_bytes - self._kept.get(version, 0)
        if size_bytes is None:
            self.left(version)
            return False
        if kept_bytes + size_bytes > self._bytes_max:
            self._metrics.pins_over.inc()
            return False
        self._kept[version] = size_bytes
        self._set_kept_bytes(kept_bytes + size_bytes)
        return True

    def left(self, version: VersionId) -> None:
        """The NVMe copy is gone, or not pinned any more."""
        size_bytes = self._kept.pop(version, None)
        if size_bytes is not None:
            self._set_kept_bytes(self._kept_bytes - size_bytes)

    async def report(self) -> list[dict[str, Any]]:
        """Each pin with what the catalog knows below it."""
        answer = []
        for pin, name in list(self._pins.items()):
            files = total_bytes = here_bytes = 0
            async for entry in self._files(pin):
                files += 1
                total_bytes += entry.size_bytes
                record = self._catalog.version(entry.version) if entry.version else None
                here_bytes += resident_bytes(record) if record is not None else 0
            answer.append({"name": name, "files": files, "bytes": total_bytes, "resident_bytes": here_bytes})
        return answer

    async def _files(self, pin: Pin) -> AsyncIterator[Entry]:
        entry = self._catalog.entry(*pin)
        if entry is not None and entry.kind is Kind.FILE:
            yield entry
            return
        waiting, looked_at = [pin.key], 0
        while waiting:
            directory = waiting.pop()
            for name, child in self._catalog.children(pin.origin, directory):
                looked_at += 1
                if not looked_at % NAMES_AT_ONCE:
                    await trio.lowlevel.checkpoint()
                if child.kind is Kind.DIRECTORY:
                    waiting.append(join(directory, name))
                elif child.kind is Kind.FILE:
                    yield child

    def _pinned_bytes(self, version: VersionId) -> int | None:
        record = self._catalog.version(version)
        if record is None or not self._covers(record.origin, record.key):
            return None
        entry = self._catalog.entry(record.origin, record.key)
        return record.size_bytes if entry is None or entry.version == version else None

    def _covers(self, origin: OriginId, key: Key) -> bool:
        while Pin(origin, key) not in self._pins:
            if not key:
                return False
            key = parent_of(key)
        return True

    def _set_kept_bytes(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._metrics.pinned_bytes.set(kept_bytes)

    async def _write(self, pins: dict[Pin, str]) -> None:
        data = json.dumps([[pin.origin.hex(), pin.key.hex(), name] for pin, name in pins.items()], indent=1).encode()
        try:
            await trio.to_thread.run_sync(write_file, self._path, data)
        except OSError as error:
            raise Broken(f"{self._path}: {error.strerror or error}; nothing was changed") from error
        self._pins = pins
