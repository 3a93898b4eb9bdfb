"""The newest complete checkpoints stay in the NVMe tier, so that a run on this node goes on from local bytes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from tiercache.cache import Cache
from tiercache.catalog import Catalog
from tiercache.config import CheckpointsConfig
from tiercache.engine.remembered_keys import RememberedKeys
from tiercache.metrics import Metrics
from tiercache.model import Durability, Entry, Key, Kind, OriginId, VersionId, join, name_of, parent_of
from tiercache.policies.checkpoints import SavedFile, has_manifest, in_order, judge, matches

DIRECTORY_NAME = "checkpoints"
"""Below the cache directory: a file for each origin."""

REMEMBERED_MAX = 64
"""Checkpoints of one directory that are remembered: a run keeps some of them only."""

KEPT_SHARE_MAX = 0.5
"""Of the NVMe tier, for all kept checkpoints together; older ones are not kept then."""

log = logging.getLogger("tiercache.engine")


class KeptCheckpoints:
    """Told of each upload that ends. Asks the catalog alone: what was written here it knows."""

    def __init__(
        self,
        settings: CheckpointsConfig,
        catalog: Catalog,
        cache: Cache,
        root: Path,
        capacity_bytes: int,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._cache = cache
        self._root = root / DIRECTORY_NAME
        self._room_bytes = int(capacity_bytes * KEPT_SHARE_MAX)
        self._metrics = metrics
        self._known: dict[OriginId, RememberedKeys] = {}
        self._kept: dict[tuple[OriginId, Key], dict[VersionId, int]] = {}
        """Sizes in bytes of the versions that are kept for each directory of checkpoints."""

    def recall(self) -> None:
        """Keep what the engine before this one kept."""
        if not self._settings.keep_last or not self._root.exists():
            return
        for file in sorted(self._root.iterdir()):
            if len(file.name) == 16 and not file.suffix:
                origin = OriginId(bytes.fromhex(file.name))
                for directory in {parent_of(key) for key in self._of(origin)}:
                    self._keep(origin, directory)

    def committed(self, origin: OriginId, key: Key, staged_below: Mapping[Key, int]) -> None:
        """The origin has the bytes of ``key``; when nothing of its checkpoint is staged any more, it may be the newest
        one that is whole."""
        checkpoint = self._checkpoint_of(key) if self._settings.keep_last else None
        if checkpoint is not None and not staged_below.get(checkpoint):
            self._of(origin).add(checkpoint)
            self._keep(origin, parent_of(checkpoint))

    def _checkpoint_of(self, key: Key) -> Key | None:
        """The outermost one that the file is part of."""
        found = parent_of(key) if has_manifest([name_of(key)]) else None
        while key:
            if matches(name_of(key), self._settings.patterns):
                found = key
            key = parent_of(key)
        return found or None

    def _of(self, origin: OriginId) -> RememberedKeys:
        if origin not in self._known:
            self._known[origin] = RememberedKeys(self._root / origin.hex(), inherit=True)
        return self._known[origin]

    def _keep(self, origin: OriginId, directory: Key) -> None:
        known = self._of(origin)
        there: dict[bytes, Entry] = {}
        for key in known:
            if parent_of(key) == directory:
                entry = self._catalog.entry(origin, key)
                if entry is not None and entry.kind in (Kind.FILE, Kind.DIRECTORY):
                    there[name_of(key)] = entry
                else:
                    known.discard(key)
        names = in_order(there, {name: entry.mtime_ns for name, entry in there.items()})
        for name in names[REMEMBERED_MAX:]:
            known.discard(join(directory, name))
        self._kept.pop((origin, directory), None)
        self._kept[origin, directory] = self._choose(origin, directory, names[:REMEMBERED_MAX])
        self._tell()

    def _choose(self, origin: OriginId, directory: Key, names: list[bytes]) -> dict[VersionId, int]:
        room_bytes = self._room_bytes - sum(sum(kept.values()) for kept in self._kept.values())
        chosen: dict[VersionId, int] = {}
        left = self._settings.keep_last
        for name in names:
            files = list(self._files(origin, join(directory, name)))
            saved = [
                SavedFile(key, e.size_bytes, e.mtime_ns, Durability.MEMORY if e.staged else Durability.ORIGIN)
                for key, e in files
            ]
            checkpoint = judge(name, saved, level=Durability.ORIGIN)
            if not checkpoint.complete:
                continue
            if checkpoint.size_bytes > room_bytes:
                log.warning("checkpoint %r is not kept: no room for it beside the others", join(directory, name))
                break
            room_bytes -= checkpoint.size_bytes
            chosen.update((entry.version, entry.size_bytes) for _, entry in files)
            left -= 1
            if not left:
                break
        return chosen

    def _files(self, origin: OriginId, key: Key) -> Iterator[tuple[Key, Entry]]:
        entry = self._catalog.entry(origin, key)
        if entry is not None and entry.kind is Kind.FILE:
            yield key, entry
        elif entry is not None and entry.kind is Kind.DIRECTORY:
            for name, _ in self._catalog.children(origin, key):
                yield from self._files(origin, join(key, name))

    def _tell(self) -> None:
        kept = [versions for versions in self._kept.values() if versions]
        self._cache.kept = frozenset(version for versions in kept for version in versions)
        self._metrics.kept_bytes.set(sum(sum(versions.values()) for versions in kept))
