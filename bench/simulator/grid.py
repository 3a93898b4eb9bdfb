"""Every policy at every capacity over one trace, and how the figures are told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tiercache.bench.simulator.replay import Counts, replay
from tiercache.bench.simulator.traces import Trace
from tiercache.config import NvmeConfig
from tiercache.policies import make_policy
from tiercache.policies.admission import SecondMiss
from tiercache.units import Size, format_size


class Cell(NamedTuple):
    """One policy at one capacity."""

    policy: str
    capacity: Size
    capacity_bytes: int
    counts: Counts


class Grid(NamedTuple):
    """All cells, policy by policy."""

    trace: Trace
    capacities: Sequence[Size]
    cells: list[Cell]

    def rows(self) -> dict[str, list[Cell]]:
        """The cells of each policy, in the order of the capacities."""
        rows: dict[str, list[Cell]] = {}
        for cell in self.cells:
            rows.setdefault(cell.policy, []).append(cell)
        return rows


class Measure(NamedTuple):
    """A table."""

    title: str
    of: Callable[[Counts], float]


HITS = Measure("hit ratio", lambda counts: counts.hit_ratio)
BYTE_HITS = Measure("byte hit ratio", lambda counts: counts.byte_hit_ratio)
WRITTEN = Measure("bytes written to the cache, per byte read", lambda counts: counts.written_ratio)


def simulate(
    trace: Trace,
    policies: Iterable[str],
    capacities: Sequence[Size],
    *,
    second_miss_reads: int = 0,
    sample: float = 1.0,
) -> Grid:
    """Replay the trace once for each policy and capacity. Shares count against the bytes of all objects together.

    With ``second_miss_reads`` only what is missed again within so many reads is let in. A trace that has only a
    ``sample`` of the objects is replayed with that share of the capacities.
    """
    footprint_bytes = trace.footprint_bytes()
    max_object_share = NvmeConfig().max_object_share
    cells = []
    for policy in policies:
        for capacity in capacities:
            capacity_bytes = capacity.resolve(footprint_bytes)
            sampled_bytes = int(capacity_bytes * sample)
            counts = replay(
                make_policy(policy, sampled_bytes),
                sampled_bytes,
                trace.reads,
                uncounted=trace.uncounted,
                max_object_bytes=int(capacity_bytes * max_object_share),
                admission=SecondMiss(second_miss_reads, apart_s=0, keys_max=second_miss_reads)
                if second_miss_reads
                else None,
            )
            cells.append(Cell(policy, capacity, capacity_bytes, counts))
    return Grid(trace, capacities, cells)


def measures(trace: Trace) -> list[Measure]:
    """The tables of a trace."""
    return [HITS, BYTE_HITS, WRITTEN] if trace.has_sizes() else [HITS, WRITTEN]


def print_grid(grid: Grid, file: TextIO | None = None) -> None:
    """A table for each measure: a line per policy, a column per capacity."""
    from rich.console import Console

    console = Console(file=file or sys.stdout, highlight=False)
    console.print(
        f"{grid.trace.title}; {format_size(grid.trace.footprint_bytes())} of objects", markup=False, soft_wrap=True
    )
    for measure in measures(grid.trace):
        print_measure(grid, measure, file)


def print_measure(grid: Grid, measure: Measure, file: TextIO | None = None) -> None:
    """One of them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(file=file or sys.stdout, highlight=False)
    console.print(f"\n[bold]{measure.title}[/bold]", soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("capacity")
    for capacity in grid.capacities:
        table.add_column(str(capacity) if capacity.fraction else format_size(capacity.size_bytes), justify="right")
    for policy, cells in grid.rows().items():
        table.add_row(policy, *(f"{measure.of(cell.counts):.4f}" for cell in cells))
    console.print(table)


def write_json(grid: Grid, path: Path) -> None:
    """All figures."""
    path.write_text(json.dumps(_as_dictionary(grid), indent=2) + "\n")


def _as_dictionary(grid: Grid) -> dict[str, Any]:
    return {
        "trace": grid.trace.title,
        "footprint_bytes": grid.trace.footprint_bytes(),
        "results": [
            {
                "policy": cell.policy,
                "capacity": str(cell.capacity),
                "capacity_bytes": cell.capacity_bytes,
                **cell.counts._asdict(),
                "hit_ratio": cell.counts.hit_ratio,
                "byte_hit_ratio": cell.counts.byte_hit_ratio,
                "written_ratio": cell.counts.written_ratio,
            }
            for cell in grid.cells
        ],
    }
