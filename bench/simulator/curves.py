"""Miss ratio curves: a line per policy over the capacity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiercache.bench.plots import DPI
from tiercache.bench.simulator.grid import BYTE_HITS, HITS, Grid, Measure, measures

PANEL_WIDTH_IN = 5.2
PANEL_HEIGHT_IN = 3.8
MARKERS = "osD^v<>PXh"
WITHOUT_EVICTION = ("hold", "planned")
"""Drawn dashed: the one never evicts, and the other knows what comes."""

_STYLE: Any = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}


def write_curves(grid: Grid, path: Path) -> None:
    """A picture (PNG) with a panel for misses, and one for bytes of misses where the objects have sizes."""
    # Without pyplot: no window system, no global state.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [measure for measure in measures(grid.trace) if measure in (HITS, BYTE_HITS)]
    with rc_context(_STYLE):
        figure = Figure(figsize=(PANEL_WIDTH_IN * len(drawn), PANEL_HEIGHT_IN))
        FigureCanvasAgg(figure)
        for place, measure in enumerate(drawn, 1):
            axes = figure.add_subplot(1, len(drawn), place)
            _panel(axes, grid, measure)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        figure.suptitle(grid.trace.title, fontsize=10, x=0.01, ha="left")
        figure.tight_layout()
        figure.savefig(path, format="png", dpi=DPI, bbox_inches="tight", facecolor="white")


def _panel(axes: Any, grid: Grid, measure: Measure) -> None:
    footprint_bytes = grid.trace.footprint_bytes()
    for number, (policy, cells) in enumerate(grid.rows().items()):
        ordered = sorted(cells, key=lambda cell: cell.capacity_bytes)
        axes.plot(
            [cell.capacity_bytes / footprint_bytes for cell in ordered],
            [1 - measure.of(cell.counts) for cell in ordered],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=1.2,
            linestyle="--" if policy in WITHOUT_EVICTION else "-",
            label=policy,
        )
    axes.set_title(measure.title.replace("hit", "miss"))
    axes.set_xlabel("capacity / all objects")
    axes.set_ylim(bottom=0)
