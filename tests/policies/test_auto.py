"""``auto``: what it reaches on each kind of reads, and how it gets there."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tiercache.bench.simulator.replay import Counts, replay
from tiercache.bench.simulator.traces import Trace, change_trace, epochs_trace, scan_trace, zipf_trace
from tiercache.policies import Policy, make_policy
from tiercache.policies.auto import CANDIDATES, MOVED_AT_ONCE, Auto
from tiercache.policies.miniature import SAMPLED_MAX, WINDOW, Miniatures
from tiercache.policies.patient import PatientHold

SHARES = (0.2, 0.5, 0.8)


def counts_of(name: str, trace: Trace, share: float) -> Counts:
    capacity = int(trace.footprint_bytes() * share)
    return replay(make_policy(name, capacity), capacity, trace.reads, uncounted=trace.uncounted)


def keys(prefix: str, number: int) -> list[bytes]:
    return [f"{prefix}{each}".encode() for each in range(number)]


def random_epochs(of: list[bytes], number: int) -> list[bytes]:
    generator = random.Random(1)
    return [key for _ in range(number) for key in generator.sample(of, len(of))]


def read(policy: Policy, capacity: int, reads: Iterable[bytes], resident: set[bytes]) -> int:
    """Objects of one byte; how many of the reads are hits."""
    hits = 0
    for key in reads:
        if key in resident:
            hits += 1
            policy.access(key)
        elif policy.admits(key, 1):
            while len(resident) + 1 > capacity and (victim := policy.evict()) is not None:
                resident.remove(victim)
            policy.insert(key, 1)
            resident.add(key)
    return hits


@pytest.mark.parametrize("spread", [0, 1.5])
@pytest.mark.parametrize("share", SHARES)
def test_random_epochs_hit_the_share_of_the_data_set_that_fits(share: float, spread: float) -> None:
    counts = counts_of("auto", epochs_trace(objects=3_000, epochs=5, spread=spread, seed=2), share)
    assert counts.byte_hit_ratio >= 0.99 * share
    assert counts.written_ratio < 0.002


@pytest.mark.parametrize("share", SHARES)
def test_another_data_set_hits_its_share_from_its_second_epoch_on(share: float) -> None:
    trace = change_trace(objects=3_000, epochs=3, spread=0, seed=2)
    assert counts_of("auto", trace, share).hit_ratio >= 0.99 * share
    assert counts_of("hold", trace, share).hit_ratio == 0


@pytest.mark.parametrize("share", SHARES)
def test_what_is_read_once_beside_an_epoch_evicts_nothing(share: float) -> None:
    counts = counts_of("auto", scan_trace(objects=3_000, epochs=4, spread=0, seed=2), share)
    assert counts.hit_ratio >= 0.99 * share
    assert counts.written_bytes == 0, "nothing had to come back"


def test_skewed_popularity_is_left_to_a_policy_that_knows_it() -> None:
    trace = zipf_trace(objects=3_000, reads=40_000, alpha=1, spread=0, seed=2)
    auto, hold, s3fifo = (counts_of(name, trace, 0.1).hit_ratio for name in ("auto", "hold", "s3fifo"))
    assert hold + 0.03 < auto > s3fifo - 0.01


def test_it_returns_to_holding_when_epochs_follow_on_skewed_popularity() -> None:
    popular = zipf_trace(objects=3_000, reads=40_000, alpha=1, spread=0, seed=2).reads
    policy, resident = Auto(300), set[bytes]()
    read(policy, 300, (key for key, _ in popular), resident)
    assert policy.choice != PatientHold.name
    read(policy, 300, random_epochs(keys("new", 1_500), 12), resident)
    assert policy.choice == PatientHold.name
    assert read(policy, 300, random_epochs(keys("new", 1_500), 2), resident) >= 0.99 * 600


def test_a_plan_that_brings_each_object_before_its_reader_does_not_mislead_it() -> None:
    policy, resident, lead = Auto(1_000), set[bytes](), 25
    order, ready = random_epochs(keys("", 2_000), 5), 0
    for place, key in enumerate(order):
        ready += key in resident
        if key not in resident and policy.admits(key, 1):
            assert len(resident) < 1_000, "nothing is worth more than what is here"
            policy.insert(key, 1)
            resident.add(key)
        if place >= lead and order[place - lead] in resident:
            policy.access(order[place - lead])
    assert ready == 4 * 1_000


def test_many_reads_of_parts_count_as_one_of_the_object() -> None:
    """As eight files that are read at a time, in 20 parts each."""
    order = random_epochs(keys("", 200), 12)
    parts = [key for start in range(0, len(order), 8) for _ in range(20) for key in order[start : start + 8]]
    policy, resident = Auto(100), set[bytes]()
    read(policy, 100, parts[: 2 * 20 * 200], resident)
    assert read(policy, 100, parts[2 * 20 * 200 :], resident) >= 0.99 * 10 * 20 * 100
    assert policy.choice == PatientHold.name


def test_what_an_engine_before_left_makes_way_when_nobody_reads_it() -> None:
    policy, resident = Auto(2_000), set(keys("dead", 2_000))
    for key in resident:
        policy.insert(key, 1)
    read(policy, 2_000, random_epochs(keys("new", 1_000), 2), resident)
    assert read(policy, 2_000, keys("new", 1_000), resident) == 1_000


def test_at_a_change_all_residents_go_over_a_few_with_each_call() -> None:
    policy = Auto(1_000)
    for key in keys("", 1_000):
        policy.insert(key, 1)
    policy._choose(dict.fromkeys(CANDIDATES, 0.9) | {"wtinylfu": 0.5})
    assert policy.choice == "wtinylfu"
    assert (len(policy), len(policy._policy)) == (1_000, 0)
    policy.access(b"999")
    assert (len(policy), len(policy._policy)) == (1_000, 1 + MOVED_AT_ONCE)
    assert policy.evict({b"33", b"34"}.__contains__) == b"32", "those in use go over, the next one that waits makes way"
    for _ in range(1_000 // MOVED_AT_ONCE):
        policy.access(b"999")
    assert len(policy) == len(policy._policy) == 999
    evicted = set(iter(policy.evict, None))
    assert evicted == set(keys("", 1_000)) - {b"32"}


def test_the_miniatures_stay_small_whatever_the_cache_holds() -> None:
    miniatures = Miniatures(CANDIDATES, 100_000)
    ends = sum(
        miniatures.read(key, 1, now, 0) and bool(miniatures.miss_ratios())
        for now, key in enumerate(random_epochs(keys("", 50_000), 2))
        if miniatures.samples(key)
    )
    assert all(len(cache.sizes) <= SAMPLED_MAX for cache in miniatures._caches.values())
    assert 1 <= ends <= 100_000 // WINDOW
    assert len(miniatures._read_at) == 1, "what is too far back to be the same reading is forgotten"


def test_patience_ends_with_the_silence_and_the_oldest_go_first() -> None:
    policy = PatientHold(400)
    for _ in range(2):
        read(policy, 400, keys("old", 400), resident := set(keys("old", 400)) if len(policy) else set())
    silence = keys("new", 200)
    admitted = [key for key in silence if policy.admits(key, 1)]
    assert admitted == silence[64:], "64 reads of others in a row are a silence"
    assert [policy.evict(), policy.evict()] == keys("old", 2)
    assert len(resident) == 400


def test_what_came_in_during_a_pause_goes_first_when_training_goes_on() -> None:
    policy, resident = PatientHold(400), set[bytes]()
    read(policy, 400, keys("old", 400) * 2, resident)
    read(policy, 400, keys("once", 100), resident)
    assert {key for key in resident if key.startswith(b"once")} == set(keys("once", 100)[64:])
    read(policy, 400, [b"old399", *keys("old", 400)[:36]], resident)
    assert resident == set(keys("old", 400))


def test_a_loop_over_more_than_the_cache_is_held() -> None:
    policy, resident = Auto(300), set[bytes]()
    read(policy, 300, keys("", 1_000) * 2, resident)
    assert read(policy, 300, keys("", 1_000) * 5, resident) == 5 * 300


def test_a_key_that_is_not_read_any_more_makes_way_while_others_are() -> None:
    policy, resident = PatientHold(100), set[bytes]()
    read(policy, 100, keys("", 100), resident)
    used = keys("", 100)[:50]
    read(policy, 100, (key for _ in range(60) for key in (*used, b"new")), resident)
    assert resident == {*used, *keys("", 100)[51:], b"new"}
