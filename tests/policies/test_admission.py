"""What is let in: each rule alone, several together, and in front of every policy."""

from __future__ import annotations

import random

import pytest

from tiercache.bench.simulator.replay import Read, replay
from tiercache.globs import path_pattern
from tiercache.policies import POLICIES, make_policy
from tiercache.policies.admission import DAY_S, AllOf, Candidate, Everything, Names, SecondMiss, WriteBudget

A, B = Candidate(b"1", b"train/a.jpg"), Candidate(b"2", b"train/b.tmp")


def names(*, include: str = "", exclude: str = "") -> Names:
    return Names([path_pattern(path) for path in include.split()], [path_pattern(path) for path in exclude.split()])


@pytest.mark.parametrize(
    ("include", "exclude", "let_in"),
    [
        ("", "", [b"train/a.jpg", b"val/b.jpg", b"x.tmp"]),
        ("/train/", "", [b"train/a.jpg"]),
        ("", "*.tmp", [b"train/a.jpg", b"val/b.jpg"]),
        ("*.jpg *.tmp", "/val/", [b"train/a.jpg", b"x.tmp"]),
    ],
)
def test_names_are_let_in_that_are_included_and_not_excluded(include: str, exclude: str, let_in: list[bytes]) -> None:
    admission = names(include=include, exclude=exclude)
    every = [b"train/a.jpg", b"val/b.jpg", b"x.tmp"]
    assert [name for name in every if not admission.refuses(Candidate(b"", name), 0)] == let_in


def test_the_second_miss_within_the_window_lets_in() -> None:
    admission = SecondMiss(100, apart_s=10, keys_max=10)
    assert admission.refuses(A, 0) == "first miss"
    assert admission.refuses(B, 20) == "first miss"
    assert not admission.refuses(A, 100)
    assert admission.refuses(B, 121) == "first miss", "too late: it counts as the first again"
    assert not admission.refuses(B, 131)


def test_misses_near_to_one_another_are_one() -> None:
    """Of the parts of a large object, however long the reading takes, or by many readers at a time."""
    admission = SecondMiss(100, apart_s=10, keys_max=10)
    for now_s in range(0, 200, 9):
        assert admission.refuses(A, now_s)
    assert not admission.refuses(A, now_s + 10)


def test_no_more_missed_keys_are_remembered_than_allowed_and_none_beyond_the_window() -> None:
    admission = SecondMiss(100, apart_s=1, keys_max=3)
    for number in range(5):
        admission.refuses(Candidate(b"%d" % number, b""), number)
    assert len(admission) == 3
    assert admission.refuses(Candidate(b"0", b""), 10), "forgotten for those that came after it"
    assert not admission.refuses(Candidate(b"4", b""), 10)
    admission.refuses(A, 1000)
    assert len(admission) == 1


def test_what_is_welcome_needs_no_first_miss() -> None:
    admission = AllOf([SecondMiss(100, apart_s=10, keys_max=10)])
    admission.welcome(A.key, 5)
    assert not admission.refuses(A, 5)


def test_a_budget_of_writes_is_spread_over_the_day_and_what_is_overdrawn_is_made_up_for() -> None:
    budget = WriteBudget(24_000, 0)  # 1000 an hour
    assert not budget.refuses(A, 0)
    budget.writes(1500, 0)  # let in with room for 1000
    assert budget.left_bytes(0) == -500
    assert budget.refuses(A, 1800) == "write budget"
    assert not budget.refuses(A, 1801)
    assert budget.left_bytes(5 * DAY_S) == 1000, "no more than an hour is carried on"


def test_no_more_is_written_in_a_day_than_the_budget_and_its_hour() -> None:
    budget, written = WriteBudget(24_000, 0), 0
    for now_s in range(0, int(DAY_S), 7):
        if not budget.refuses(A, now_s):
            budget.writes(10, now_s)
            written += 10
    assert 24_000 <= written <= 25_010


def test_of_several_all_must_let_in_and_the_first_that_does_not_is_told() -> None:
    budget = WriteBudget(24_000, 0)
    admission = AllOf([names(exclude="*.tmp"), budget, SecondMiss(100, apart_s=10, keys_max=10)])
    assert admission.refuses(B, 0) == "name"
    assert admission.refuses(A, 0) == "first miss"
    admission.writes(2000, 0)
    assert admission.refuses(A, 10) == "write budget"
    budget.writes(-2000, 0)
    assert not admission.refuses(A, 10), "the miss was not used up by the other refusals"


@pytest.mark.parametrize("name", POLICIES)
def test_a_scan_writes_nothing_whatever_the_policy(name: str) -> None:
    """A working set is read over and over, and a scan passes through it."""
    generator = random.Random(5)
    trace: list[Read] = []
    for number in range(3_000):
        trace += [(b"hot%d" % generator.randrange(50), 1), (b"scan%d" % number, 1)]
    counts = replay(make_policy(name, 100), 100, trace, admission=SecondMiss(1_000, apart_s=0, keys_max=1_000))
    assert counts.written_bytes == 50
    assert counts.hits >= 3_000 - 2 * 50
    assert replay(make_policy(name, 100), 100, trace, admission=Everything()) == replay(
        make_policy(name, 100), 100, trace
    )
