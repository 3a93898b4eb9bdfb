"""Fetches: each missing extent is asked of the origin once, in the cache's nursery, and shared by all who wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from tiercache.cache.copies import Copies
from tiercache.cache.crew import Crew
from tiercache.cache.draft import Draft
from tiercache.cache.fill import Fill, Filler, Written
from tiercache.cache.flight import Flight
from tiercache.cache.state import VersionState, VersionStates
from tiercache.cache.words import VersionRef
from tiercache.config import FetchConfig
from tiercache.decisions import Decisions, Topic
from tiercache.errors import Absent, Broken, Busy, Changed, TierCacheError
from tiercache.memory import Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES, Tier, VersionId

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)


class Fetcher:
    """Runs flights under two bounds: requests at a time, and bytes in memory at a time (the engine's account).

    A flight never fails the nursery it runs in: its error goes to those who wait for it, and is not remembered.
    """

    def __init__(
        self,
        copies: Copies,
        states: VersionStates,
        filler: Filler,
        *,
        fetch: FetchConfig,
        memory: Memory,
        decisions: Decisions,
        metrics: Metrics,
        nursery: trio.Nursery,
    ) -> None:
        self._copies = copies
        self._states = states
        self._filler = filler
        self._nursery = nursery
        self._crew = Crew(fetch.concurrency, copies.batch)
        self._few_spare = max(1, fetch.concurrency // 4)
        self._memory = memory
        self._decisions = decisions
        metrics.fetches_in_flight.set_function(lambda: self._crew.under_way)
        self._part_bytes = fetch.part_size

    @property
    def busy(self) -> bool:
        """Whether a further request would have to wait for its turn, or would make a reader's wait. Whether there is
        memory for it is asked when it is sent for."""
        return self._crew.spare < self._few_spare

    @property
    def blocks_per_request(self) -> int:
        """How many neighbouring blocks are one ranged GET."""
        return max(1, min(self._part_bytes, self._memory.piece_bytes(Purpose.FETCH)) // BLOCK_SIZE_BYTES)

    def start(self, version: VersionRef, state: VersionState, blocks: range) -> Flight:
        """Send for missing blocks, neighbours, none of them in flight."""
        return self._launch(version, state, Flight(blocks, version.size_bytes))

    def start_ahead(self, version: VersionRef, state: VersionState, blocks: range) -> Flight | None:
        """The same for nobody who waits; None when there is no memory to spare."""
        flight = Flight(blocks, version.size_bytes, ahead=True)
        if not self._memory.try_take(Purpose.READAHEAD, flight.length):
            return None
        return self._launch(version, state, flight)

    async def bring(self, version: VersionRef) -> bool:
        """Fetch a whole version of one block in the caller's task: for files in thousands, which nobody waits for, a
        task of its own costs too much. False, and nothing was done, when it is here or on its way. What the origin
        raises."""
        with self._states.use(version) as state:
            if state.unverified or state.has_or_awaits(0):
                return False
            flight = Flight(range(1), version.size_bytes)
            self._take_off(state, flight)
        failure = await self._run(version, flight)
        if failure is not None:
            raise failure
        return True

    def _launch(self, version: VersionRef, state: VersionState, flight: Flight) -> Flight:
        self._take_off(state, flight)
        self._nursery.start_soon(self._run, version, flight)
        return flight

    async def request(self, call: Callable[[], T], landed: Callable[[T], R]) -> R:
        """``landed(call())``, the call to an origin in a thread; the caller holds the memory for what it brings. The
        landing is inside a transaction of the catalog."""
        return await self._crew.run(call, landed)

    def drafts_in(self) -> str:
        """Where a worker may write what it fetched by name; empty: nowhere."""
        # Each of those that are under way may be about to write as much as it holds.
        return self._filler.drafts_in(self._memory.used_bytes(Purpose.FETCH))

    def keep_draft(self, version: VersionRef, data: memoryview, draft: Draft) -> None:
        """Fill the tiers with a whole object that was fetched by name and is written already, unless that is done or on
        its way."""
        with self._states.use(version) as state:
            begun = self._begin_keeping(version, state)
            if begun is not None:
                flight, fill = begun
                self._filler.end(fill, Filler.name(fill, draft, data))
                self._end(version, flight, data)

    async def keep(self, version: VersionRef, data: memoryview) -> None:
        """The same for one that is not written yet."""
        with self._states.use(version) as state:
            begun = self._begin_keeping(version, state)
            if begun is None:
                return
            flight, fill = begun
            try:
                await self._fill(fill, partial(Filler.write, fill, data))
            except BaseException:
                self._end(version, flight, Busy("the engine stops"))
                raise
            self._end(version, flight, data)

    def _begin_keeping(self, version: VersionRef, state: VersionState) -> tuple[Flight, Fill] | None:
        blocks = range(state.residency.block_count)
        if self.is_kept(version) or any(state.has_or_awaits(block) for block in blocks):
            return None
        flight = Flight(blocks, version.size_bytes)
        self._take_off(state, flight)
        return flight, self._filler.begin(version, state, flight)

    async def _fill(self, fill: Fill, write: Callable[[], Written]) -> Written:
        ended = False

        def landed(written: Written) -> Written:
            nonlocal ended
            ended = True
            self._filler.end(fill, written)
            return written

        try:
            return await self._crew.run(write, landed)
        except BaseException:
            if not ended:
                self._filler.cancel(fill)
            raise

    def is_kept(self, version: VersionRef) -> bool:
        """Whether a tier has all of it."""
        if self._copies.is_complete(version.id):
            return True
        return not version.size_bytes and any(version.id in tier for tier in self._copies.tiers.values())

    @staticmethod
    def _take_off(state: VersionState, flight: Flight) -> None:
        for block in flight.blocks:
            assert not state.has_or_awaits(block), "one fetch per block at a time"
            state.in_flight[block] = flight

    async def _run(self, version: VersionRef, flight: Flight) -> TierCacheError | None:
        """What went wrong; those who wait have been told."""
        outcome: memoryview | TierCacheError = Busy(f"{_name(version)}: the engine stops")
        purpose = Purpose.READAHEAD if flight.ahead else Purpose.FETCH
        charge = flight.length if flight.ahead else 0
        with self._states.use(version) as state:
            try:
                if not flight.ahead:
                    charge = await self._memory.take(purpose, flight.length)
                outcome = await self._fetch(version, state, flight)
            except TierCacheError as error:
                outcome = error
                self._decisions.note(version.id, Topic.FAILURE, why=str(error))
                if isinstance(error, Changed | Absent):
                    self._forget_incomplete(version.id, state)
            except Exception as error:
                log.exception("fetching %s failed in an unforeseen way", _name(version))
                outcome = Broken(f"{_name(version)}: {error}")
            finally:
                self._end(version, flight, outcome)
                failure = outcome if isinstance(outcome, TierCacheError) else None
                del outcome  # each listener has taken what it wants of it
                if flight.on_end is not None:
                    flight.on_end(flight.length)
                self._memory.release(purpose, charge)
        return failure

    async def _fetch(self, version: VersionRef, state: VersionState, flight: Flight) -> memoryview:
        fill = self._filler.begin(version, state, flight)
        written = await self._fill(fill, partial(_fetch_and_write, version, fill))
        return written.data

    def close(self) -> None:
        """No more requests."""
        self._crew.close()

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
