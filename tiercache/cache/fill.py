"""A fill: the bytes of one extent on their way into the tiers. Reserve, write, then record."""

from __future__ import annotations

from dataclasses import dataclass

from tiercache.cache.copies import Copies
from tiercache.cache.draft import Draft
from tiercache.cache.flight import Flight
from tiercache.cache.overflow import Overflow
from tiercache.cache.residency import Residency
from tiercache.cache.state import VersionState
from tiercache.cache.words import VersionRef
from tiercache.catalog import Copy
from tiercache.checksum import block_checksums
from tiercache.decisions import Decisions, Topic
from tiercache.metrics import Metrics
from tiercache.model import Tier
from tiercache.tier import FileIdentity, Reservation, write_extent


@dataclass(frozen=True, slots=True)
class Fill:
    """Room in some tiers (perhaps in none) for one extent."""

    version: VersionRef
    state: VersionState
    flight: Flight
    generation: int
    reservations: dict[Tier, Reservation]
    paths: dict[Tier, str]


@dataclass(frozen=True, slots=True)
class Written:
    """What the worker thread did."""

    data: memoryview
    checksums: bytes
    identities: dict[Tier, FileIdentity]
    failures: dict[Tier, OSError]


class Filler:
    """Begins and ends fills in the engine's thread; ``write`` is the part between them and runs in a worker thread."""

    def __init__(self, copies: Copies, overflow: Overflow, *, decisions: Decisions, metrics: Metrics) -> None:
        self._copies = copies
        self._overflow = overflow
        self._decisions = decisions
        self._count_bytes = {tier: metrics.fill_bytes.labels(tier=tier.label).inc for tier in copies.tiers}
        self._count = {tier: metrics.fills.labels(tier=tier.label).inc for tier in copies.tiers}

    def begin(self, version: VersionRef, state: VersionState, flight: Flight) -> Fill:
        """Reserve room. The RAM tier holds only complete versions, so only an extent that is one goes there."""
        reservations: dict[Tier, Reservation] = {}
        for tier, files in self._copies.tiers.items():
            if tier == Tier.RAM and flight.length != version.size_bytes:
                continue
            reservation = files.reserve(
                version.id, flight.length, object_bytes=version.size_bytes, name=bytes(version.key)
            )
            if reservation is not None:
                reservations[tier] = reservation
        paths = {tier: self._copies.tiers[tier].path(version.id) for tier in reservations}
        return Fill(version, state, flight, state.generation, reservations, paths)

    @staticmethod
    def write(fill: Fill, data: memoryview) -> Written:
        """Checksum the bytes and write them into each file. Blocking; a disk's failure is an answer, not an error."""
        written = Written(data, block_checksums(data) if fill.paths else b"", {}, {})
        for tier, path in fill.paths.items():
            try:
                written.identities[tier] = write_extent(
                    path, fill.flight.offset, data, size_bytes=fill.version.size_bytes
                )
            except OSError as error:
                written.failures[tier] = error
        return written

    def drafts_in(self, room_bytes: int) -> str:
        """The directory for drafts of small objects, empty when none should be made: they are written before room is
        reserved for them, so there must be plenty, for any of them, and only for the NVMe tier."""
        nvme = self._copies.tiers.get(Tier.NVME)
        if nvme is None or len(self._copies.tiers) > 1 or nvme.is_choosy:
            return ""
        return nvme.directory if nvme.works and nvme.has_room(room_bytes) else ""

    @staticmethod
    def name(fill: Fill, draft: Draft, data: memoryview) -> Written:
        """As ``write``, for bytes that are written already: the draft becomes the file."""
        written = Written(data, draft.checksums, {}, {})
        for tier, path in fill.paths.items():
            try:
                written.identities[tier] = draft.name(path)
            except OSError as error:
                written.failures[tier] = error
        return written

    def cancel(self, fill: Fill) -> None:
        """No bytes came."""
        for reservation in fill.reservations.values():
            reservation.cancel()

    def end(self, fill: Fill, written: Written) -> None:
        """Record what is in the files; what no tier took stays in memory for a while."""
        for tier, failure in written.failures.items():
            self._copies.tiers[tier].failed(failure, "a fill")
            why = f"its disk did not take it: {failure.strerror or failure}"
            self._decisions.note(fill.version.id, Topic.ADMISSION, tier, why)
        current = fill.generation == fill.state.generation
        kept = {tier: identity for tier, identity in written.identities.items() if current}
        if kept:
            kept = self._record(fill, written, kept)
        for tier, reservation in fill.reservations.items():
            if tier in kept:
                reservation.settle()
                self._copies.tiers[tier].worked()
                self._count_bytes[tier](fill.flight.length)
            else:
                reservation.cancel()
        if not kept:
            self._overflow.put(fill.version.id, fill.flight.blocks.start, written.data)

    def _record(self, fill: Fill, written: Written, kept: dict[Tier, FileIdentity]) -> dict[Tier, FileIdentity]:
        state, version = fill.state, fill.version
        if Tier.NVME in kept:
            state.residency.add(fill.flight.blocks.start, written.checksums)
            state.wrote(kept[Tier.NVME].inode, kept[Tier.NVME].ctime_ns)
            residency = state.residency
        else:
            residency = Residency(version.size_bytes)
            residency.add(0, written.checksums)
        complete = residency.complete
        stamp = self._copies.stamp if complete else 0
        changed_ns = {tier: identity.ctime_ns for tier, identity in kept.items()} | {Tier.NVME: state.written_ns}
        copies = [Copy(tier, identity.inode, changed_ns[tier], stamp) for tier, identity in kept.items()]
        if not self._copies.record(version, complete=complete, residency=residency, copies=copies):
            self._copies.on_lost(
                version.id
            )  # what is not recorded is not there; this reader has its bytes all the same
            return {}
        if complete:
            for tier in kept:
                self._count[tier]()
        return kept
