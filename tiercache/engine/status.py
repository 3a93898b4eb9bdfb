"""What ``tiercache status`` tells: of the engine as a whole, and of one file."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import tiercache
from tiercache.catalog import VersionRecord
from tiercache.engine.lent import MAPPED
from tiercache.engine.namespace import Namespace
from tiercache.engine.places import Asker, Place
from tiercache.model import BLOCK_SIZE_BYTES, Durability, Entry, Key, Kind, OriginId, Tier, is_below
from tiercache.tier import DiskState

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

DIRTY_LISTED_MAX = 1000
"""Dirty files named in one status; the counts are always of all."""


class Status:
    """Reads the engine's parts; changes nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def engine(self) -> dict[str, Any]:
        """``{"engine", "tiers", "quotas", "dirty", "changes", "uploads", "mounts", "plans", "metrics"}``, in bytes and
        seconds."""
        engine = self._engine
        figures = engine.metrics.snapshot()
        return {
            "engine": {
                "pid": os.getpid(),
                "supervisor_pid": engine.keeper.supervisor_pid or None,
                "restarts": engine.keeper.restarts,
                "uptime_s": round(time.time() - engine.started_s, 3),
                "version": tiercache.__version__,
                "cache_dir": str(engine.config.cache_dir),
            },
            "tiers": {tier: _tier(figures, tier) for tier in ("ram", "nvme")},
            "quotas": self._quotas(),
            "dirty": self._dirty(),
            "changes": self._changes(),
            "uploads": {
                "in_flight": _figure(figures, "uploads_in_flight"),
                "committed": _figure(figures, "uploads_total", "committed"),
                "failed": _figure(figures, "uploads_total", "failed"),
                "bandwidth_max": engine.writeback.bandwidth_max_bytes_s,
            },
            "mounts": [
                {
                    "mountpoint": mount.mountpoint,
                    "url": mount.url,
                    "profile": mount.namespace.profile.name,
                    "ack": mount.namespace.profile.ack,
                    "sync_on_close": mount.namespace.profile.sync_on_close,
                    "driver": mount.serving.driver.name if mount.serving is not None else "",
                    "read_only": mount.read_only,
                    "elsewhere": mount.elsewhere,
                }
                for mount in engine.mounts
            ],
            "plans": engine.plans.status(),
            "metrics": figures,
        }

    def _quotas(self) -> list[dict[str, Any]]:
        nvme = self._engine.cache.tiers.get(Tier.NVME)
        return [
            {"path": room.rule, "used_bytes": room.used_bytes, "capacity_bytes": room.capacity_bytes}
            for room in (nvme.quotas if nvme is not None else ())
        ]

    def _dirty(self) -> dict[str, Any]:
        states: dict[str, int] = {}
        total_bytes = 0
        listed: list[dict[str, Any]] = []
        files = self._engine.writeback.status()
        for file in files:
            states[file.state] = states.get(file.state, 0) + 1
            total_bytes += file.size_bytes
            if len(listed) < DIRTY_LISTED_MAX:
                listed.append(
                    {
                        "path": self.spell(file.origin, file.key),
                        "state": str(file.state),
                        "size_bytes": file.size_bytes,
                        "sent_bytes": file.sent_bytes,
                        "attempts": file.attempts,
                        "last_error": file.last_error,
                        "waits_for": MAPPED if self._engine.lent.is_mapped(file.origin, file.inode) else "",
                    }
                )
        return {"files": len(files), "bytes": total_bytes, "states": states, "list": listed}

    def _changes(self) -> list[dict[str, Any]]:
        """Directories that are being moved or removed object by object, and what killed engines left of that."""
        return [
            {
                "change": change.change,
                "state": "failed" if change.failed else "under way",
                "path": self.spell(change.origin, change.directory),
                "target": self.spell(change.origin, change.target) if change.target else "",
                "left": change.left,
                "failed": change.failed,
                "last_error": change.last_error,
            }
            for change in self._engine.writeback.trees.status()
        ]

    def spell(self, origin: OriginId, key: Key) -> str:
        """A name as users know it, without the endpoint."""
        tree = self._engine.trees.get(origin)
        # The identity names the endpoint too, which would hide what a user looks for.
        prefix = tree.origin.identity.partition("?")[0] if tree is not None else ""
        return f"{prefix}{'' if prefix.endswith('/') else '/'}{os.fsdecode(key)}"

    async def path(self, path: str, asker: Asker) -> dict[str, Any]:
        """One name, by local path under a mount or by URL: state, durability, size, residency, how mounts read it.
        While the origin does not answer this is what the node knows, and ``origin_error`` says so. Absent, Busy."""
        place = await self._engine.places.look(path, asker)
        namespace, entry = place.namespace, place.entry
        assert entry is not None
        answer: dict[str, Any] = {
            "path": path,
            "kind": entry.kind.name.lower(),
            "state": "clean",
            "durable": "origin",
            "size_bytes": entry.size_bytes,
            "sent_bytes": entry.size_bytes,
            "last_error": "",
            "origin_error": place.silence,
        }
        if entry.kind is Kind.FILE:
            answer["io"] = self._engine.mounts.io_modes(namespace.origin_id, entry.inode)
            answer["resident"] = self._resident(namespace, place.key)
            promise = namespace.promises.of(place.key, entry.xattrs)
            answer["ack"] = promise.fsync.label
            answer["sync_on_close"] = promise.close is not Durability.MEMORY
        if entry.kind is Kind.DIRECTORY:
            return answer | self._dirty_below(place)
        # A link on the way that is not in the origin keeps others from the file as well.
        links = filter(None, map(namespace.entry, place.aliases))
        staged = [each for each in (entry, *links) if each.staged]
        return answer | self._reached(namespace, staged[0]) if staged else answer

    def _reached(self, namespace: Namespace, entry: Entry) -> dict[str, Any]:
        file = next((f for f in self._engine.writeback.status() if f.id == entry.staged), None)
        return {
            "state": namespace.writes.state(entry),
            "durable": namespace.writes.durable(entry).label,
            "sent_bytes": file.sent_bytes if file else 0,
            "last_error": file.last_error if file else "",
        }

    def _dirty_below(self, place: Place) -> dict[str, Any]:
        """Of a directory: what of it is not in the origin, and the lowest level that any of that has reached."""
        writeback, origin = self._engine.writeback, place.namespace.origin_id
        files = [r for r in self._engine.journal.records() if r.published and r.origin == origin]
        files = [record for record in files if any(is_below(record.key, key) for key in place.keys)]
        if not files:
            return {}
        return {
            "state": "dirty",
            "durable": min(writeback.durable(record.id) for record in files).label,
            "dirty_files": len(files),
            "size_bytes": sum(record.size_bytes for record in files),
            "sent_bytes": sum(writeback.sent_bytes(record) for record in files),
        }

    def _resident(self, namespace: Namespace, key: Key) -> dict[str, Any]:
        entry = namespace.entry(key)
        record = self._engine.catalog.version(entry.version) if entry is not None and entry.version else None
        tiers = {copy.tier for copy in record.copies} if record is not None else set()
        return {
            "ram": Tier.RAM in tiers,
            "nvme": Tier.NVME in tiers,
            "resident_bytes": resident_bytes(record) if record is not None else 0,
        }


def resident_bytes(record: VersionRecord) -> int:
    """How much of a version is here: all of a complete one, whole blocks of another."""
    if record.complete:
        return record.size_bytes
    return min(record.size_bytes, int.from_bytes(record.blocks, "little").bit_count() * BLOCK_SIZE_BYTES)


def _figure(figures: dict[str, Any], name: str, label: str = "") -> float:
    value = figures.get(name, 0.0)
    return float(value.get(label, 0.0) if isinstance(value, dict) else value)


def _tier(figures: dict[str, Any], tier: str) -> dict[str, float | str]:
    names = ("used_bytes", "capacity_bytes", "resident")
    totals = ("hits", "fills", "fill_bytes", "evictions", "damaged", "tier_errors")
    state: dict[str, float | str] = {"state": DiskState(int(_figure(figures, "tier_state", tier))).name.lower()}
    return (
        state
        | {name: _figure(figures, name, tier) for name in names}
        | {name: _figure(figures, f"{name}_total", tier) for name in totals}
    )
