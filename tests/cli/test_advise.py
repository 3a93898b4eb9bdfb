"""``tiercache advise`` as users call it: on a trace of their own, on what an engine recorded, and wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rig.command import Command


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two epochs of 600 objects of 4 KiB."""
    path = tmp_path / "reads.csv"
    path.write_text("".join(f"{number * 7 % 600},4096\n" for number in range(1200)))
    return path


def test_a_trace_of_ones_own_gives_a_table_and_sentences(inside: Command, trace: Path) -> None:
    said = inside.good("advise", trace, "--capacity", "1200KiB", "--add", "600KiB")
    assert said.startswith("1,200 reads of 600 objects; 2.34 MiB in all\n")
    assert " s3fifo " in said
    assert "With 1.76 MiB instead of 1.17 MiB: hit ratio " in said
    told = json.loads(
        inside.good("advise", trace, "--capacity", "1200KiB", "--add", "600KiB", "--policy", "hold", "--json")
    )
    assert told["policy"] == "hold"
    assert {row["hit_ratio"] for row in told["results"] if row["policy"] == "hold"} == {0.25, 0.5, 0.75, 1.0}


def test_what_an_engine_recorded_is_taken_unless_a_file_is_named(
    tiercache: Command, origin: Path, mountpoint: Path
) -> None:
    path = tiercache.cache_dir / "trace" / "reads.csv"
    inside = tiercache.inside()
    said = inside.failure(*tiercache.here("advise"))
    assert said == f"{path}: nothing was recorded; begin with: tiercache trace start"
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    tiercache.good(*tiercache.here("trace", "start"))
    (mountpoint / "a.txt").read_bytes()
    tiercache.good(*tiercache.here("trace", "stop"))
    said = inside.good(*tiercache.here("advise"))
    assert (
        said.splitlines()[1]
        == "No advice: the trace is too short: it has 1 read; with fewer than 1,000 nothing can be said."
    )


@pytest.mark.parametrize(
    ("arguments", "complaint", "status"),
    [
        ([], "{trace}: does not tell how large the cache was; name it with --capacity SIZE", 2),
        (["--capacity=x"], "--capacity: 'x' is not understood; allowed: a size", 2),
        (["--capacity=0"], "--capacity: 0 is nothing", 2),
        (["--add=0"], "--add: 0 is nothing", 2),
        (["--capacity=1MiB", "--policy=belady"], "policy 'belady' cannot be simulated; allowed: fifo", 1),
    ],
)
def test_a_fault_of_the_arguments_is_one_line(
    inside: Command, trace: Path, arguments: list[str], complaint: str, status: int
) -> None:
    said = inside.failure("advise", trace, *arguments, status=status)
    assert said.startswith(complaint.format(trace=trace))


def test_a_trace_that_is_none_is_named(inside: Command, tmp_path: Path) -> None:
    assert inside.failure("advise", tmp_path / "nowhere") == f"{tmp_path}/nowhere: No such file or directory"
    (tmp_path / "bad").write_text("a,1\nb\n")
    said = inside.failure("advise", tmp_path / "bad", "--capacity", "1GiB")
    assert said == f"{tmp_path}/bad: line 2 is not key,size, with the size in bytes"
