"""The policies against libCacheSim, an independent implementation, on the same traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import libcachesim as lcs
import pytest

from tiercache.policies import Policy, make_policy

Trace = list[tuple[bytes, int]]
REQUESTS = 200_000


def zipf(alpha: float) -> Trace:
    """FACTS' trace for alpha 1: 200,000 requests over 10,000 unit objects, seed 42."""
    reader = lcs.SyntheticReader(num_of_req=REQUESTS, obj_size=1, alpha=alpha, dist="zipf", num_objects=10_000, seed=42)
    return [(str(request.obj_id).encode(), 1) for request in reader]


def sized() -> Trace:
    """Skewed popularity with sizes from 1 to 40, fixed per object."""
    generator = random.Random(7)
    size_of = [generator.randint(1, 40) for _ in range(5_000)]
    picks = (min(int(generator.paretovariate(0.9)), 5_000) - 1 for _ in range(60_000))
    return [(str(pick + 1).encode(), size_of[pick]) for pick in picks]


def scans() -> Trace:
    """A skewed working set, interrupted by passes over objects that never come back."""
    generator = random.Random(11)
    trace: Trace = []
    for scan in range(20):
        trace += [(str(min(int(generator.paretovariate(0.7)), 4_000)).encode(), 1) for _ in range(3_000)]
        trace += [(str(1_000_000 + scan * 1_000 + step).encode(), 1) for step in range(800)]
    return trace


TRACES: dict[str, tuple[Callable[[], Trace], int]] = {
    "zipf 1.0": (lambda: zipf(1.0), 1_000),
    "zipf 0.8": (lambda: zipf(0.8), 1_000),
    "sizes": (sized, 10_000),
    "scans": (scans, 1_000),
}


def misses(policy: Policy, capacity_bytes: int, trace: Trace) -> int:
    """Drive a policy as a tier does."""
    resident: dict[bytes, int] = {}
    used = missed = 0
    for key, size in trace:
        if key in resident:
            policy.access(key)
            continue
        missed += 1
        if not policy.admits(key, size):
            continue
        while used + size > capacity_bytes:
            victim = policy.evict()
            if victim is None:
                break
            used -= resident.pop(victim)
        else:
            policy.insert(key, size)
            resident[key] = size
            used += size
    assert len(policy) == len(resident)
    return missed


def oracle_misses(cache: Any, trace: Trace) -> int:
    """The same trace through libCacheSim."""
    request = lcs.Request()
    missed = 0
    for key, size in trace:
        request.obj_id, request.obj_size = int(key), size
        missed += not cache.get(request)
    return missed


@pytest.mark.parametrize("name", TRACES)
def test_lru_misses_exactly_as_often_as_the_oracle(name: str) -> None:
    make, capacity = TRACES[name]
    trace = make()
    assert misses(make_policy("lru", capacity), capacity, trace) == oracle_misses(lcs.LRU(capacity), trace)


@pytest.mark.parametrize("name", TRACES)
def test_s3fifo_miss_ratio_is_the_oracles_to_a_thousandth(name: str) -> None:
    make, capacity = TRACES[name]
    trace = make()
    ours = misses(make_policy("s3fifo", capacity), capacity, trace) / len(trace)
    assert ours == pytest.approx(oracle_misses(lcs.S3FIFO(capacity), trace) / len(trace), abs=0.001)


@pytest.mark.parametrize(("policy", "ratio"), [("lru", 0.3260), ("s3fifo", 0.2665)])
def test_miss_ratios_on_the_reference_trace_are_the_published_ones(policy: str, ratio: float) -> None:
    assert misses(make_policy(policy, 1_000), 1_000, zipf(1.0)) / REQUESTS == pytest.approx(ratio, abs=0.001)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_hold_hits_exactly_its_share_of_random_epochs(share: float) -> None:
    objects, epochs = 2_000, 4
    keys = [str(number).encode() for number in range(objects)]
    capacity = int(objects * share)
    policy = make_policy("hold", capacity)
    trace: Trace = []
    for epoch in range(epochs + 1):
        random.Random(epoch).shuffle(keys)
        trace += [(key, 1) for key in keys]
    assert len(trace) - misses(policy, capacity, trace) == capacity * epochs
