"""Fetches: each missing extent is asked of the origin once, in the cache's nursery, and shared by all who wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import trio

from tiercache.cache.budget import ByteBudget
from tiercache.cache.copies import Copies
from tiercache.cache.fill import Fill, Filler, Written
from tiercache.cache.flight import Flight
from tiercache.cache.state import VersionState, VersionStates
from tiercache.cache.words import VersionRef
from tiercache.config import FetchConfig
from tiercache.errors import Absent, Broken, Busy, Changed, TierCacheError
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES, Tier, VersionId

T = TypeVar("T")

log = logging.getLogger(__name__)


class Fetcher:
    """Runs flights under two bounds: requests at a time, and bytes in memory at a time.

    A flight never fails the nursery it runs in: its error goes to those who wait for it, and is not remembered.
    """

    def __init__(
        self,
        copies: Copies,
        states: VersionStates,
        filler: Filler,
        *,
        fetch: FetchConfig,
        metrics: Metrics,
        nursery: trio.Nursery,
    ) -> None:
        self._copies = copies
        self._states = states
        self._filler = filler
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(fetch.concurrency)
        self._budget = ByteBudget(fetch.buffer_bytes)
        self._gauge = metrics.fetches_in_flight
        self.blocks_per_request = max(1, fetch.part_size // BLOCK_SIZE_BYTES)

    @property
    def busy(self) -> bool:
        """Whether a further request would have to wait, or would make a reader's wait."""
        return self._budget.contended or self._limiter.available_tokens < max(1, self._limiter.total_tokens // 4)

    def start(self, version: VersionRef, state: VersionState, blocks: range) -> Flight:
        """Send for missing blocks, neighbours, none of them in flight."""
        flight = self._take_off(version, state, blocks)
        self._nursery.start_soon(self._run, version, flight)
        return flight

    async def request(self, size_bytes: int, call: Callable[[], T]) -> T:
        """Run one blocking call to an origin within the bounds."""
        charge = await self._budget.acquire(size_bytes)
        self._gauge.inc()
        try:
            return await trio.to_thread.run_sync(call, limiter=self._limiter)
        finally:
            self._gauge.dec()
            self._budget.release(charge)

    async def keep(self, version: VersionRef, data: memoryview) -> None:
        """Fill the tiers with a whole object that was fetched by name, unless that is done or on its way."""
        with self._states.use(version) as state:
            blocks = range(state.residency.block_count)
            if self._is_kept(version) or any(state.has_or_awaits(block) for block in blocks):
                return
            flight = self._take_off(version, state, blocks)
            fill = self._filler.begin(version, state, flight)
            try:
                written = await trio.to_thread.run_sync(Filler.write, fill, data, limiter=self._limiter)
            except BaseException:
                self._filler.cancel(fill)
                self._end(version, flight, Busy("the engine stops"))
                raise
            self._filler.end(fill, written)
            self._end(version, flight, data)

    def _is_kept(self, version: VersionRef) -> bool:
        if self._copies.is_complete(version.id):
            return True
        return not version.size_bytes and any(version.id in tier for tier in self._copies.tiers.values())

    def _take_off(self, version: VersionRef, state: VersionState, blocks: range) -> Flight:
        flight = Flight(blocks, version.size_bytes)
        for block in blocks:
            assert not state.has_or_awaits(block), "one fetch per block at a time"
            state.in_flight[block] = flight
        return flight

    async def _run(self, version: VersionRef, flight: Flight) -> None:
        outcome: memoryview | TierCacheError = Busy(f"{_name(version)}: the engine stops")
        with self._states.use(version) as state:
            try:
                outcome = await self._fetch(version, state, flight)
            except TierCacheError as error:
                outcome = error
                if isinstance(error, Changed | Absent):
                    self._forget_incomplete(version.id, state)
            except Exception as error:
                log.exception("fetching %s failed in an unforeseen way", _name(version))
                outcome = Broken(f"{_name(version)}: {error}")
            finally:
                self._end(version, flight, outcome)

    async def _fetch(self, version: VersionRef, state: VersionState, flight: Flight) -> memoryview:
        charge = await self._budget.acquire(flight.length)
        self._gauge.inc()
        try:
            fill = self._filler.begin(version, state, flight)
            try:
                written = await trio.to_thread.run_sync(_fetch_and_write, version, fill, limiter=self._limiter)
            except BaseException:
                self._filler.cancel(fill)
                raise
            self._filler.end(fill, written)
            return written.data
        finally:
            self._gauge.dec()
            self._budget.release(charge)

    def _end(self, version: VersionRef, flight: Flight, outcome: memoryview | TierCacheError) -> None:
        state = self._states.get(version.id)
        assert state is not None, "a flight uses its version's state"
        for block in flight.blocks:
            del state.in_flight[block]
        if isinstance(outcome, TierCacheError):
            flight.fail(outcome)
        else:
            flight.land(outcome)

    def _forget_incomplete(self, version: VersionId, state: VersionState) -> None:
        """The origin has no more of this version: what is here of it can never become whole."""
        if not state.residency.empty and not state.residency.complete:
            self._copies.drop_copy(version, Tier.NVME)


def _fetch_and_write(version: VersionRef, fill: Fill) -> Written:
    flight = fill.flight
    data = version.origin.read(version.key, flight.offset, flight.length, version.etag)
    if len(data) != flight.length:
        raise Broken(f"{_name(version)}: {len(data)} bytes came where {flight.length} were asked for")
    return Filler.write(fill, memoryview(data))


def _name(version: VersionRef) -> str:
    return version.key.decode("utf-8", "backslashreplace")
