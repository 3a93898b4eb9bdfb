"""The report of a run: what was measured, on what, and what a reader must know about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tiercache.bench.figures import NOTHING, all_ratios
from tiercache.bench.phases import Phase
from tiercache.bench.results import Epoch, Ratio, Row, rows_of
from tiercache.bench.targets import BARE_LOOP, Role
from tiercache.bench.workloads import Epochs, HitRatio, Naming, Reading, Saving, Training, Workload
from tiercache.units import format_duration, format_size


class Summary(NamedTuple):
    """Our targets' ratios in every phase, in one table."""

    targets: tuple[str, ...]
    lines: tuple[tuple[str, tuple[str, ...]], ...]
    """Workload and phase, then a cell per target."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the table, the JSON and the page are made of."""

    title: str
    workloads: tuple[Workload, ...]
    settings: Mapping[str, str]
    machine: Mapping[str, str]
    notes: tuple[str, ...]
    epochs: tuple[Epoch, ...]
    rows: tuple[Row, ...]

    def of(self, workload: Workload) -> Iterator[tuple[Phase, list[Row]]]:
        """The rows of a workload, phase by phase."""
        rows = [row for row in self.rows if row.workload == workload.name]
        for phase in dict.fromkeys(row.phase for row in rows):
            yield phase, [row for row in rows if row.phase is phase]

    def summary(self) -> Summary:
        """What a reader should remember."""
        compared = [row for row in self.rows if row.target.role is Role.CACHED and all_ratios(row) != NOTHING]
        targets = tuple(dict.fromkeys(row.target.name for row in compared))
        lines = []
        for workload in self.workloads:
            for phase, rows in self.of(workload):
                cells = {row.target.name: all_ratios(row) for row in rows}
                if set(cells.values()) == {NOTHING}:
                    continue
                lines.append((f"{workload.name}, {phase}", tuple(cells.get(name, NOTHING) for name in targets)))
        return Summary(targets, tuple(lines))

    def comparison(self) -> str:
        """What the summary's figures are, in words."""
        others = {
            "on the origin": any(row.against_origin and row.target.origin_peer != BARE_LOOP for row in self.rows),
            "in a bare loop over the origin": any(row.target.origin_peer == BARE_LOOP for row in self.rows),
            "on a local directory": any(row.against_local for row in self.rows),
            "on the mounts of the peers": any(row.against_peers for row in self.rows),
        }
        return f"How many times as fast as the same call {', '.join(name for name, there in others.items() if there)}"

    def as_json(self) -> str:
        """All figures, and those of each round."""
        content = {
            "title": self.title,
            "machine": self.machine,
            "settings": self.settings,
            "notes": self.notes,
            "workloads": [asdict(workload) for workload in self.workloads],
            "rows": [_row_as_dict(row) for row in self.rows],
            "epochs": [_epoch_as_dict(epoch) for epoch in self.epochs],
        }
        return json.dumps(content, indent=1, default=str) + "\n"

    def write_json(self, path: Path) -> None:
        path.write_text(self.as_json())


def make_report(
    title: str,
    workloads: Iterable[Workload],
    epochs: Iterable[Epoch],
    *,
    settings: Mapping[str, str],
    machine: Mapping[str, str],
    notes: Iterable[str],
) -> Report:
    """Summarise what was measured."""
    kept = tuple(epochs)
    return Report(title, tuple(workloads), settings, machine, tuple(notes), kept, tuple(rows_of(kept)))


def describe(workload: Workload) -> str:
    """The workload's data in one line."""
    match workload:
        case Reading() if workload.request_bytes:
            return f"{format_size(workload.median_bytes)} in reads of {format_size(workload.request_bytes)}"
        case Reading():
            size = format_size(workload.median_bytes)
            workers = "one worker" if workload.workers == 1 else f"{workload.workers} workers"
            return f"{workload.files} files, median {size}, {workload.order} order, {workers}"
        case Epochs():
            size = format_size(workload.median_bytes)
            return (
                f"{workload.files} files, median {size}, batches of {workload.batch}, {workload.workers} workers × "
                f"prefetch {workload.prefetch}, latency {format_duration(workload.latency_s)}"
            )
        case HitRatio():
            return f"{workload.files} files of {format_size(workload.median_bytes)}, random order"
        case Training():
            return (
                f"{workload.images} images, batches of {workload.batch}, {workload.workers} workers × prefetch "
                f"{workload.prefetch}, latency {format_duration(workload.latency_s)}"
            )
        case Saving():
            return f"{format_size(workload.size_bytes)} in writes of {format_size(workload.write_bytes)}"
        case Naming() if workload.phases == (Phase.CREATE,):
            return f"{workload.created} files of {format_size(workload.size_bytes)}, made in one directory"
        case Naming():
            total = workload.directories * workload.files
            return f"{total} files of {format_size(workload.size_bytes)} in {workload.directories} directories"


def _row_as_dict(row: Row) -> dict[str, Any]:
    found = asdict(row)
    found["target"] = row.target.name
    found["role"] = row.target.role.value
    for name in ("against_origin", "against_local"):
        value = getattr(row, name)
        found[name] = value._asdict() if isinstance(value, Ratio) else None
    found["against_peers"] = {name: value._asdict() for name, value in row.against_peers.items()}
    for name in ("batch", "wait", "hits", "asked"):
        value = getattr(row, name)
        found[name] = value._asdict() if value is not None else None
    found["origin_peer"] = row.target.origin_peer
    found["local_peer"] = row.target.local_peer
    return found


def _epoch_as_dict(epoch: Epoch) -> dict[str, Any]:
    return {
        "workload": epoch.workload,
        "phase": epoch.phase,
        "target": epoch.target.name,
        "round": epoch.round,
        "requests": epoch.requests,
        "moved_bytes": epoch.moved_bytes,
        "busy_s": epoch.busy_s,
        "cpu_s": epoch.cpu_s,
        "resident_before": epoch.resident_before,
        "batch_s": epoch.batch_s,
        "wait_s": epoch.wait_s,
        "compute_s": epoch.compute_s,
        "server": epoch.spent.server._asdict() if epoch.spent.server else None,
        "engine": epoch.spent.use._asdict() if epoch.spent.use else None,
        "counters": epoch.spent.counters,
        "line": epoch.spent.traffic._asdict() if epoch.spent.traffic else None,
    }
