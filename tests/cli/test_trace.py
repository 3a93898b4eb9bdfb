"""``tiercache trace`` begins and ends the record of a running engine."""

from __future__ import annotations

from pathlib import Path

from rig.command import Command


def test_what_is_read_between_start_and_stop_is_recorded(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    (mountpoint / "a.txt").read_bytes()
    path = tiercache.cache_dir / "trace" / "reads.csv"
    assert tiercache.good(*tiercache.here("trace", "start")) == f"reads are recorded in {path}\n"
    (mountpoint / "sub" / "b.txt").read_bytes()
    assert tiercache.good(*tiercache.here("trace", "stop")) == f"what was read is in {path}\n"
    (mountpoint / "a.txt").read_bytes()
    [line] = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert line.endswith(",200000")
    said = tiercache.failure(*tiercache.here("trace", "begin"), status=2)
    assert said == "start or stop: 'begin' is not known; allowed: start, stop"
