"""Whose item is next, when many batches share a few threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tiercache.errors import Busy
from tiercache.origins.fair_pool import FairPool

LIMIT_S = 30.0


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


@pytest.fixture
def pool() -> Iterator[FairPool]:
    made = FairPool(1, "test")
    yield made
    made.close()


class Log:
    """Items in the order in which they were done; the first one of all waits until ``go``."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, item: str) -> str:
        self.begun.set()
        assert self.go.wait(LIMIT_S)
        self.done.append(item)
        return item.upper()


def test_results_are_in_the_order_of_the_items() -> None:
    pool = FairPool(4, "test")
    assert pool.map(lambda n: n * n, range(100)) == [n * n for n in range(100)]
    assert pool.map(str, []) == []
    pool.close()


def test_a_small_batch_does_not_wait_for_the_end_of_a_large_one(pool: FairPool, callers: ThreadPoolExecutor) -> None:
    log = Log()
    large = callers.submit(pool.map, log, [f"l{n}" for n in range(10_000)])
    assert log.begun.wait(LIMIT_S)
    small = callers.submit(pool.map, log, ["s0", "s1"])
    while len(pool._ring) < 2:
        threading.Event().wait(0.001)
    log.go.set()
    assert small.result(LIMIT_S) == ["S0", "S1"]
    large.result(LIMIT_S)
    assert [item for item in log.done[:6] if item[0] == "s"] == ["s0", "s1"]


def test_after_an_error_nothing_further_of_the_batch_is_begun(pool: FairPool) -> None:
    begun: list[int] = []

    def fail(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise ValueError("two")

    with pytest.raises(ValueError, match="two"):
        pool.map(fail, range(100))
    assert begun == [0, 1, 2]
    assert pool.map(str, [1]) == ["1"]


def test_an_error_is_raised_when_all_that_were_begun_have_ended(callers: ThreadPoolExecutor) -> None:
    pool = FairPool(2, "test")
    failed, go = threading.Event(), threading.Event()
    ended: list[str] = []

    def work(item: str) -> None:
        if item == "fails":
            failed.set()
            raise ValueError("it")
        assert go.wait(LIMIT_S)
        ended.append(item)

    result = callers.submit(pool.map, work, ["slow", "fails"])
    assert failed.wait(LIMIT_S)
    assert not result.done()
    go.set()
    with pytest.raises(ValueError, match="it"):
        result.result(LIMIT_S)
    assert ended == ["slow"]
    pool.close()


def test_closing_ends_what_was_not_begun(pool: FairPool, callers: ThreadPoolExecutor) -> None:
    log = Log()
    result = callers.submit(pool.map, log, ["a", "b"])
    assert log.begun.wait(LIMIT_S)
    pool.close()
    log.go.set()
    with pytest.raises(Busy):
        result.result(LIMIT_S)
    assert log.done == ["a"]
    with pytest.raises(Busy):
        pool.map(str, [1])
