"""The report of a run: what was measured, on what, and what a reader must know about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tiercache.bench.figures import number
from tiercache.bench.results import Epoch, Phase, Ratio, Row, rows_of
from tiercache.bench.targets import Role
from tiercache.bench.workloads import Naming, Reading, Saving, Workload
from tiercache.units import format_size


class Headline(NamedTuple):
    """One sentence and its figure."""

    figure: str
    text: str


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

    def headlines(self) -> list[Headline]:
        """What a reader should remember: our ratios in the first workload of each kind."""
        return [line for workload in self.workloads for line in _headlines(self, workload)]

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
            return f"{workload.files} files, median {size}, {workload.order} order, {workload.workers} worker(s)"
        case Saving():
            return f"{format_size(workload.size_bytes)} in writes of {format_size(workload.write_bytes)}"
        case Naming():
            total = workload.directories * workload.files
            return f"{total} files of {format_size(workload.size_bytes)} in {workload.directories} directories"


_TOLD = (Phase.WARM, Phase.DISK_WARM, Phase.COLD, Phase.SAVE, Phase.LOAD, Phase.STAT_WARM)


def _headlines(report: Report, workload: Workload) -> Iterator[Headline]:
    phases = dict(report.of(workload))
    for phase in _TOLD:
        for row in phases.get(phase, []):
            if row.target.role is Role.CACHED and row.against_origin:
                local = f"; {number(row.against_local.median)} × the local directory" if row.against_local else ""
                yield Headline(
                    f"{number(row.against_origin.median)} ×",
                    f"{workload.name}, {phase}: {row.target.name} against {row.target.origin_peer}{local}",
                )


def _row_as_dict(row: Row) -> dict[str, Any]:
    found = asdict(row)
    found["target"] = row.target.name
    found["role"] = row.target.role.value
    for name in ("against_origin", "against_local"):
        value = getattr(row, name)
        found[name] = value._asdict() if isinstance(value, Ratio) else None
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
        "engine": epoch.use._asdict() if epoch.use else None,
        "line": epoch.traffic._asdict() if epoch.traffic else None,
    }
