"""The cache: bytes of versions from the nearest tier that has them, else from the origin, which fills the tiers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import trio

from tiercache.cache.copies import Copies
from tiercache.cache.fetch import Fetcher
from tiercache.cache.fill import Filler
from tiercache.cache.lent_copies import LentCopies
from tiercache.cache.move import adopt, rebind, take_out
from tiercache.cache.opening import Opened, Openings
from tiercache.cache.overflow import Overflow
from tiercache.cache.promote import Promoter
from tiercache.cache.reader import Ahead, Reader
from tiercache.cache.recovery import Recovered, recover
from tiercache.cache.state import VersionStates
from tiercache.cache.verify import Verifier
from tiercache.cache.words import Location, VersionRef
from tiercache.catalog import Catalog
from tiercache.config import FetchConfig
from tiercache.decisions import FORGETFUL, Decisions
from tiercache.errors import TierCacheError
from tiercache.memory import Memory
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES, Key, ObjectStat, OriginId, Tier, VersionId
from tiercache.origins.base import Origin
from tiercache.tier import FileTier

TRIM_INTERVAL_S = 1.0

log = logging.getLogger(__name__)


class Cache:
    """Tiers, catalog and fetches of one engine. All methods are called from the engine's trio thread.

    Errors of a tier are misses. Errors of an origin (Absent, Denied, Busy, Changed, Broken) reach every reader that
    waits for the bytes, and are never remembered. Nothing but the exact bytes of a version is ever returned.
    Fetches run in ``nursery`` and never fail it; its cancellation ends the cache.
    """

    def __init__(
        self,
        catalog: Catalog,
        tiers: Sequence[FileTier],
        *,
        fetch: FetchConfig,
        memory: Memory,
        metrics: Metrics,
        nursery: trio.Nursery,
        run_id: int,
        verify: Literal["open", "read"] = "open",
        decisions: Decisions = FORGETFUL,
    ) -> None:
        by_speed = {tier.tier: tier for tier in sorted(tiers, key=lambda tier: tier.tier)}
        self._trusting = verify == "open"
        self.tiers: Mapping[Tier, FileTier] = by_speed
        """To look at; the fastest comes first."""
        self._copies = Copies(
            catalog, by_speed, decisions=decisions, metrics=metrics, run_id=run_id, trusted=self._trusting
        )
        self._states = VersionStates(self._copies.load)
        self._copies.on_lost = self._lost
        self._overflow = Overflow(memory)
        memory.on_pressure = self._overflow.give_back
        filler = Filler(self._copies, self._overflow, decisions=decisions, metrics=metrics)
        self._fetcher = Fetcher(
            self._copies,
            self._states,
            filler,
            fetch=fetch,
            memory=memory,
            decisions=decisions,
            metrics=metrics,
            nursery=nursery,
        )
        self._verifier = Verifier(self._copies, self._states, nursery=nursery)
        self._promoter = Promoter(self._copies, memory=memory, decisions=decisions, metrics=metrics, nursery=nursery)
        self._openings = Openings(self._fetcher, memory=memory, decisions=decisions, metrics=metrics, nursery=nursery)
        self._reader = Reader(
            self._copies,
            self._states,
            self._fetcher,
            self._verifier,
            self._promoter,
            self._overflow,
            memory=memory,
            metrics=metrics,
            trusting=self._trusting,
        )
        self._lent_copies = LentCopies(self._copies, nursery)
        self._nursery = nursery
        if Tier.NVME in by_speed:
            by_speed[Tier.NVME].on_out = self._disk_is_out
        self._pins: Counter[VersionId] = Counter()
        self.kept: frozenset[VersionId] = frozenset()
        """Versions that the NVMe tier never evicts."""
        self.is_kept: Callable[[VersionId], bool] = lambda version: False
        """Whether it does not evict another version, which is asked for each candidate."""
        self.on_left: Callable[[VersionId], None] = lambda version: None
        """A version has no copy in it any more."""
        for tier in by_speed.values():
            tier.is_pinned = self._is_pinned if tier.tier is not Tier.NVME else self._is_pinned_or_kept

    # --- finding ------------------------------------------------------------------------------------------------

    def locate(self, version: VersionRef) -> Location | None:
        """The fastest complete copy whose bytes this run has checked. One catalog lookup and one stat, no thread.

        Always None with ``verify="read"``.
        """
        return self._copies.locate(version)

    def is_complete(self, version: VersionId) -> bool:
        """Whether a complete copy is recorded, checked or not. No look at its file."""
        return self._copies.is_complete(version)

    def open_local(self, version: VersionRef, *, on_nvme: bool = False) -> int | None:
        """A descriptor of a complete, checked copy (the fastest, or the one on the NVMe tier), counted as a hit. It
        stays the cache's, and is good until the next call. None where there is none, always with ``verify="read"``."""
        fd = self._reader.open_local(version, on_nvme=on_nvme) if self._trusting else None
        if fd is not None:
            self._lent_copies.opened(version)
        return fd

    def expect_read(self, version: VersionRef, length: int) -> bool:
        """Let the disk begin to read the first ``length`` bytes of a complete, checked copy. It counts as no hit, and
        never waits for the disk. Whether there is such a copy."""
        return self._trusting and self._reader.expect_read(version, length)

    async def locate_verified(self, version: VersionRef) -> Location | None:
        """As ``locate``, but compares a complete copy of an earlier run with its checksums first, in a thread."""
        location = self._copies.locate(version)
        if location is not None or not self._trusting:
            return location
        with self._states.use(version) as state:
            if state.unverified:
                await self._verifier.check(version, state, range(state.residency.block_count))
        return self._copies.locate(version)

    # --- reading ------------------------------------------------------------------------------------------------

    async def read(self, version: VersionRef, offset: int, length: int) -> bytes | memoryview:
        """Bytes of a version from anywhere; fewer than ``length`` only at the end of the object.

        A hit does not touch a thread (up to 4 MiB) and does not yield to the scheduler.
        """
        length = min(length, version.size_bytes - offset)
        return await self._reader.read(version, offset, length) if length > 0 else b""

    async def ensure(self, version: VersionRef, offset: int, length: int, *, ahead: bool = False) -> Location | None:
        """Bring the blocks of a range into a file that the caller may then read by itself, at the object's own offsets.
        ``ahead``: nobody reads them yet, so that it counts as neither hit nor miss.

        The caller opens it, compares the inode, and falls back to ``read`` if it is another. None when the blocks
        cannot be kept (too large, not admitted, no tier works, ``verify="read"``): then ``read`` gives the bytes.
        """
        if not self._trusting:
            return None
        if not version.size_bytes:
            await self._fetcher.keep(version, memoryview(b""))
            return await self.locate_verified(version)
        length = min(length, version.size_bytes - offset)
        return await self._reader.ensure(version, offset, length, ahead=ahead)

    async def ensure_small(
        self,
        origin: Origin,
        origin_id: OriginId,
        key: Key,
        limit: int,
        *,
        on_answer: Callable[[ObjectStat], None] = lambda stat: None,
        ahead: bool = False,
    ) -> Opened:
        """Describe a name and, if it is a file of at most ``limit`` bytes, fetch and keep it: one round trip.

        The stat, the version, and the bytes (None for a larger object or another kind of name). ``on_answer`` of the
        caller that caused the request is called before it counts as ended, so that what it remembers leaves no gap in
        which another caller would ask again.
        """
        return await self._openings.open(origin, origin_id, key, limit, on_answer, ahead=ahead)

    async def bring(self, version: VersionRef, length: int) -> bool:
        """Make the first ``length`` bytes resident for nobody who waits; whether they are kept."""
        small = self._trusting and 0 < version.size_bytes <= min(length, BLOCK_SIZE_BYTES)
        if small and await self._fetcher.bring(version):
            return self.is_complete(version.id)
        return await self.ensure(version, 0, length, ahead=True) is not None

    def prefetch(self, version: VersionRef, offset: int, length: int) -> Ahead | None:
        """Send for what is missing of a range that nobody waits for, as far as there is memory to spare.

        None, and nothing was done, when it would be in the way of fetches that somebody waits for.
        """
        if self._fetcher.busy:
            return None
        ahead = self._reader.prefetch(version, offset, min(length, version.size_bytes - offset))
        return ahead if ahead.stop > offset else None

    # --- keeping ------------------------------------------------------------------------------------------------

    def adopt(self, version: VersionRef, path: str, checksums: bytes) -> bool:
        """Rename a file with all bytes of a version into the NVMe tier (same disk) as a complete, checked copy.

        ``checksums`` as ``tiercache.checksum.block_checksums`` makes them. False if the tier does not take it; what is
        left at ``path`` is the caller's to unlink.
        """
        return adopt(self._copies, version, path, checksums)

    def take_out(self, version: VersionRef, path: str, *, file_inode: int) -> bytes | None:
        """The opposite of ``adopt``: rename the NVMe copy, if it is the file with this inode number, to ``path`` and
        forget the version. Its checksums, or None and nothing is changed."""
        return take_out(self._copies, version, path, file_inode=file_inode)

    def rebind(self, old: VersionId, new: VersionRef) -> None:
        """The bytes of ``old`` got another etag (their metadata changed): they are those of ``new`` from now on."""
        rebind(self._copies, old, new)

    def checksums(self, version: VersionRef) -> bytes:
        """Of the blocks of a version that is complete here; ``b""`` if it is not."""
        record = self._copies.records.find(version.id)
        return record.checksums if record is not None and record.complete else b""

    def touched(self, versions: Iterable[VersionId]) -> None:
        """Clients read these complete copies by themselves."""
        for version in versions:
            for tier in self._copies.tiers.values():
                tier.accessed(version)
            if self._promoter.is_promoted(version):
                continue  # before the record is looked up: these are most of the hits
            record = self._copies.records.find(version)
            if record is not None and record.complete:
                self._promoter.consider(version, record.size_bytes)

    def welcome(self, version: VersionId) -> None:
        """Somebody asks for this version to be kept, who does not only read it."""
        for tier in self._copies.tiers.values():
            tier.welcome(version)

    def drop(self, version: VersionId) -> None:
        """Forget a version and its files, because it is of no use any more; readers that have them open go on."""
        self._copies.drop(version)
        self._overflow.drop(version)

    @contextmanager
    def pin(self, version: VersionId) -> Iterator[None]:
        """While this lasts the version is not evicted (damage and ``drop`` still remove it)."""
        self._pins[version] += 1
        try:
            yield
        finally:
            self._pins[version] -= 1
            if not self._pins[version]:
                del self._pins[version]

    # --- life ---------------------------------------------------------------------------------------------------

    async def recover(self) -> Recovered:
        """Bring records and files that an earlier run left in step; once, before the first read."""
        return await recover(self._copies)

    def reserve_for(self, others_bytes: Callable[[], int]) -> None:
        """Keep so much of the NVMe tier's disk free, besides its floor, for bytes that are not the cache's."""
        nvme = self._copies.tiers.get(Tier.NVME)
        if nvme is not None:
            nvme.reserved_bytes = others_bytes

    def give_room(self, wanted_bytes: int) -> bool:
        """Evict that much from the NVMe tier for others who find its disk full; False when nothing can go."""
        nvme = self._copies.tiers.get(Tier.NVME)
        return nvme is not None and nvme.give_room(wanted_bytes)

    async def run_trimmer(self, interval_s: float = TRIM_INTERVAL_S) -> None:
        """Keep the free-space floor while others fill the disk; a service that runs until it is cancelled."""
        while True:
            await trio.sleep(interval_s)
            self._overflow.age()
            for tier in self._copies.tiers.values():
                tier.trim()
            self.probe()

    def probe(self) -> None:
        """Look at disks that are out of use, where that is due, and at one of which the kernel reads by itself."""
        self._lent_copies.look()
        for tier in self._copies.tiers.values():
            if tier.probe_is_due:
                tier.begin_probe()
                self._nursery.start_soon(self._probe, tier)

    async def _probe(self, tier: FileTier) -> None:
        took_s = await trio.to_thread.run_sync(tier.probe, abandon_on_cancel=True)
        if took_s is not None and tier.tier is Tier.NVME:
            await self._distrust_all()
            # What was in use while the disk was out knows nothing of its files, and would fill them anew.
            for version in self._states.reset_all():
                self._copies.drop_copy(version, Tier.NVME)
        tier.probed(took_s)

    def _disk_is_out(self) -> None:
        self._copies.close()
        self._states.reset_all()
        self._nursery.start_soon(self._distrust_all)

    async def _distrust_all(self) -> None:
        try:
            await self._copies.distrust_all()
        except TierCacheError as error:
            log.warning("the catalog cannot tell what is to be verified: %s", error)

    def close(self) -> None:
        """Close the descriptors, end the threads. The nursery is the caller's to end, before."""
        self._fetcher.close()
        self._copies.close()

    def held_by(self, version: VersionId) -> list[str]:
        """What keeps the NVMe copy of a version from being evicted now, each in a word or two."""
        held = {
            "kept checkpoint": version in self.kept,
            "pinned": self.is_kept(version),
            "in use": self._is_pinned(version),
        }
        return [what for what, holds in held.items() if holds]

    def _is_pinned_or_kept(self, version: VersionId) -> bool:
        return version in self.kept or self._is_pinned(version) or self.is_kept(version)

    def _lost(self, version: VersionId) -> None:
        self._states.reset(version)
        self.on_left(version)

    def _is_pinned(self, version: VersionId) -> bool:
        return version in self._pins or self._states.is_in_flight(version) or self._promoter.is_running(version)
