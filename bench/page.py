"""The report as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from tiercache.bench.figures import heading, shown_columns
from tiercache.bench.phases import MEANINGS, Phase
from tiercache.bench.plots import svg_of
from tiercache.bench.report import Report, describe
from tiercache.bench.results import Row
from tiercache.bench.workloads import Workload

_CSS = """
:root { --ink: #1d2126; --soft: #5b626b; --line: #e3e6ea; --ours: #0b7285; --limit: #9a6b17; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 2.5rem 1.5rem 4rem; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .1rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
p, li { max-width: 52rem; }
.soft { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); border-bottom-color: #b9bfc7; cursor: help; }
h3 .soft { font-weight: 400; font-size: .9em; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
tr.tiercache td { color: var(--ours); font-weight: 600; }
tr.local td { color: var(--limit); }
svg { max-width: 100%; height: auto; margin: .6rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; font-size: .88rem; }
dt { color: var(--soft); }
dd { margin: 0; }
"""

LEFT_COLUMN = "bytes came from"


def write_page(report: Report, path: Path) -> None:
    """Write the page; it refers to nothing outside itself."""
    path.write_text(page_of(report))


def page_of(report: Report) -> str:
    """The page's text."""
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        '<p class="soft">All in one run, with a plain local directory as the limit. '
        "Every read was checked against a digest.</p>",
        _summary(report),
        _notes(report.notes),
        *(_workload(report, workload) for workload in report.workloads),
        "<h2>Machine and settings</h2>",
        _pairs({**report.machine, **report.settings}),
    ]
    title = escape(report.title)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_CSS}</style></head><body>\n{body}\n</body></html>\n'


def _summary(report: Report) -> str:
    summary = report.summary()
    if not summary.lines:
        return ""
    head = "".join(f'<th class="text">{escape(name)}</th>' for name in summary.targets)
    body = "".join(
        f"<tr><td>{escape(line)}</td>" + "".join(f'<td class="text">{escape(cell)}</td>' for cell in cells) + "</tr>"
        for line, cells in summary.lines
    )
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
    told = f"{report.comparison()}; medians of the rounds"
    return f'<h3>At a glance <span class="soft">{told}</span></h3><div class="scroll">{table}</div>'


def _notes(notes: tuple[str, ...]) -> str:
    return "<h3>Read this with the figures</h3><ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _workload(report: Report, workload: Workload) -> str:
    title = workload.title[0].upper() + workload.title[1:]
    parts = [
        f"<h2>{escape(title)}</h2>",
        f'<p class="soft">{escape(workload.name)}: {escape(describe(workload))}</p>',
        svg_of(report, workload),
        *(_phase(workload, phase, rows) for phase, rows in report.of(workload)),
    ]
    return "\n".join(parts)


def _phase(workload: Workload, phase: Phase, rows: list[Row]) -> str:
    shown = shown_columns(workload, rows)
    titles = (
        f'<th{_left(column.title)} title="{escape(column.help, quote=True)}">{escape(column.title)}</th>'
        for column in shown
    )
    head = "<th>target</th>" + "".join(titles)
    body = "".join(
        f'<tr class="{row.target.role.value}"><td>{escape(row.target.name)}</td>'
        + "".join(f"<td{_left(column.title)}>{escape(column.text(row))}</td>" for column in shown)
        + "</tr>"
        for row in rows
    )
    meaning = f'<span class="soft">{escape(MEANINGS[phase])}; {rows[0].rounds} rounds</span>'
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return f"<h3>{escape(heading(phase))} {meaning}</h3>\n{table}"


def _left(title: str) -> str:
    return ' class="text"' if title == LEFT_COLUMN else ""


def _pairs(pairs: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items()) + "</dl>"
