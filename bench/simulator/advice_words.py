"""What a trace says of more room, of other policies, of plans and of admission: in sentences, and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tiercache.bench.simulator.advice import Advice, without_foresight
from tiercache.bench.simulator.grid import Cell
from tiercache.policies import Planned
from tiercache.units import format_duration, format_size

DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0
"""A shorter trace says nothing of a day."""

NOTABLE: Final = 0.005
"""Hit ratios that are nearer to one another are called the same."""


def title(advice: Advice) -> str:
    """Of what the figures are."""
    words = f"{advice.reads:,} reads of {advice.objects:,} objects"
    if advice.recorded.sample < 1:
        words += f", a sample of {advice.recorded.sample:g} of all"
    if advice.recorded.duration_s:
        words += f", in {format_duration(advice.recorded.duration_s)}"
    return f"{words}; {format_size(advice.footprint_bytes)} in all"


def sentences(advice: Advice) -> list[str]:
    """The advice; the most telling first."""
    if advice.too_short:
        return [f"No advice: the trace is too short: {advice.too_short}."]
    return [*_capacities(advice), *_policies(advice), _plan(advice), _admission(advice)]


def as_dictionary(advice: Advice) -> dict[str, Any]:
    """All figures and sentences. Bytes are those of the counted reads, ``counted_s`` how long these took."""
    cells = advice.grid.cells if advice.grid is not None else []
    return {
        "reads": advice.reads,
        "objects": advice.objects,
        "sample": advice.recorded.sample,
        "footprint_bytes": advice.footprint_bytes,
        "counted_s": advice.counted_s,
        "capacity_bytes": advice.capacity_bytes,
        "policy": advice.policy,
        "too_short": advice.too_short,
        "epochs": advice.epochs,
        "results": [_figures(advice, cell) for cell in cells],
        "second_miss": None if advice.second_miss is None else _figures(advice, advice.second_miss),
        "advice": sentences(advice),
    }


def _figures(advice: Advice, cell: Cell) -> dict[str, Any]:
    return {
        "policy": cell.policy,
        "capacity_bytes": cell.capacity_bytes,
        "hit_ratio": cell.counts.hit_ratio,
        "byte_hit_ratio": cell.counts.byte_hit_ratio,
        "origin_bytes": advice.origin_bytes(cell),
        "written_bytes": advice.written_bytes(cell),
    }


def _capacities(advice: Advice) -> Iterator[str]:
    now, has = advice.now, format_size(advice.capacity_bytes)
    if advice.footprint_bytes <= advice.capacity_bytes:
        yield f"All that was read, {format_size(advice.footprint_bytes)}, fits into {has}: more room gives nothing."
    assert advice.grid is not None
    for size in advice.grid.capacities:
        other = advice.cell(advice.policy, size.size_bytes)
        if other is now or (size.size_bytes > advice.capacity_bytes >= advice.footprint_bytes):
            continue
        yield f"With {format_size(size.size_bytes)} instead of {has}: {_difference(advice, other)}."


def _policies(advice: Advice) -> Iterator[str]:
    """The one that spares the origin most bytes, and the one that spares it most requests."""
    assert advice.grid is not None
    now, has = advice.now, format_size(advice.capacity_bytes)
    here = [c for c in advice.grid.cells if c.capacity_bytes == advice.capacity_bytes and without_foresight(c.policy)]
    best = max(here, key=lambda cell: cell.counts.byte_hit_ratio)
    if best.counts.byte_hit_ratio < now.counts.byte_hit_ratio + NOTABLE:
        best = now
        yield f"No other policy spares the origin notably more bytes than {now.policy} at {has}."
    else:
        yield f"Policy {best.policy} instead of {now.policy} at {has}: {_difference(advice, best)}."
    most = max(here, key=lambda cell: cell.counts.hit_ratio)
    if most.counts.hit_ratio >= best.counts.hit_ratio + NOTABLE:
        yield f"If requests are what costs: policy {most.policy} at {has}: {_difference(advice, most)}."


def _plan(advice: Advice) -> str:
    now = advice.now
    if advice.epochs:
        return (
            f"Each object is read once in each epoch ({advice.epochs:g} times in all): a plan (docs/plans.md) brings "
            f"the {1 - now.counts.hit_ratio:.0%} that are missed before they are read, for readers that can tell their "
            "order; as many bytes come from the origin."
        )
    foresight = advice.cell(Planned.name, advice.capacity_bytes)
    return (
        "No epochs are to be seen: a plan helps only readers that know their order. Who knew all reads to come would "
        f"hit {_ratio(foresight)} by eviction alone."
    )


def _admission(advice: Advice) -> str:
    now, choosy = advice.now, advice.second_miss
    assert choosy is not None
    written, less = advice.written_bytes(now), advice.written_bytes(now) - advice.written_bytes(choosy)
    if not written:
        return "Admission by the second miss saves no writes: there are none."
    change = f"hit ratio {_ratio(choosy)} instead of {_ratio(now)}"
    if less <= 0:
        return f"Admission by the second miss (nvme.second_miss_s) saves no writes; {change}."
    return f"Admission by the second miss (nvme.second_miss_s) saves {less / written:.0%} of the writes; {change}."


def _difference(advice: Advice, other: Cell) -> str:
    now = advice.now
    saved = advice.origin_bytes(now) - advice.origin_bytes(other)
    words = f"hit ratio {_ratio(other)} instead of {_ratio(now)}, "
    return words + (f"{_amount(advice, abs(saved))} {'less' if saved >= 0 else 'more'} from the origin")


def _amount(advice: Advice, size_bytes: float) -> str:
    if advice.counted_s >= HOUR_S:
        return f"{format_size(size_bytes * DAY_S / advice.counted_s)} a day"
    return f"{format_size(size_bytes)} of {format_size(advice.read_bytes)} that are read"


def _ratio(cell: Cell) -> str:
    return f"{cell.counts.hit_ratio:.2f}".removeprefix("0")
