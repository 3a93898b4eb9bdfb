"""Epochs as training reads them: whole files in batches, by a data loader's workers or by many threads at once."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from tiercache.bench.dataset import Piece
from tiercache.bench.measure import Flood, Timed
from tiercache.bench.pool import WorkerPool

Batch = Sequence[Piece]


class Loaded(NamedTuple):
    """One epoch."""

    timed: tuple[Timed, ...]
    wall_s: float
    batch_s: tuple[float, ...]
    """Of each batch: how long those who read it needed for it."""
    wait_s: tuple[float, ...]
    """Of each batch: how long one who takes them in order, and does nothing else, waited for it."""


def load(pool: WorkerPool, session: str, batches: Iterable[Batch], *, workers: int, prefetch: int) -> Loaded:
    """As PyTorch's DataLoader: each worker has ``prefetch`` batches to read, and gets the next when one is taken."""
    coming = iter(batches)
    sent = 0
    timed: list[Timed] = []
    waits = array("d")

    def send() -> None:
        nonlocal sent
        batch = next(coming, None)
        if batch is not None:
            pool.post(sent % workers, "load", session, list(batch))
            sent += 1

    begin_s = time.perf_counter()
    for _ in range(workers * prefetch):
        send()
    while len(timed) < sent:
        asked_s = time.perf_counter()
        answer = pool.answer(len(timed) % workers, session)
        waits.append(time.perf_counter() - asked_s)
        assert isinstance(answer, Timed)
        timed.append(answer)
        send()
    wall_s = time.perf_counter() - begin_s
    batch_s = tuple(sum(array("q", each.latencies_ns)) / 1e9 for each in timed)
    return Loaded(tuple(timed), wall_s, batch_s, tuple(waits))


def flood(pool: WorkerPool, session: str, pieces: Sequence[Piece], *, in_flight: int, batch: int) -> Loaded:
    """A bare loop: one process that keeps so many requests in flight. Batches are made of its files in their order."""
    pool.post(0, "flood", session, list(pieces), in_flight)
    answer = pool.answer(0, session)
    assert isinstance(answer, Flood)
    begins, ends = array("q", answer.begins_ns), array("q", answer.ends_ns)
    parts = range(0, len(pieces), batch)
    ready = list(accumulate((max(ends[at : at + batch]) for at in parts), max))
    since = [min(begins), *ready]
    return Loaded(
        (answer.timed,),
        (ready[-1] - since[0]) / 1e9,
        tuple((max(ends[at : at + batch]) - min(begins[at : at + batch])) / 1e9 for at in parts),
        tuple((now - before) / 1e9 for before, now in zip(since, ready, strict=False)),
    )
