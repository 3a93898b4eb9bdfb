"""The report on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from tiercache.bench.figures import heading, shown_columns
from tiercache.bench.phases import MEANINGS, Phase
from tiercache.bench.report import Report, describe
from tiercache.bench.results import Row
from tiercache.bench.targets import Role
from tiercache.bench.workloads import Workload

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 165
SOURCES_WIDTH = 15
"""Of the column that says where bytes came from, which takes more than one line where there is no room."""
NARROW_TARGETS = 3
"""With more of them the cells of the summary take more than one line."""
STYLES = {Role.ORIGIN: "", Role.CACHED: "bold cyan", Role.PEER: "", Role.LOCAL: "dim"}


def print_report(report: Report, file: TextIO | None = None) -> None:
    """One table per phase, then what must be known about them."""
    from rich.console import Console

    file = file or sys.stdout
    console = Console(file=file, highlight=False, width=None if file.isatty() else WIDTH_WITHOUT_TERMINAL)
    for workload in report.workloads:
        console.print(f"\n[bold]{workload.title}[/bold] ({describe(workload)})")
        for phase, rows in report.of(workload):
            _print_phase(console, workload, phase, rows)
    _print_summary(console, report)
    for note in report.notes:
        console.print(f"• {note}", markup=False)


def _print_summary(console: Console, report: Report) -> None:
    from rich import box
    from rich.table import Table

    summary = report.summary()
    if not summary.lines:
        return
    table = Table(
        title=report.comparison(),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    for title in ("", *summary.targets):
        table.add_column(title, no_wrap=len(summary.targets) <= NARROW_TARGETS)
    for line, cells in summary.lines:
        table.add_row(line, *cells)
    console.print()
    console.print(table)


def _stacked(title: str) -> str:
    """A heading is not to make a column of short figures wide, or the figures are cut off where there is no room."""
    return title if title.startswith("×") else title.replace(" ", "\n")


def _print_phase(console: Console, workload: Workload, phase: Phase, rows: list[Row]) -> None:
    from rich import box
    from rich.table import Table

    shown = shown_columns(workload, rows)
    table = Table(
        title=f"{heading(phase)}: {MEANINGS[phase]}", title_justify="left", title_style="", box=box.SIMPLE_HEAD
    )
    table.add_column("target", no_wrap=True)
    for column in shown:
        left = column.title == "bytes came from"
        table.add_column(
            column.title if left else _stacked(column.title),
            vertical="bottom",
            justify="left" if left else "right",
            no_wrap=not left,
            min_width=SOURCES_WIDTH if left else None,
        )
    for row in rows:
        cells = [column.text(row) for column in shown]
        table.add_row(row.target.name, *cells, style=STYLES[row.target.role])
    console.print(table)
