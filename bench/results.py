"""What was measured, and the figures made of it."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tiercache.bench.loading import Loaded
from tiercache.bench.measure import Timed
from tiercache.bench.phases import WRITTEN, Phase
from tiercache.bench.proxy import Traffic
from tiercache.bench.spent import NOTHING_TOLD, Spent, TierUse
from tiercache.bench.targets import Role, Target


@dataclass(frozen=True, slots=True)
class Epoch:
    """One target's turn in one round."""

    workload: str
    phase: Phase
    target: Target
    round: int
    latencies_ns: array[int]
    moved_bytes: int
    busy_s: float
    """Time during which the slowest worker waited for the target."""
    cpu_s: float
    spent: Spent = NOTHING_TOLD
    resident_before: float | None = None
    """Share of the pages that were in the page cache before, by mincore."""
    batch_s: tuple[float, ...] = ()
    """Of each batch of a data loader: how long its worker needed for it."""
    wait_s: tuple[float, ...] = ()
    """Of each batch: how long one who takes them in order waited for it."""
    compute_s: float | None = None
    """Time that a model used, where there is one."""
    capacity_share: float | None = None
    """Of the data set: what the cache can hold of it, where that is what is measured."""

    @property
    def requests(self) -> int:
        return len(self.latencies_ns)

    @property
    def rate_per_s(self) -> float:
        return self.requests / self.busy_s


def epoch_of(workload: str, phase: Phase, target: Target, number: int, timed: Sequence[Timed], **more: Any) -> Epoch:
    """Join what the workers measured."""
    all_latencies = array("q")
    busy_ns = 0
    for worker in timed:
        latencies = array("q", worker.latencies_ns)
        busy_ns = max(busy_ns, sum(latencies))
        all_latencies.extend(latencies)
    return Epoch(
        workload,
        phase,
        target,
        number,
        all_latencies,
        sum(worker.moved_bytes for worker in timed),
        busy_ns / 1e9,
        sum(worker.cpu_ns for worker in timed) / 1e9,
        **more,
    )


def loaded_epoch(
    workload: str, phase: Phase, target: Target, number: int, loaded: Loaded, *, spent: Spent, **more: Any
) -> Epoch:
    """What a data loader measured: its time is that of the whole epoch."""
    epoch = epoch_of(workload, phase, target, number, loaded.timed, spent=spent, **more)
    return replace(epoch, busy_s=loaded.wall_s, batch_s=loaded.batch_s, wait_s=loaded.wait_s)


class Quantiles(NamedTuple):
    """Of times in seconds."""

    p50_s: float
    p99_s: float

    @classmethod
    def of(cls, times_s: Iterable[float]) -> Quantiles | None:
        """None if there are none."""
        ordered = sorted(times_s)
        return cls(_quantile(ordered, 0.50), _quantile(ordered, 0.99)) if ordered else None


class HitShare(NamedTuple):
    """What a cache hits that holds a part of the data."""

    hit_ratio: float
    capacity_share: float

    @property
    def of_capacity(self) -> float:
        """1 in random epochs: no cache that fetches on demand does better."""
        return self.hit_ratio / self.capacity_share


class Ratio(NamedTuple):
    """How many times as fast as another target in the same rounds."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Row:
    """One target in one phase of one workload: medians over the rounds."""

    workload: str
    phase: Phase
    target: Target
    rounds: int
    requests: int
    """Of one round."""
    rate_per_s: float
    rate_lowest_per_s: float
    rate_highest_per_s: float
    bytes_per_s: float
    p50_s: float
    p99_s: float
    cpu_s: float
    """Of one request, in the reading process."""
    against_origin: Ratio | None
    against_local: Ratio | None
    against_peers: dict[str, Ratio]
    """Of our targets: by the name of the peer's program."""
    server_cpu_s: float | None
    """Of one request, in the processes behind the target."""
    server_rss_bytes: int | None
    """Their memory after the rounds, the largest."""
    sources: dict[str, float]
    """Share of the bytes by what answered: ``kernel``, ``ram``, ``nvme``, ``origin``; empty where nobody counts."""
    origin_requests: float | None
    """Per request of the reader; None where nobody counts."""
    resident_before: float | None
    """The worst of the rounds."""
    batch: Quantiles | None = None
    wait: Quantiles | None = None
    utilisation: float | None = None
    """Share of the time in which a model computed."""
    hits: HitShare | None = None
    asked: Traffic | None = None
    """Through the line, in one round."""


def rows_of(epochs: Iterable[Epoch]) -> list[Row]:
    """The rows in the order in which workloads, phases and targets came."""
    groups: dict[tuple[str, Phase], dict[str, list[Epoch]]] = {}
    for epoch in epochs:
        groups.setdefault((epoch.workload, epoch.phase), {}).setdefault(epoch.target.name, []).append(epoch)
    return [
        _row(epochs_of_target, by_target) for by_target in groups.values() for epochs_of_target in by_target.values()
    ]


def _row(epochs: list[Epoch], by_target: dict[str, list[Epoch]]) -> Row:
    first = epochs[0]
    latencies = sorted(latency for epoch in epochs for latency in epoch.latencies_ns)
    requests = sum(epoch.requests for epoch in epochs)
    rates = [epoch.rate_per_s for epoch in epochs]
    known = [epoch.resident_before for epoch in epochs if epoch.resident_before is not None]
    servers = [epoch.spent.server for epoch in epochs if epoch.spent.server is not None]
    worst = min if first.phase is Phase.WARM else max
    return Row(
        first.workload,
        first.phase,
        first.target,
        len(epochs),
        first.requests,
        statistics.median(rates),
        min(rates),
        max(rates),
        statistics.median(epoch.moved_bytes / epoch.busy_s for epoch in epochs),
        _quantile(latencies, 0.50) / 1e9,
        _quantile(latencies, 0.99) / 1e9,
        sum(epoch.cpu_s for epoch in epochs) / requests,
        _ratio(epochs, by_target.get(first.target.origin_peer, [])),
        _ratio(epochs, by_target.get(first.target.local_peer, [])),
        _against_peers(epochs, by_target),
        sum(usage.cpu_s for usage in servers) / requests if servers else None,
        max(usage.rss_bytes for usage in servers) if servers else None,
        sources_of(epochs),
        _origin_requests(epochs),
        worst(known) if known else None,
        batch=Quantiles.of(time_s for epoch in epochs for time_s in epoch.batch_s),
        wait=Quantiles.of(time_s for epoch in epochs for time_s in epoch.wait_s),
        utilisation=_utilisation(epochs),
        hits=_hits(epochs),
        asked=_asked(epochs),
    )


def _utilisation(epochs: Sequence[Epoch]) -> float | None:
    shares = [epoch.compute_s / epoch.busy_s for epoch in epochs if epoch.compute_s is not None]
    return statistics.median(shares) if shares else None


def _hits(epochs: Sequence[Epoch]) -> HitShare | None:
    share = epochs[0].capacity_share
    uses = [epoch.spent.use for epoch in epochs if epoch.spent.use is not None]
    if share is None or not uses:
        return None
    hits = sum(use.ram_hits + use.nvme_hits for use in uses)
    return HitShare(hits / sum(epoch.requests for epoch in epochs), share)


def _asked(epochs: Sequence[Epoch]) -> Traffic | None:
    """The median of each count over the rounds."""
    seen = [epoch.spent.traffic for epoch in epochs if epoch.spent.traffic is not None]
    return Traffic(*(round(statistics.median(counts)) for counts in zip(*seen, strict=True))) if seen else None


def _ratio(epochs: list[Epoch], others: list[Epoch]) -> Ratio | None:
    """Round by round, so that what slows the whole machine for a while slows both."""
    rates = {epoch.round: epoch.rate_per_s for epoch in others}
    ratios = [epoch.rate_per_s / rates[epoch.round] for epoch in epochs if epoch.round in rates]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def _against_peers(epochs: list[Epoch], by_target: dict[str, list[Epoch]]) -> dict[str, Ratio]:
    if epochs[0].target.role is not Role.CACHED:
        return {}
    found = {}
    for others in by_target.values():
        program = others[0].target.program
        compared = _ratio(epochs, others) if program else None
        if compared is not None:
            found[program] = compared
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])


def sources_of(epochs: Sequence[Epoch]) -> dict[str, float]:
    """Shares of the bytes by what answered.

    A client's hits are counted as files, so the bytes that did not come from the origin are shared out by them; what a
    mount's engine did not count came from the kernel's page cache or from a copy that it had open.
    """
    uses = [epoch.spent.use for epoch in epochs if epoch.spent.use is not None]
    total = sum(epoch.moved_bytes for epoch in epochs)
    if not uses or not total or epochs[0].phase in WRITTEN:
        return {}
    use = TierUse()
    for each in uses:
        use = use.plus(each)
    # Read-ahead may fetch more than was asked for.
    origin = min(use.origin_bytes, total)
    rest = total - origin
    if epochs[0].target.mounted:
        ram, nvme = min(use.ram_bytes, rest), min(use.nvme_bytes, rest)
        found = {"kernel": max(rest - ram - nvme, 0.0), "ram": ram, "nvme": nvme, "origin": origin}
    else:
        hits = use.ram_hits + use.nvme_hits
        ram = rest * (use.ram_hits / hits) if hits else 0.0
        found = {"ram": ram, "nvme": rest - ram, "origin": origin}
    return {name: value / total for name, value in found.items()}


def _origin_requests(epochs: Sequence[Epoch]) -> float | None:
    requests = sum(epoch.requests for epoch in epochs)
    if epochs[0].target.role is Role.LOCAL:
        return None
    spent = [epoch.spent for epoch in epochs]
    if spent[0].use is not None:
        return sum(each.use.origin_requests for each in spent if each.use) / requests
    if spent[0].traffic is not None:
        return sum(each.traffic.requests for each in spent if each.traffic) / requests
    return None
