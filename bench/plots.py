"""Plots: a panel per phase, a dot per target on a logarithmic axis, a line for the range of its rounds."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiercache.bench.figures import duration, heading, number, ratio
from tiercache.bench.phases import Phase
from tiercache.bench.report import Report, describe
from tiercache.bench.results import Row
from tiercache.bench.targets import Role
from tiercache.bench.workloads import Epochs, HitRatio, Reading, Saving, Training, Workload

COLORS = {Role.ORIGIN: "#8a8f98", Role.CACHED: "#0b7285", Role.PEER: "#7a5195", Role.LOCAL: "#c08a2d"}
MEANINGS = {
    Role.ORIGIN: "origin, uncached",
    Role.CACHED: "tiercache",
    Role.PEER: "another mount",
    Role.LOCAL: "local directory, the limit",
}
PANEL_WIDTH_IN = 3.4
NAMES_WIDTH_IN = 2.3
ROW_HEIGHT_IN = 0.27
LETTER_WIDTH_PT = 4.9
"""Of the labels."""
PANELS_IN_A_LINE = 3
DPI = 130

_STYLE: Any = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "xtick.color": "#555b63",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.fonttype": "path",
}


def svg_of(report: Report, workload: Workload) -> str:
    """The panels of one workload as an SVG element, to be put into a page."""
    figure = _figure([(workload, phase, rows) for phase, rows in report.of(workload)], title="")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def write_png(report: Report, path: Path) -> None:
    """All panels of all workloads in one picture."""
    panels = [(workload, phase, rows) for workload in report.workloads for phase, rows in report.of(workload)]
    figure = _figure(panels, title=report.title)
    figure.savefig(path, format="png", dpi=DPI, bbox_inches="tight", facecolor="white")


def _figure(panels: Sequence[tuple[Workload, Phase, list[Row]]], *, title: str) -> Any:
    # Without pyplot: no window system, no global state.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = _lines(panels)
    heights = [max(len(rows) for _, _, rows in line) * ROW_HEIGHT_IN + 0.75 for line in lines]
    title_in = 0.8 if title else 0.0
    width_in = NAMES_WIDTH_IN + PANEL_WIDTH_IN * max(len(line) for line in lines)
    height_in = sum(heights) + title_in
    with rc_context(_STYLE):
        figure = Figure(figsize=(width_in, height_in))
        FigureCanvasAgg(figure)
        top_in = height_in - title_in
        for line, line_height_in in zip(lines, heights, strict=True):
            for place, (workload, phase, rows) in enumerate(line):
                left_in = NAMES_WIDTH_IN + place * PANEL_WIDTH_IN
                box = (
                    left_in / width_in,
                    (top_in - line_height_in + 0.4) / height_in,
                    (PANEL_WIDTH_IN - 0.25) / width_in,
                    (line_height_in - 0.7) / height_in,
                )
                name = f"{workload.name}: {phase}" if title else heading(phase)
                _panel(figure.add_axes(box), workload, rows, name, named=place == 0)
            top_in -= line_height_in
        if title:
            figure.text(0.0, 1 - 0.2 / height_in, title, fontsize=13, fontweight="bold", va="top")
            figure.text(0.0, 1 - 0.45 / height_in, _subtitle(panels), fontsize=8.5, color="#555b63", va="top")
        taking_part = {row.target.role for _, _, rows in panels for row in rows}
        _legend(figure, [role for role in Role if role in taking_part])
    return figure


def _lines(panels: Sequence[tuple[Workload, Phase, list[Row]]]) -> list[list[tuple[Workload, Phase, list[Row]]]]:
    """Panels side by side share the names at the left, so each line has the same targets."""
    lines: list[list[tuple[Workload, Phase, list[Row]]]] = []
    for panel in panels:
        names = [row.target.name for row in panel[2]]
        if (
            lines
            and len(lines[-1]) < PANELS_IN_A_LINE
            and lines[-1][0][0] is panel[0]
            and [row.target.name for row in lines[-1][0][2]] == names
        ):
            lines[-1].append(panel)
        else:
            lines.append([panel])
    return lines


def _panel(axes: Any, workload: Workload, rows: list[Row], title: str, *, named: bool) -> None:
    scale, unit = _scale(workload, rows)
    for position, row in enumerate(rows):
        color = COLORS[row.target.role]
        at = -position
        axes.plot(
            [row.rate_lowest_per_s * scale, row.rate_highest_per_s * scale],
            [at, at],
            color=color,
            alpha=0.35,
            linewidth=4,
            solid_capstyle="round",
        )
        value = row.rate_per_s * scale
        axes.plot([value], [at], "o", color=color, markersize=6)
        axes.annotate(
            _label(workload, row, scale),
            (max(value, row.rate_highest_per_s * scale), at),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=color,
        )
    axes.set_xscale("log")
    axes.set_xlim(*_limits(workload, rows, scale))
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_yticks([-position for position in range(len(rows))])
    axes.set_yticklabels([row.target.name for row in rows] if named else [])
    for text, row in zip(axes.get_yticklabels(), rows, strict=False):
        text.set_color(COLORS[row.target.role])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8, which="both", length=2)
    axes.xaxis.set_minor_formatter("")
    highest = max(row.rate_highest_per_s for row in rows) * scale
    # Beyond the data there are labels only, and no room for more.
    axes.xaxis.set_major_formatter(lambda value, _: _tick(value) if value <= 1.5 * highest else "")
    axes.set_title(title)
    axes.set_xlabel(unit, fontsize=8, labelpad=1, color="#555b63")


def _tick(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _limits(workload: Workload, rows: list[Row], scale: float) -> tuple[float, float]:
    """So wide that each label ends inside the panel."""
    low = math.log10(min(row.rate_lowest_per_s for row in rows) * scale) - 0.12
    width = 0.5
    for row in rows:
        begins = math.log10(row.rate_highest_per_s * scale)
        label_share = (10 + LETTER_WIDTH_PT * len(_label(workload, row, scale))) / (72 * (PANEL_WIDTH_IN - 0.25))
        width = max(width, (begins - low) / (1 - min(label_share, 0.8)))
    return float(10**low), float(10 ** (low + width))


def _scale(workload: Workload, rows: list[Row]) -> tuple[float, str]:
    """From requests a second to what the axis shows."""
    match workload:
        case Epochs() | HitRatio():
            return 1.0, "files/s"
        case Training():
            return 1.0, "samples/s"
        case Reading() if not workload.request_bytes:
            return 1.0, "files/s"
        case Reading() | Saving():
            bytes_per_request = rows[0].bytes_per_s / rows[0].rate_per_s
            return bytes_per_request / 1e6, "MB/s"
    return 1.0, "operations/s"


def _label(workload: Workload, row: Row, scale: float) -> str:
    text = duration(1 / row.rate_per_s) if isinstance(workload, Saving) else number(row.rate_per_s * scale)
    if row.target.role is Role.CACHED and row.against_origin:
        text += f"  ({ratio(row.against_origin)} origin)"
    elif row.against_local and row.target.role is Role.CACHED:
        text += f"  ({ratio(row.against_local)} local)"
    return text


def _subtitle(panels: Sequence[tuple[Workload, Phase, list[Row]]]) -> str:
    workloads = {workload.name: workload for workload, _, _ in panels}
    told = "; ".join(f"{name}: {describe(workload)}" for name, workload in list(workloads.items())[:2])
    return f"{told}{'; …' if len(workloads) > 2 else ''}. Dot: median over the rounds, line: their range."


def _legend(figure: Any, roles: Sequence[Role]) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], marker="o", linestyle="", color=COLORS[role], label=MEANINGS[role]) for role in roles]
    figure.legend(
        handles=marks,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        ncols=len(roles),
        frameon=False,
        fontsize=8.5,
        handletextpad=0.2,
    )
