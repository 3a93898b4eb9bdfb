"""Figures as people read them: which columns a workload has, and how a number is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tiercache.bench.phases import Phase
from tiercache.bench.results import Quantiles, Ratio, Row
from tiercache.bench.targets import Role
from tiercache.bench.workloads import Epochs, HitRatio, Naming, Reading, Saving, Training, Workload
from tiercache.units import format_size

NOTHING = "–"

SOURCE_NAMES = {"kernel": "kernel or open copy", "ram": "RAM", "nvme": "NVMe", "origin": "origin"}


class Column(NamedTuple):
    """One column of a table."""

    title: str
    help: str
    text: Callable[[Row], str]


def columns(workload: Workload) -> list[Column]:
    """The columns after the target's name."""
    if isinstance(workload, Epochs):
        return _epoch_columns(workload)
    if isinstance(workload, Training):
        return _training_columns()
    if isinstance(workload, HitRatio):
        return _hit_columns()
    match workload:
        case Reading():
            unit = "reads/s" if workload.request_bytes else "files/s"
            rates = [
                Column(unit, "median over the rounds", lambda row: number(row.rate_per_s)),
                Column("MB/s", "10⁶ bytes in a second", lambda row: number(row.bytes_per_s / 1e6)),
            ]
        case Saving():
            rates = [
                Column("time", "of the whole file, median over the rounds", lambda row: duration(1 / row.rate_per_s)),
                Column("MB/s", "10⁶ bytes in a second", lambda row: number(row.bytes_per_s / 1e6)),
            ]
        case Naming():
            rates = [Column("ops/s", "median over the rounds", lambda row: number(row.rate_per_s))]
    latencies = [
        Column("p50", "latency of one request", lambda row: duration(row.p50_s)),
        Column("p99", "latency of one request", lambda row: duration(row.p99_s)),
    ]
    return [
        *rates,
        *([] if isinstance(workload, Saving) else latencies),
        Column("CPU", "of the reading process for one request, all its threads", lambda row: duration(row.cpu_s)),
        Column("server CPU", "of the process behind the mount for one request", server_cpu),
        Column("server RSS", "memory of the process behind the mount, after the rounds", server_memory),
        Column("× origin", "as fast as the same call on the origin", lambda row: ratio(row.against_origin)),
        Column("× local", "as fast as the same call on a local directory", lambda row: ratio(row.against_local)),
        Column("× best peer", "as fast as the fastest of the peers", best_peer),
        Column("bytes came from", "by the engine's metrics", sources),
        Column("origin requests", "per request of the reader", lambda row: per_request(row.origin_requests)),
    ]


def _epoch_columns(workload: Epochs) -> list[Column]:
    files = f"of {workload.batch} files"
    return [
        Column("files/s", "median over the rounds", lambda row: number(row.rate_per_s)),
        Column("MB/s", "10⁶ bytes in a second", lambda row: number(row.bytes_per_s / 1e6)),
        Column("× bare loop", f"obstore, {workload.in_flight} in flight", lambda row: ratio(row.against_origin)),
        Column("× local", "as fast as the same loader on a local directory", lambda row: ratio(row.against_local)),
        Column("× best peer", "as fast as the fastest of the others", best_peer),
        Column("batch p50", f"what a worker needs for a batch {files}", lambda row: p50(row.batch)),
        Column("batch p99", f"what a worker needs for a batch {files}", lambda row: p99(row.batch)),
        Column("wait p50", f"for the next batch {files}, by one who does nothing else", lambda row: p50(row.wait)),
        Column("wait p99", f"for the next batch {files}, by one who does nothing else", lambda row: p99(row.wait)),
        Column("CPU", "of the reading processes for one file, all their threads", lambda row: duration(row.cpu_s)),
        Column("server CPU", "of the process behind the target for one file", server_cpu),
        Column("GET HEAD LIST", "requests of one epoch at the origin", requests),
    ]  # fmt: skip


def _training_columns() -> list[Column]:
    return [
        Column("samples/s", "median over the rounds", lambda row: number(row.rate_per_s)),
        Column("× uncached", "as fast as with s3fs", lambda row: ratio(row.against_origin)),
        Column("× local", "as fast as from a local directory", lambda row: ratio(row.against_local)),
        Column("utilisation", "share of the time in which the model computes", lambda row: share(row.utilisation)),
        Column("wait p50", "for the next batch", lambda row: p50(row.wait)),
        Column("wait p99", "for the next batch", lambda row: p99(row.wait)),
        Column("read p50", "of one file, in a worker", lambda row: duration(row.p50_s)),
        Column("CPU", "of training and its workers for one sample", lambda row: duration(row.cpu_s)),
        Column("server CPU", "of the process behind the target for one file", server_cpu),
        Column("GET HEAD LIST", "requests of one epoch at the origin", requests),
    ]


def _hit_columns() -> list[Column]:
    return [
        Column("hit ratio", "hits of the tier, by the engine's metrics", hit_ratio),
        Column("hit ratio / c", "c: the share of the data that fits", hits_of_capacity),
        Column("origin requests", "per request of the reader", lambda row: per_request(row.origin_requests)),
        Column("files/s", "median over the epochs", lambda row: number(row.rate_per_s)),
    ]


def hit_ratio(row: Row) -> str:
    return NOTHING if row.hits is None else f"{row.hits.hit_ratio:.4f}"


def hits_of_capacity(row: Row) -> str:
    return NOTHING if row.hits is None else f"{row.hits.of_capacity:.4f}"


def share(value: float | None) -> str:
    """``87 %``."""
    return NOTHING if value is None else f"{value * 100:.0f} %"


def requests(row: Row) -> str:
    """``3000 0 4``."""
    return NOTHING if row.asked is None else f"{row.asked.gets} {row.asked.heads} {row.asked.lists}"


def p50(value: Quantiles | None) -> str:
    return NOTHING if value is None else duration(value.p50_s)


def p99(value: Quantiles | None) -> str:
    return NOTHING if value is None else duration(value.p99_s)


def shown_columns(workload: Workload, rows: Sequence[Row]) -> list[Column]:
    """Without those that say nothing about any of these rows."""
    silent = {NOTHING} if any(row.target.role is Role.ORIGIN for row in rows) else {NOTHING, per_request(0.0)}
    return [column for column in columns(workload) if not {column.text(row) for row in rows} <= silent]


def number(value: float) -> str:
    """Three digits, thousands apart."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """``12 µs``, ``3.4 ms``, ``1.2 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"


def ratio(value: Ratio | None) -> str:
    """``12.3 ×``."""
    return NOTHING if value is None else f"{number(value.median)} ×"


def best_peer(row: Row) -> str:
    """``3.1 × juicefs``: the peer that leaves the least."""
    if not row.against_peers:
        return NOTHING
    name, value = min(row.against_peers.items(), key=lambda item: item[1].median)
    return f"{number(value.median)} × {name}"


def server_cpu(row: Row) -> str:
    """Only as exact as the kernel's clock ticks."""
    return NOTHING if row.server_cpu_s is None else duration(row.server_cpu_s)


def server_memory(row: Row) -> str:
    return NOTHING if row.server_rss_bytes is None else format_size(row.server_rss_bytes)


def all_ratios(row: Row) -> str:
    """``71 × origin, 0.93 × local, 3.1 × juicefs``: one cell of the summary."""
    compared = {"origin": row.against_origin, "local": row.against_local, **row.against_peers}
    told = [f"{number(float(f'{value.median:.2g}'))} × {name}" for name, value in compared.items() if value is not None]
    return ", ".join(told) or NOTHING


def sources(row: Row) -> str:
    """``RAM 100 %``; what is under half a percent is left out."""
    found = sorted(row.sources.items(), key=lambda item: -item[1])
    texts = [f"{SOURCE_NAMES[name]} {share * 100:.0f} %" for name, share in found if share >= 0.005]
    return ", ".join(texts) or NOTHING


def per_request(value: float | None) -> str:
    """Two digits after the point."""
    return NOTHING if value is None else f"{value:.2f}"


def heading(phase: Phase) -> str:
    """A phase at the beginning of a line."""
    return phase.value[0].upper() + phase.value[1:]
