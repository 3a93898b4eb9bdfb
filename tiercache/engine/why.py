"""What ``tiercache why`` tells of one file: where it is, why it is there or not, and what comes of it next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiercache.decisions import Decision, Subject, Topic
from tiercache.engine.places import Asker, Place
from tiercache.errors import InvalidArgument
from tiercache.model import Entry, Kind, Tier, VersionId
from tiercache.tier import FileTier

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine


class Why:
    """Reads the engine's parts; changes nothing, and counts as no read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def path(self, path: str, asker: Asker) -> dict[str, Any]:
        """One file, by local path under a mount or by URL. Times are seconds since the epoch. Absent, Busy;
        InvalidArgument for what is no file."""
        place = await self._engine.places.look(path, asker)
        entry, origin = place.entry, place.namespace.origin_id
        assert entry is not None
        if entry.kind is not Kind.FILE:
            raise InvalidArgument(f"{path}: is no file but a {entry.kind.name.lower()}; ask of a file")
        decided = self._decided([entry.version, (origin, place.key)])
        return {
            "path": path,
            "size_bytes": entry.size_bytes,
            "version": entry.version.hex(),
            "origin_error": place.silence,
            "staged": place.namespace.writes.state(entry) if entry.staged else "",
            "tiers": {tier.label: self._tier(place, entry, files, decided) for tier, files in self._tiers.items()},
            "held_by": self._engine.cache.held_by(entry.version) if entry.version else [],
            "ahead": self._told(decided.get((Topic.AHEAD, None))),
            "failure": self._told(decided.get((Topic.FAILURE, None))),
            "planned": await self._engine.plans.next_uses(origin, place.key),
            "memory": self._memory(),
        }

    @property
    def _tiers(self) -> dict[Tier, FileTier]:
        return dict(self._engine.cache.tiers)

    def _decided(self, subjects: list[Subject]) -> dict[tuple[Topic, Tier | None], Decision]:
        """The last decision on each topic and tier."""
        found = (decision for subject in subjects for decision in self._engine.decisions.of(subject))
        return {
            (decision.topic, decision.tier): decision for decision in sorted(found, key=lambda decision: decision.at_s)
        }

    def _tier(
        self, place: Place, entry: Entry, files: FileTier, decided: dict[tuple[Topic, Tier | None], Decision]
    ) -> dict[str, Any]:
        record = self._engine.catalog.version(entry.version) if entry.version else None
        has = record is not None and any(copy.tier is files.tier for copy in record.copies)
        return {
            "here": "" if not has or record is None else "all" if record.complete else "part",
            "policy": files.policy.name,
            "shuts_out": files.shuts_out(entry.size_bytes, place.key),
            "quota": files.rule(place.key),
            "admission": self._told(decided.get((Topic.ADMISSION, files.tier))),
            "leaving": self._told(decided.get((Topic.LEAVING, files.tier))),
        }

    def _told(self, decision: Decision | None) -> dict[str, Any] | None:
        if decision is None:
            return None
        told = {"at": decision.at_s, "why": decision.why, "by": decision.by}
        return told | {"for": self._name(decision.other)} if decision.other else told

    def _name(self, version: VersionId) -> str:
        """Of what a version is one; empty when nothing is known of it any more."""
        record = self._engine.catalog.version(version)
        return self._engine.status_of.spell(record.origin, record.key) if record is not None else ""

    def _memory(self) -> dict[str, Any]:
        """What the engine can know at all."""
        decisions = self._engine.decisions
        return {
            "since": self._engine.started_s,
            "entries": len(decisions),
            "entries_max": self._engine.config.why.entries,
            "forgot": decisions.forgot,
        }
