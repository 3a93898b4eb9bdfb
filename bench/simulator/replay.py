"""One policy and one trace: the policy is driven as a tier drives it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tiercache.policies import CacheKey, Planned, Policy
from tiercache.policies.admission import Admission, Candidate

Read = tuple[CacheKey, int]
"""The key of an object and its size in bytes."""


class Counts(NamedTuple):
    """What became of the reads that count."""

    reads: int
    hits: int
    read_bytes: int
    hit_bytes: int
    written_bytes: int
    """Into the cache, by misses that were let in."""

    @property
    def hit_ratio(self) -> float:
        return self.hits / max(1, self.reads)

    @property
    def byte_hit_ratio(self) -> float:
        return self.hit_bytes / max(1, self.read_bytes)

    @property
    def written_ratio(self) -> float:
        return self.written_bytes / max(1, self.read_bytes)


def replay(
    policy: Policy,
    capacity_bytes: int,
    trace: Sequence[Read],
    *,
    uncounted: int = 0,
    max_object_bytes: float = math.inf,
    admission: Admission | None = None,
) -> Counts:
    """Read the objects of ``trace`` one after the other; the first ``uncounted`` reads only fill the cache.

    An object over ``max_object_bytes`` is never kept. A ``Planned`` policy is told the whole trace beforehand. For the
    ``admission`` a second passes with each read.
    """
    planned = policy if isinstance(policy, Planned) else None
    if planned is not None:
        planned.plan(key for key, _ in trace)
    resident: dict[CacheKey, int] = {}
    used_bytes = hits = read_bytes = hit_bytes = written_bytes = 0
    for number, (key, size_bytes) in enumerate(trace):
        if number == uncounted:
            hits = read_bytes = hit_bytes = written_bytes = 0
        read_bytes += size_bytes
        if planned is not None:
            planned.consumed(key)
        if key in resident:
            hits += 1
            hit_bytes += size_bytes
            policy.access(key)
            continue
        if size_bytes > max_object_bytes or not policy.admits(key, size_bytes):
            continue
        if admission is not None and admission.refuses(Candidate(key, key), number):
            continue
        while used_bytes + size_bytes > capacity_bytes:
            victim = policy.evict()
            if victim is None:
                break
            used_bytes -= resident.pop(victim)
        else:
            policy.insert(key, size_bytes)
            resident[key] = size_bytes
            used_bytes += size_bytes
            written_bytes += size_bytes
            if admission is not None:
                admission.writes(size_bytes, number)
    assert len(policy) == len(resident)
    return Counts(max(0, len(trace) - uncounted), hits, read_bytes, hit_bytes, written_bytes)
