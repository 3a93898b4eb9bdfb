"""What every policy keeps, under any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.errors import ConfigError
from tiercache.policies import POLICIES, make_policy

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
            assert name == "hold" or pinned.issuperset(resident), "there was a victim"
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
    if name != "hold":
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


def test_hold_fills_the_room_that_a_removal_frees() -> None:
    policy = make_policy("hold", 10)
    policy.insert(b"a", 6)
    assert not policy.admits(b"b", 6)
    policy.remove(b"a")
    assert policy.admits(b"b", 6)


def test_an_unknown_policy_is_refused_by_name_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"'belady'.*hold, lru, s3fifo"):
        make_policy("belady", 1)
