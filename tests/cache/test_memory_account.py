"""The account of memory: guaranteed shares, order, who is shed, and that nothing can lock up."""

from __future__ import annotations

import threading

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import trio_test, wait_all_tasks_blocked

from rig.cache_rig import in_thread
from tiercache.memory import SHARES, SMALLEST_BYTES, Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.units import MIB

PATIENT = (Purpose.READ, Purpose.REPLY, Purpose.FETCH, Purpose.WRITE, Purpose.UPLOAD)
TOTAL = 128 * MIB

CHAINS = {
    Purpose.REPLY: [Purpose.REPLY, Purpose.READ, Purpose.FETCH],
    Purpose.READ: [Purpose.READ, Purpose.FETCH],
    Purpose.WRITE: [Purpose.WRITE, Purpose.READ, Purpose.FETCH, Purpose.UPLOAD],
}
"""What is taken one after the other and held together: a client's read, a mount's, and the first write to a clean file
that then waits for an upload to make room."""


def figure(metrics: Metrics, name: str, purpose: Purpose) -> float:
    value = metrics.snapshot()[name]
    assert isinstance(value, dict)
    return value[purpose.label]


@trio_test
async def test_the_account_serves_in_order_of_arrival() -> None:
    """A large request waits for room and is not overtaken by small ones; a cancelled one makes way."""
    metrics = Metrics()
    memory = Memory(TOTAL, limits={Purpose.FETCH: 10}, metrics=metrics)
    served: list[str] = []

    async def take(name: str, size_bytes: int) -> None:
        await memory.take(Purpose.FETCH, size_bytes)
        served.append(name)

    async with trio.open_nursery() as nursery:
        await take("first", 6)
        nursery.start_soon(take, "large", 9)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await take("cancelled", 1)
        nursery.start_soon(take, "small", 1)
        await wait_all_tasks_blocked()
        assert served == ["first"]
        memory.release(Purpose.FETCH, 6)
        await wait_all_tasks_blocked()
        assert sorted(served) == ["first", "large", "small"]
        assert memory.used_bytes(Purpose.FETCH) == 10
    assert figure(metrics, "memory_waits_total", Purpose.FETCH) == 3
    assert figure(metrics, "memory_bytes", Purpose.FETCH) == 10


@trio_test
async def test_work_above_its_share_runs_alone() -> None:
    """It is charged as the whole share, so that it is done some time, and by itself."""
    memory = Memory(SMALLEST_BYTES)
    for purpose in PATIENT:
        charge = await memory.take(purpose, 10 * SMALLEST_BYTES)
        assert charge == memory.piece_bytes(purpose) == memory.used_bytes(purpose)
    assert memory.used_bytes() <= SMALLEST_BYTES


@trio_test
async def test_nobody_takes_what_is_guaranteed_to_others() -> None:
    """However much the other purposes take, each one that waits gets its own share at once."""
    for greedy in Purpose:
        memory = Memory(TOTAL)
        while memory.try_take(greedy, MIB):
            pass
        assert memory.used_bytes(greedy) > 0
        for purpose in PATIENT:
            if purpose is not greedy:
                charge = await memory.take(purpose, TOTAL)
                assert charge >= SHARES[purpose].guaranteed_bytes
        assert memory.used_bytes() <= TOTAL


@trio_test
async def test_read_ahead_is_shed_before_anybody_waits() -> None:
    """Read-ahead and promotion take nothing while somebody waits, and what they are refused is counted."""
    metrics = Metrics()
    memory = Memory(TOTAL, metrics=metrics)
    assert memory.try_take(Purpose.READAHEAD, MIB)
    async with trio.open_nursery() as nursery:
        taken = [await memory.take(Purpose.UPLOAD, MIB) for _ in range(TOTAL // 4 // MIB)]
        nursery.start_soon(memory.take, Purpose.UPLOAD, MIB)
        await wait_all_tasks_blocked()
        assert not memory.try_take(Purpose.READAHEAD, 1)
        assert not memory.try_take(Purpose.PROMOTION, 1)
        assert memory.try_take(Purpose.OVERFLOW, MIB), "its guaranteed share is its own"
        assert figure(metrics, "memory_shed_total", Purpose.READAHEAD) == 1
        memory.release(Purpose.UPLOAD, taken.pop())
        await wait_all_tasks_blocked()
        assert memory.try_take(Purpose.READAHEAD, 1)


@trio_test
async def test_those_who_only_keep_bytes_in_case_are_asked_before_anybody_waits() -> None:
    memory = Memory(TOTAL)
    while memory.try_take(Purpose.OVERFLOW, MIB):
        pass
    kept = memory.used_bytes(Purpose.OVERFLOW)
    asked: list[int] = []

    def give_back(wanted_bytes: int) -> None:
        asked.append(wanted_bytes)
        memory.release(Purpose.OVERFLOW, kept - memory.piece_bytes(Purpose.OVERFLOW))

    memory.on_pressure = give_back
    with trio.fail_after(5):
        for _ in range(64):
            await memory.take(Purpose.FETCH, MIB)
            if asked:
                break
    assert asked == [MIB]


@trio_test
async def test_threads_and_tasks_wake_each_other() -> None:
    """An upload's thread waits for what a task gives back, and the other way round."""
    memory = Memory(TOTAL, limits={Purpose.UPLOAD: MIB})
    held = await memory.take(Purpose.UPLOAD, MIB)
    async with trio.open_nursery() as nursery:
        entered = threading.Event()
        leave = threading.Event()

        def upload() -> None:
            with memory.held_in_thread(Purpose.UPLOAD, MIB):
                entered.set()
                leave.wait(10)

        nursery.start_soon(in_thread, upload)
        nursery.start_soon(in_thread, upload)
        await trio.testing.wait_all_tasks_blocked()
        assert not entered.is_set()
        memory.release(Purpose.UPLOAD, held)
        assert await in_thread(entered.wait, 10)
        nursery.start_soon(in_thread, leave.set)
        with trio.fail_after(10):
            memory.release(Purpose.UPLOAD, await memory.take(Purpose.UPLOAD, MIB))
    assert memory.used_bytes() == 0


@trio_test
async def test_a_total_that_shrinks_keeps_nobody_waiting_for_ever() -> None:
    """What was asked for under the larger total is served as the whole of the smaller share."""
    memory = Memory(8 * TOTAL)
    most = await memory.take(Purpose.FETCH, memory.piece_bytes(Purpose.FETCH))
    got: list[int] = []

    async def wait() -> None:
        got.append(await memory.take(Purpose.FETCH, most))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not got
        memory.resize(SMALLEST_BYTES)
        memory.release(Purpose.FETCH, most)
    assert got == [memory.piece_bytes(Purpose.FETCH)]
    memory.release(Purpose.FETCH, got[0])
    assert memory.used_bytes() == 0


def test_giving_back_too_much_is_a_bug() -> None:
    memory = Memory(TOTAL)
    with pytest.raises(AssertionError, match="more than was taken"):
        memory.release(Purpose.READ, 1)


@settings(deadline=None, max_examples=50)
@given(
    total=st.integers(SMALLEST_BYTES, 4 * SMALLEST_BYTES),
    wishes=st.lists(
        st.tuples(st.sampled_from(list(Purpose)), st.integers(0, 2 * SMALLEST_BYTES)), min_size=1, max_size=60
    ),
    shrunk=st.integers(SMALLEST_BYTES, 4 * SMALLEST_BYTES),
)
def test_whatever_is_asked_for_the_total_holds_and_everybody_is_served(
    total: int, wishes: list[tuple[Purpose, int]], shrunk: int
) -> None:
    """What the engine takes in chains ends for all, and never above the total, also when that changes in the middle."""
    memory = Memory(total)
    ended: list[int] = []

    async def chain(number: int, purpose: Purpose, size_bytes: int) -> None:
        if purpose not in PATIENT:
            if memory.try_take(purpose, size_bytes):
                await trio.lowlevel.checkpoint()
                memory.release(purpose, size_bytes)
            ended.append(number)
            return
        held: list[tuple[Purpose, int]] = []
        for step in CHAINS.get(purpose, [purpose]):
            held.append((step, await memory.take(step, size_bytes)))
            await trio.lowlevel.checkpoint()
        for step, charge in reversed(held):
            memory.release(step, charge)
        ended.append(number)

    async def run() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for number, (purpose, size_bytes) in enumerate(wishes):
                    nursery.start_soon(chain, number, purpose, size_bytes)
                await wait_all_tasks_blocked()
                memory.resize(shrunk)

    trio.run(run)
    assert sorted(ended) == list(range(len(wishes)))
    assert memory.used_bytes() == 0
    assert memory.peak_bytes <= max(total, shrunk)
