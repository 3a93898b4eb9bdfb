"""What ``tiercache status`` shows can be read at 80 columns and without a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from tiercache.cli.status import print_engine

ERROR = "s3://bucket/run-7/step-000100.pt: access denied (403 SignatureDoesNotMatch): " + "no such key. " * 20
PATH = "s3://bucket/run-7/" + "deep/" * 20 + "step-000100.pt"
TIER = {"used_bytes": 900 * 2**30, "capacity_bytes": 2**40, "resident": 1e6, "hits": 123456789, "fill_bytes": 2**42} | {
    "evictions": 123456.0,
    "damaged": 0.0,
}
FILE = {"path": PATH, "state": "uploading", "size_bytes": 100, "sent_bytes": 25, "attempts": 3, "last_error": ERROR}


def status(**dirty: Any) -> dict[str, Any]:
    return {
        "engine": {"pid": 7, "supervisor_pid": 6, "restarts": 1, "uptime_s": 5, "version": "1", "cache_dir": "/c"},
        "tiers": {"ram": TIER, "nvme": TIER},
        "metrics": {"misses_total": 1000.0},
        "mounts": [
            {"mountpoint": "/mnt/data", "url": PATH, "profile": "checkpoint", "driver": "kernel", "read_only": False}
        ],
        "dirty": {"files": 1, "bytes": 1000, "states": {"uploading": 1}, "list": [FILE]} | dirty,
        "uploads": {"in_flight": 1, "committed": 0, "failed": 3},
    }


@pytest.mark.parametrize("columns", ["80", "40"])
def test_nothing_is_cut_off(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_engine(status())
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert f"        last error: {ERROR.rstrip()}" in lines
    place = lines.index(PATH)
    assert lines[place + 1] == "        uploading, 100 B, 25% sent, 3 attempts"
    assert "/mnt/data    checkpoint  kernel  rw  " + PATH in lines
    assert not any("…" in line for line in lines)


def test_figures_fit_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_engine(status(files=0, list=[]))
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if line.startswith(("tier", "ram", "nvme", "origin"))]
    assert len(table) == 4
    assert max(len(line.rstrip()) for line in table) <= 80


def test_many_dirty_files_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    print_engine(status(files=30, list=[FILE] * 25))
    assert capsys.readouterr().out.endswith("\nand 10 more\n")


def test_a_limit_of_the_rate_is_told_while_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    limited = status()
    for bandwidth_max, told in ((20 * 2**20, "3 failed, at most 20 MiB/s now"), (None, "3 failed")):
        limited["uploads"]["bandwidth_max"] = bandwidth_max
        print_engine(limited)
        [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("dirty")]
        assert line.endswith(told)


def test_a_disk_that_is_out_of_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    sick = status()
    sick["tiers"] = {"ram": TIER | {"state": "healthy"}, "nvme": TIER | {"state": "out"}}
    print_engine(sick)
    lines = capsys.readouterr().out.splitlines()
    told = [line.rstrip() for line in lines if "out of use" in line]
    assert told == ["out of use: the nvme tier, whose disk fails or is slow; see engine.log"]
