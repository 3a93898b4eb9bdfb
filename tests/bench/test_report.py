"""The report: a page that needs nothing else, a picture, a table."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tiercache.bench.measure import Timed
from tiercache.bench.page import page_of
from tiercache.bench.phases import Phase
from tiercache.bench.plots import write_png
from tiercache.bench.processes import Usage
from tiercache.bench.report import Report, describe, make_report
from tiercache.bench.results import Epoch, epoch_of
from tiercache.bench.spent import Spent, TierUse
from tiercache.bench.suites import SUITES, find_workloads
from tiercache.bench.table import print_report
from tiercache.bench.targets import LOCAL_OPEN, OURS_OPEN, S3FS_OPEN, Call, Role, Target
from tiercache.units import MIB

ORIGIN = Target(S3FS_OPEN, "fsspec", Role.ORIGIN, Call.OPEN, local_peer=LOCAL_OPEN)
OURS = Target(OURS_OPEN, "fsspec", Role.CACHED, Call.OPEN, origin_peer=S3FS_OPEN, local_peer=LOCAL_OPEN)
LOCAL = Target(LOCAL_OPEN, "fsspec", Role.LOCAL, Call.OPEN, origin_peer=S3FS_OPEN)


def epochs(workload: str, phase: Phase) -> list[Epoch]:
    found = []
    for number in range(3):
        for target, latency_ns in ((ORIGIN, 5_000_000), (OURS, 50_000), (LOCAL, 40_000)):
            latencies = (latency_ns).to_bytes(8, "little") * 10
            ours = Spent(server=Usage(cpu_s=0.02, rss_bytes=50 * MIB), use=TierUse(ram_hits=10))
            spent = ours if target is OURS else Spent()
            found.append(epoch_of(workload, phase, target, number, [Timed(latencies, 1_000_000, 1000)], spent=spent))
    return found


@pytest.fixture
def report() -> Report:
    workloads = [workload for suite in SUITES.values() for workload in suite]
    phases = {"smallfiles": Phase.WARM, "largefile": Phase.COLD, "checkpoint": Phase.SAVE, "metadata": Phase.STAT_WARM}
    measured = [workload for workload in workloads if workload.name in phases]
    return make_report(
        "a <report>",
        measured,
        [epoch for workload in measured for epoch in epochs(workload.name, phases[workload.name])],
        settings={"rounds": "3"},
        machine={"processor": "A & B"},
        notes=["RAM exceeds <the data>."],
    )


def test_the_page_stands_alone_and_says_everything(report: Report) -> None:
    page = page_of(report)
    assert not re.search(r"<(script|link|img|iframe)\b|\bsrc=|url\(|@import", page.replace("url(#", ""))
    for text in (
        "a &lt;report&gt;",
        "RAM exceeds &lt;the data&gt;.",
        "A &amp; B",
        "RAM 100 %",
        "50 MiB",
        OURS_OPEN,
        "100 ×",
        "0.8 × local",
    ):
        assert text in page
    assert page.count("<svg") == page.count("</svg>") == len(report.workloads)


def test_the_picture_is_a_png(report: Report, tmp_path: Path) -> None:
    write_png(report, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_heading_counts_the_files_that_are_worked_on() -> None:
    [create] = find_workloads("mount-create")
    assert describe(create) == "1000 files of 4 KiB, made in one directory"
    [tree] = find_workloads("mount-tree")
    assert describe(tree) == "10000 files of 200 B in 100 directories"


def test_the_table_has_a_line_for_each_target(report: Report) -> None:
    text = io.StringIO()
    print_report(report, text)
    for row in report.rows:
        assert row.target.name in text.getvalue()
    assert "…" not in text.getvalue()
    assert "100 ×" in text.getvalue()
    assert "RAM exceeds <the data>." in text.getvalue()


def test_the_summary_gives_our_ratios_of_every_phase(report: Report) -> None:
    summary = report.summary()
    assert summary.targets == (OURS_OPEN,)
    assert summary.lines[0] == ("smallfiles, warm", ("100 × origin, 0.8 × local",))
    assert len(summary.lines) == 4
