"""Openings: an unknown object is described and, when small, fetched in one round trip, shared by all who open it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from tiercache.cache.draft import Draft
from tiercache.cache.fetch import Fetcher
from tiercache.cache.words import VersionRef, version_ref
from tiercache.decisions import Decisions, Topic
from tiercache.errors import Absent, Broken, Busy, IsDirectory, TierCacheError
from tiercache.memory import Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.model import Key, Kind, ObjectStat, OriginId
from tiercache.origins.base import Origin

log = logging.getLogger(__name__)

Opened = tuple[ObjectStat, VersionRef, memoryview | None]
_Answer = tuple[ObjectStat, memoryview | None, Draft | None]
_Name = tuple[OriginId, Key, int]


class _Opening:
    __slots__ = ("ahead", "charge", "done", "openers", "outcome")

    def __init__(self, *, ahead: bool) -> None:
        self.ahead = ahead
        """Nobody reads it yet."""
        self.done = trio.Event()
        self.outcome: Opened | TierCacheError = Busy("the engine stops")
        self.openers = 0
        self.charge = 0
        """What its bytes take of the memory, until the last opener has them."""


class Openings:
    """One whole GET per name at a time. Its answer is never remembered: only its bytes are, under their version."""

    def __init__(
        self, fetcher: Fetcher, *, memory: Memory, decisions: Decisions, metrics: Metrics, nursery: trio.Nursery
    ) -> None:
        self._fetcher = fetcher
        self._memory = memory
        self._nursery = nursery
        self._decisions = decisions
        self._count_misses = metrics.misses
        self._count_bytes = metrics.read_bytes.labels(tier="origin")
        self._openings: dict[_Name, _Opening] = {}

    async def open(
        self,
        origin: Origin,
        origin_id: OriginId,
        key: Key,
        limit_bytes: int,
        on_answer: Callable[[ObjectStat], None] = lambda stat: None,
        *,
        ahead: bool = False,
    ) -> Opened:
        name = (origin_id, key, limit_bytes)
        opening = self._openings.get(name)
        if opening is None:
            opening = self._openings[name] = _Opening(ahead=ahead)
            if ahead:
                await self._run(origin, name, opening, on_answer)
            else:
                self._nursery.start_soon(self._run, origin, name, opening, on_answer)
        opening.openers += 1
        try:
            await opening.done.wait()
        finally:
            opening.openers -= 1
            self._settle(opening)
        if isinstance(opening.outcome, TierCacheError):
            raise type(opening.outcome)(*opening.outcome.args) from opening.outcome
        return opening.outcome

    async def _run(
        self, origin: Origin, name: _Name, opening: _Opening, on_answer: Callable[[ObjectStat], None]
    ) -> None:
        try:
            opening.outcome = await self._open(origin, name, opening, on_answer)
        except TierCacheError as error:
            opening.outcome = error
            if not isinstance(error, Absent | IsDirectory):
                self._decisions.note(name[:2], Topic.FAILURE, why=str(error))
        except Exception as error:
            log.exception("opening %r failed in an unforeseen way", name[1])
            opening.outcome = Broken(f"{name[1]!r}: {error}")
        finally:
            del self._openings[name]
            opening.done.set()
            self._settle(opening)

    def _settle(self, opening: _Opening) -> None:
        if opening.done.is_set() and not opening.openers:
            self._resize(opening, 0)

    def _resize(self, opening: _Opening, size_bytes: int) -> None:
        """Keep no more memory than the bytes take that came."""
        surplus_bytes = max(0, opening.charge - size_bytes)
        opening.charge -= surplus_bytes
        self._memory.release(Purpose.FETCH, surplus_bytes)

    async def _open(
        self, origin: Origin, name: _Name, opening: _Opening, on_answer: Callable[[ObjectStat], None]
    ) -> Opened:
        origin_id, key, limit_bytes = name
        opening.charge = await self._memory.take(Purpose.FETCH, limit_bytes)
        directory = self._fetcher.drafts_in()

        def landed(answer: _Answer) -> tuple[Opened, bool]:
            stat, data, draft = answer
            self._resize(opening, 0 if data is None else len(data))
            version = version_ref(origin, origin_id, stat)
            if data is None or stat.kind != Kind.FILE:
                on_answer(stat)
                return (stat, version, None), True
            if len(data) != stat.size_bytes:
                raise Broken(f"{key!r}: {len(data)} bytes came of an object of {stat.size_bytes}")
            if draft is None:
                return (stat, version, data), False
            with draft:
                self._fetcher.keep_draft(version, data, draft)
            self._count(opening, version)
            on_answer(stat)
            return (stat, version, data.toreadonly()), True

        opened, kept = await self._fetcher.request(lambda: _read_whole(origin, key, limit_bytes, directory), landed)
        if not kept:
            stat, version, data = opened
            assert data is not None, "what is not kept are bytes"
            await self._fetcher.keep(version, data)
            self._count(opening, version)
            on_answer(stat)
            opened = stat, version, data.toreadonly()
        return opened

    def _count(self, opening: _Opening, version: VersionRef) -> None:
        """What no tier keeps is counted when it is read."""
        if not opening.ahead and self._fetcher.is_kept(version):
            self._count_misses.inc()
            self._count_bytes.inc(version.size_bytes)


def _read_whole(origin: Origin, key: Key, limit_bytes: int, drafts_in: str) -> _Answer:
    """In a worker thread: fetch, and write what came where it can be kept from."""
    stat, data = origin.read_whole(key, limit_bytes)
    wanted = bool(drafts_in) and stat.kind is Kind.FILE and data is not None and len(data) == stat.size_bytes
    draft = Draft.write(drafts_in, data) if wanted and data is not None else None
    return stat, data, draft
