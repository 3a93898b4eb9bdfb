"""What every policy keeps, under any order of calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.errors import ConfigError
from tiercache.policies import POLICIES, Planned, Policy, make_policy
from tiercache.policies.base import nothing_pinned
from tiercache.policies.ranking import Ranking
from tiercache.policies.sketch import COUNT_MAX, FrequencySketch

CAPACITY_BYTES = 100
KEYS = [bytes([letter]) for letter in range(12)]
CALLS = st.lists(
    st.tuples(st.sampled_from(["read", "remove", "evict", "resize"]), st.sampled_from(KEYS), st.integers(0, 60)),
    max_size=80,
)

every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def fits(resident: dict[bytes, int], size: int) -> bool:
    return sum(resident.values()) + size <= CAPACITY_BYTES


@every_policy
@given(calls=CALLS, pinned=st.sets(st.sampled_from(KEYS)))
@settings(max_examples=100, deadline=None)
def test_residents_are_those_inserted_and_not_evicted_or_removed(
    name: str, calls: list[tuple[str, bytes, int]], pinned: set[bytes]
) -> None:
    policy = make_policy(name, CAPACITY_BYTES)
    resident: dict[bytes, int] = {}

    def evict() -> bool:
        victim = policy.evict(pinned.__contains__)
        if victim is None:
            assert pinned.issuperset(resident), "there was a victim"
            return False
        assert victim not in pinned
        del resident[victim]
        return True

    for call, key, size in calls:
        match call:
            case "read" if key in resident:
                policy.access(key)
            case "read" if policy.admits(key, size):
                while not fits(resident, size) and evict():
                    pass
                if fits(resident, size):
                    policy.insert(key, size)
                    resident[key] = size
            case "resize" if key in resident and fits(resident, size - resident[key]):
                policy.insert(key, size)
                resident[key] = size
            case "remove":
                policy.remove(key)
                resident.pop(key, None)
            case "evict":
                evict()
        assert len(policy) == len(resident)

    pinned.clear()
    while evict():
        pass
    assert not resident
    assert len(policy) == 0


@every_policy
def test_nothing_larger_than_the_capacity_is_admitted(name: str) -> None:
    policy = make_policy(name, CAPACITY_BYTES)
    assert policy.admits(b"k", CAPACITY_BYTES)
    assert not policy.admits(b"k", CAPACITY_BYTES + 1)


@every_policy
def test_unknown_keys_are_ignored_by_access_and_remove(name: str) -> None:
    policy = make_policy(name, CAPACITY_BYTES)
    policy.access(b"unknown")
    policy.remove(b"unknown")
    assert len(policy) == 0
    assert policy.evict() is None


@every_policy
def test_a_policy_of_no_capacity_admits_nothing(name: str) -> None:
    assert not make_policy(name, 0).admits(b"k", 1)


def test_lru_evicts_the_least_recently_read() -> None:
    policy = make_policy("lru", 3)
    for key in (b"a", b"b", b"c"):
        policy.insert(key, 1)
    policy.access(b"a")
    assert [policy.evict(), policy.evict(), policy.evict(), policy.evict()] == [b"b", b"c", b"a", None]


def test_s3fifo_keeps_what_is_read_again_through_a_scan() -> None:
    policy = make_policy("s3fifo", 100)
    for _ in range(3):
        policy.access(b"hot") if len(policy) else policy.insert(b"hot", 1)
    policy.access(b"hot")
    used = 1
    victims = []
    for number in range(500):
        while used + 1 > 100:
            victims.append(policy.evict())
            used -= 1
        policy.insert(b"scan%d" % number, 1)
        used += 1
    assert b"hot" not in victims


def test_s3fifo_lets_a_key_missed_soon_after_its_eviction_into_the_main_queue() -> None:
    policy = make_policy("s3fifo", 100)
    for number in range(110):
        if number >= 100:
            policy.evict()
        policy.insert(b"%d" % number, 1)
    policy.evict()
    policy.insert(b"0", 1)  # evicted above, still remembered
    for number in range(200, 220):
        assert policy.evict() != b"0"
        policy.insert(b"%d" % number, 1)


def fill(policy: Policy, keys: Iterable[bytes], size: int = 1) -> None:
    for key in keys:
        policy.insert(key, size)


def victims(policy: Policy, pinned: Collection[bytes] = ()) -> list[bytes]:
    """Everything that can go, in the order in which it goes."""
    return list(iter(lambda: policy.evict(pinned.__contains__), None))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_pinned_key_is_passed_over_and_can_go_later(name: str) -> None:
    policy = make_policy(name, 10)
    fill(policy, [b"a", b"b", b"c"])
    assert sorted(victims(policy, pinned={b"b"})) == [b"a", b"c"]
    assert victims(policy) == [b"b"]


@pytest.mark.parametrize("reads", [0, 1, 2])
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_many_pinned_keys_do_not_make_evictions_slow(name: str, reads: int) -> None:
    """A kept checkpoint is thousands of files. How often the policy asks about them is what an eviction costs."""
    policy = make_policy(name, 2_000)
    fill(policy, [b"kept%d" % number for number in range(1_000)])
    fill(policy, [b"%d" % number for number in range(1_000)])
    for number in range(reads * 1_000):
        policy.access(b"kept%d" % (number % 1_000))
    asked = 0

    def pinned(key: bytes) -> bool:
        nonlocal asked
        asked += 1
        return key.startswith(b"kept")

    for number in range(1_000, 4_000):
        victim = policy.evict(pinned)
        assert victim is not None
        assert not victim.startswith(b"kept")
        policy.insert(b"%d" % number, 1)
    assert asked < 4 * 3_000 + 2_000, "a few times for each eviction"


def test_fifo_evicts_the_oldest_whatever_is_read() -> None:
    policy = make_policy("fifo", 3)
    fill(policy, [b"a", b"b", b"c"])
    policy.access(b"a")
    assert victims(policy, pinned={b"b"}) == [b"a", b"c"]
    assert victims(policy) == [b"b"]


def test_lfu_evicts_the_least_read_and_of_equals_the_one_that_is_so_for_longer() -> None:
    policy = make_policy("lfu", 4)
    fill(policy, [b"a", b"b", b"c", b"d"])
    for key in (b"b", b"a", b"a"):
        policy.access(key)
    assert victims(policy) == [b"c", b"d", b"b", b"a"]


def test_sieve_takes_the_unread_ones_and_goes_on_from_where_its_hand_is() -> None:
    policy = make_policy("sieve", 4)
    fill(policy, [b"a", b"b", b"c", b"d"])
    policy.access(b"a")
    assert policy.evict() == b"b"  # "a" was read: passed, and unread now
    policy.insert(b"e", 1)
    assert victims(policy) == [b"c", b"d", b"e", b"a"]


def test_arc_gives_room_to_the_kind_of_keys_that_it_evicted_too_early() -> None:
    policy = make_policy("arc", 4)
    fill(policy, [b"a", b"b"])
    for key in (b"a", b"b"):
        policy.access(key)
    fill(policy, [b"c", b"d"])
    assert [policy.evict(), policy.evict()] == [b"c", b"d"], "those read once go first"
    policy.insert(b"c", 1)  # missed again soon: now those read once may have some room
    policy.insert(b"e", 1)
    assert policy.evict() == b"a"


def test_gdsf_evicts_the_large_one_of_those_read_as_often_and_ages_the_others() -> None:
    policy = make_policy("gdsf", 100)
    policy.insert(b"small", 2)
    policy.insert(b"large", 50)
    policy.insert(b"larger", 60)
    policy.access(b"larger")
    assert policy.evict() == b"large"
    assert policy.evict() == b"larger"
    for number in range(40):
        policy.insert(b"%d" % number, 10)
        victim = policy.evict()
        if victim == b"small":
            return
    pytest.fail("what is never read again stays for ever")


def test_wtinylfu_lets_a_scan_pass_through_its_window() -> None:
    policy = make_policy("wtinylfu", 100)
    fill(policy, [b"%d" % number for number in range(100)])
    assert policy.evict() is not None  # now all but the window is in the main part
    policy.insert(b"new", 1)
    for number in range(99):
        policy.access(b"%d" % number)
    gone = set()
    for number in range(300):
        gone.add(policy.evict())
        policy.insert(b"scan%d" % number, 1)
    assert not {b"%d" % number for number in range(99)} & gone


def test_wtinylfu_admits_to_the_main_part_what_is_missed_again_and_again() -> None:
    policy = make_policy("wtinylfu", 100)
    fill(policy, [b"%d" % number for number in range(100)])
    for _ in range(5):
        victim = policy.evict()
        policy.insert(b"again", 1)
        policy.remove(b"again")
        policy.insert(victim or b"", 1)
    policy.evict()
    policy.insert(b"again", 1)
    for number in range(50):
        assert policy.evict() != b"again"
        policy.insert(b"scan%d" % number, 1)


def planned(capacity_bytes: int, plan: bytes) -> Planned:
    policy = Planned(capacity_bytes)
    policy.plan(bytes([letter]) for letter in plan)
    return policy


def test_planned_evicts_what_is_read_farthest_in_the_future_or_never() -> None:
    policy = planned(3, b"cbabca")
    fill(policy, [b"a", b"b", b"c", b"x"])
    assert victims(policy) == [b"x", b"a", b"b", b"c"]


def test_planned_goes_on_to_the_next_read_of_a_key_when_one_is_consumed() -> None:
    policy = planned(3, b"abca")
    fill(policy, [b"a", b"b", b"c"])
    policy.consumed(b"a")
    assert victims(policy, pinned={b"b"}) == [b"a", b"c"]


def test_planned_admits_only_what_is_read_before_something_that_is_here() -> None:
    policy = planned(2, b"abcd")
    fill(policy, [b"b", b"c"])
    assert policy.admits(b"a", 1)
    assert not policy.admits(b"d", 1)
    assert not policy.admits(b"never", 1)
    policy.evict()
    assert policy.admits(b"never", 1)


def test_a_new_plan_replaces_the_old_one() -> None:
    policy = planned(3, b"abc")
    fill(policy, [b"a", b"b", b"c"])
    policy.plan([b"c", b"a"])
    assert victims(policy) == [b"b", b"a", b"c"]


def test_planned_without_a_plan_is_lru() -> None:
    policy = make_policy("planned", 3)
    fill(policy, [b"a", b"b", b"c"])
    policy.access(b"a")
    assert policy.admits(b"d", 1)
    assert victims(policy) == [b"b", b"c", b"a"]


@given(reads=st.lists(st.integers(0, 30), max_size=200), resident=st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_a_sketch_never_counts_too_low_before_it_ages(reads: list[int], resident: int) -> None:
    sketch = FrequencySketch()
    for at, number in enumerate(reads):
        sketch.add(b"%d" % number, max(1, resident * at // len(reads)))  # it grows on the way
    for number in set(reads):
        assert sketch.count(b"%d" % number) >= min(COUNT_MAX, reads.count(number))


def test_a_sketch_forgets() -> None:
    sketch = FrequencySketch()
    for _ in range(12):
        sketch.add(b"old", 1)
    before = sketch.count(b"old")
    for number in range(5_000):
        sketch.add(b"%d" % (number % 7), 1)
    assert sketch.count(b"old") < before == 12


def test_a_ranking_keeps_no_entry_for_each_change() -> None:
    ranking = Ranking()
    for number in range(10_000):
        ranking.put(b"%d" % (number % 5), number)
    assert len(ranking._heap) < 100
    assert ranking.lowest(nothing_pinned) == b"0"


def test_hold_fills_the_room_that_a_removal_frees() -> None:
    policy = make_policy("hold", 10)
    policy.insert(b"a", 6)
    assert not policy.admits(b"b", 6)
    policy.remove(b"a")
    assert policy.admits(b"b", 6)


def test_hold_gives_way_only_to_those_who_take_room_from_it() -> None:
    policy = make_policy("hold", 10)
    fill(policy, [b"%d" % number for number in range(10)])
    assert not policy.admits(b"new", 1)
    assert len(policy) == 10
    assert policy.evict() == b"0"


def test_an_unknown_policy_is_refused_by_name_with_what_is_allowed() -> None:
    with pytest.raises(
        ConfigError, match=r"'belady'.*arc, auto, fifo, gdsf, hold, lfu, lru, planned, s3fifo, sieve, wtinylfu"
    ):
        make_policy("belady", 1)
