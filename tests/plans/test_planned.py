"""Many plans at once, within their bounds. Time is trio's mock clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tiercache.config import PlanConfig
from tiercache.errors import Absent, Busy
from tiercache.metrics import Metrics
from tiercache.model import Key, OriginId, VersionId
from tiercache.readahead import Brought, Plan, Planned

ORIGIN = OriginId(b"origin")
LATENCY_S = 0.030
FILE_BYTES = 100_000


def keys(entries: int, prefix: bytes = b"") -> list[Key]:
    return [b"%s%d" % (prefix, number) for number in range(entries)]


def listed(order: list[Key]) -> Callable[[int], Iterator[Key]]:
    return lambda first: iter(order[first:])


class Store:
    """Answers after ``LATENCY_S``; knows what it was asked for and how much was under way."""

    def __init__(self, *, kept: bool = True) -> None:
        self.kept = kept
        self.asked: list[Key] = []
        self.under_way = 0
        self.most = 0
        self.errors: dict[Key, Exception] = {}

    async def bring(self, key: Key) -> Brought:
        self.asked.append(key)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await trio.sleep(LATENCY_S)
        self.under_way -= 1
        if key in self.errors:
            raise self.errors[key]
        return Brought(VersionId(key), FILE_BYTES, came=True, kept=self.kept)


class Runner:
    def __init__(self, planned: Planned, metrics: Metrics) -> None:
        self.planned = planned
        self.metrics = metrics

    def figure(self, name: str) -> Any:
        return self.metrics.snapshot()[name]


@asynccontextmanager
async def runner(**settings: Any) -> AsyncIterator[Runner]:
    bounds = {name: settings.pop(name, 1 << 30) for name in ("spare_bytes",)}
    at_once = settings.pop("at_once", 56)
    metrics = Metrics()
    async with trio.open_nursery() as nursery:
        planned = Planned(PlanConfig(**settings), metrics, nursery, at_once=at_once, **bounds)
        yield Runner(planned, metrics)
        nursery.cancel_scope.cancel()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


async def read_all(planned: Planned, order: list[Key], *, each_s: float) -> None:
    for key in order:
        await trio.sleep(each_s)
        planned.opened(ORIGIN, key)


@pytest.mark.parametrize("each_s", [0.001, 0.002, 0.020])
def test_a_steady_reader_finds_all_but_the_first_files(each_s: float) -> None:
    async def scenario() -> None:
        async with runner(lead_min=16) as ours:
            store, order = Store(), keys(3000)
            ours.planned.start(Plan(listed(order)), ORIGIN, store.bring)
            await trio.sleep(LATENCY_S)  # as long as its first file would take
            await read_all(ours.planned, order, each_s=each_s)
            assert sorted(store.asked) == sorted(order)  # trio begins tasks in any order
            reads = ours.figure("plan_reads_total")
            assert reads["ready"] >= 2900
            assert reads["missed"] == 0

    run(scenario)


def test_no_more_is_under_way_and_ahead_than_allowed() -> None:
    async def scenario() -> None:
        async with runner(budget_bytes=5_000_000, at_once=7, lead_min=1000) as ours:
            store, order = Store(), keys(500)
            ours.planned.start(Plan(listed(order)), ORIGIN, store.bring)
            await trio.sleep(10)
            assert store.most == 7
            full = len(store.asked)
            assert 40 <= full <= 50
            assert ours.planned.held_bytes == full * FILE_BYTES
            for key in order[:5]:
                ours.planned.opened(ORIGIN, key)
            await trio.sleep(1)
            assert full < len(store.asked) <= 55
            assert ours.planned.held_bytes <= 5_000_000

    run(scenario)


def test_what_no_tier_keeps_is_brought_only_as_far_as_memory_has_room_for_it() -> None:
    async def scenario() -> None:
        async with runner(spare_bytes=1_000_000, at_once=4, lead_min=1000) as ours:
            store = Store(kept=False)
            ours.planned.start(Plan(listed(keys(500))), ORIGIN, store.bring)
            await trio.sleep(10)
            assert ours.planned.held_bytes <= 1_000_000 + 4 * FILE_BYTES

    run(scenario)


def test_the_reader_that_is_nearest_to_what_is_missing_comes_first() -> None:
    async def scenario() -> None:
        async with runner(at_once=2, lead_min=100) as ours:
            store = Store()
            for rank in (b"a", b"b", b"c"):
                ours.planned.start(Plan(listed(keys(500, rank))), ORIGIN, store.bring)
            await trio.sleep(45 * LATENCY_S)
            of_each = [sum(key.startswith(rank) for key in store.asked) for rank in (b"a", b"b", b"c")]
            assert max(of_each) - min(of_each) <= 2

    run(scenario)


def test_absent_and_failing_files_are_counted_and_disturb_nobody() -> None:
    async def scenario() -> None:
        async with runner(at_once=4) as ours:
            store, order = Store(), keys(100)
            store.errors = {order[3]: Absent("no such file"), order[5]: Busy("busy")}
            ours.planned.start(Plan(listed(order)), ORIGIN, store.bring)
            await trio.sleep(2)
            assert set(store.asked) == set(order)
            del store.errors[order[5]]
            await trio.sleep(2)
            told = ours.figure("plan_files_total")
            assert (told["fetched"], told["absent"], told["skipped"]) == (99, 1, 0)
            assert 1 <= told["failed"] <= 4
            assert ours.figure("plan_in_flight") == 0

    run(scenario)


def test_a_busy_origin_is_not_asked_for_everything_at_once() -> None:
    async def scenario() -> None:
        async with runner(at_once=4) as ours:
            store, order = Store(), keys(1000)
            store.errors = {key: Busy("busy") for key in order}
            ours.planned.start(Plan(listed(order)), ORIGIN, store.bring)
            await trio.sleep(5)
            assert len(store.asked) <= 4 * 10

    run(scenario)


def test_a_plan_that_ends_makes_room_for_the_next() -> None:
    async def scenario() -> None:
        async with runner(budget_bytes=1_048_576, lead_min=1000) as ours:
            store = Store()
            first = ours.planned.start(Plan(listed(keys(500, b"a"))), ORIGIN, store.bring)
            await trio.sleep(1)
            ours.planned.start(Plan(listed(keys(500, b"b"))), ORIGIN, store.bring)
            await trio.sleep(1)
            assert not any(key.startswith(b"b") for key in store.asked)
            ours.planned.end(first)
            await trio.sleep(1)
            assert sum(key.startswith(b"b") for key in store.asked) >= 8
            assert ours.figure("plans") == 1
            assert ours.figure("plan_files_total")["skipped"] >= 8

    run(scenario)


@pytest.mark.parametrize(("each_s", "all_of_them"), [(0.005, True), (0.0002, False)])
def test_only_readers_that_have_time_get_files_pushed(each_s: float, all_of_them: bool) -> None:
    """A fast one needs the processors for itself."""

    async def scenario() -> None:
        async with runner(lead_min=16) as ours:
            store, order, pushed = Store(), keys(3000), list[Key]()

            def push(key: Key) -> bool:
                pushed.append(key)
                return False

            running = ours.planned.start(Plan(listed(order)), ORIGIN, store.bring, push)
            ours.planned.reached(running, 0)
            await read_all(ours.planned, order, each_s=each_s)
            assert len(pushed) > 2900 if all_of_them else len(pushed) < 1000

    run(scenario)
