"""The threads that fetch: in order, within their number, and all that came back in one transaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from rig.cache_rig import in_thread
from tiercache.cache.crew import Crew
from tiercache.errors import Absent, Broken, NoSpace


class Together:
    """Counts the transactions, and what was landed in each."""

    def __init__(self) -> None:
        self.landed: list[list[object]] = []
        self.is_open = False
        self.fails_with: Exception | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.landed.append([])
        self.is_open = True
        yield
        self.is_open = False
        if self.fails_with is not None:
            raise self.fails_with

    def land(self, value: object) -> object:
        assert self.is_open
        self.landed[-1].append(value)
        return value


class Gate:
    """Calls that begin, and end when they are told."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.may_end = threading.Event()
        self._begins = threading.Semaphore(0)

    def call(self, number: int) -> Callable[[], int]:
        def run() -> int:
            self.begun.append(number)
            self._begins.release()
            assert self.may_end.wait(30)
            return number

        return run

    async def begins(self, calls: int) -> None:
        for _ in range(calls):
            assert await in_thread(self._begins.acquire, True, 30)


@contextmanager
def crew(size: int, together: Together) -> Iterator[Crew]:
    made = Crew(size, together)
    try:
        yield made
    finally:
        made.close()


@trio_test
async def test_calls_run_in_order_and_no_more_than_the_threads() -> None:
    together, gate = Together(), Gate()
    with crew(2, together) as threads:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(threads.run, gate.call(number), together.land)
                await wait_all_tasks_blocked()
            await gate.begins(2)
            assert (gate.begun, threads.under_way, threads.spare) == ([0, 1], 5, 0)
            gate.may_end.set()
        assert (sorted(gate.begun), threads.under_way, threads.spare) == ([0, 1, 2, 3, 4], 0, 2)


@trio_test
async def test_what_came_back_meanwhile_is_landed_in_one_transaction() -> None:
    together, gate = Together(), Gate()
    with crew(8, together) as threads:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(threads.run, gate.call(number), together.land)
            await gate.begins(8)
            gate.may_end.set()
            # This one thread is busy until all have come back: nothing can be landed before.
            while len(threads._back) < 8:
                pass
    assert [sorted(landed) for landed in together.landed] == [list(range(8))]


@trio_test
async def test_a_call_that_waits_is_given_up_and_one_that_runs_is_waited_for() -> None:
    together, gate = Together(), Gate()
    with crew(1, together) as threads:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(threads.run, gate.call(0), together.land)
            await gate.begins(1)
            nursery.start_soon(threads.run, gate.call(1), together.land)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            gate.may_end.set()
        assert threads.under_way == 0
        assert await threads.run(lambda: 2, together.land) == 2
    assert gate.begun == [0], "the second never ran"
    assert together.landed == [[0], [2]], "the first was landed all the same"


def fail(error: Exception) -> NoReturn:
    raise error


@trio_test
async def test_an_error_reaches_its_own_caller_alone() -> None:
    together = Together()
    found: dict[str, object] = {}
    with crew(4, together) as threads:

        async def run(name: str, call: Callable[[], object], landed: Callable[[object], object]) -> None:
            try:
                found[name] = await threads.run(call, landed)
            except Exception as error:
                found[name] = type(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "call", lambda: fail(Absent("no")), together.land)
            nursery.start_soon(run, "landing", lambda: 1, lambda _: fail(Broken("no")))
            nursery.start_soon(run, "bug", lambda: 1, lambda _: fail(ZeroDivisionError()))
            nursery.start_soon(run, "well", lambda: "well", together.land)
    assert found == {"call": Absent, "landing": Broken, "bug": ZeroDivisionError, "well": "well"}


@pytest.mark.parametrize("error", [NoSpace("the catalog is full"), ZeroDivisionError("the catalog is full")])
@trio_test
async def test_what_could_not_be_recorded_has_arrived_all_the_same(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    together = Together()
    together.fails_with = error
    with caplog.at_level(logging.WARNING), crew(1, together) as threads:
        assert await threads.run(lambda: b"bytes", together.land) == b"bytes"
        assert await threads.run(lambda: b"more", together.land) == b"more"
    assert "1 fetched files could not be recorded" in caplog.text


@trio_test
async def test_nobody_waits_for_ever_when_no_transaction_can_begin(caplog: pytest.LogCaptureFixture) -> None:
    @contextmanager
    def broken() -> Iterator[None]:
        raise Broken("the catalog failed")
        yield

    threads = Crew(2, broken)
    with trio.fail_after(30):
        assert await threads.run(lambda: b"bytes", lambda data: data) == b"bytes"
        with pytest.raises(Absent):
            await threads.run(lambda: fail(Absent("no")), lambda data: data)
    threads.close()
    assert (threads.under_way, "could not be recorded: the catalog failed" in caplog.text) == (0, True)


@trio_test
async def test_the_threads_end_with_it() -> None:
    together, before = Together(), threading.active_count()
    with crew(3, together) as threads:
        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(threads.run, lambda number=number: number, together.land)
        started = [thread for thread in threading.enumerate() if thread.name.startswith("tiercache-fetch")]
        assert 0 < len(started) <= 3
    for thread in started:
        await in_thread(thread.join, 30)
        assert not thread.is_alive()
    assert threading.active_count() <= before + 1, "trio keeps one thread for in_thread"
