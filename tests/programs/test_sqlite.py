"""SQLite on a mount: four journal modes, two processes at once, and SQLite's own check."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from rig.mounts import Mounted

ROWS = 10

WRITE_ROWS = f"""
import sqlite3, sys
path, mode, writer = sys.argv[1:]
base = sqlite3.connect(path, timeout=60, isolation_level=None)
assert base.execute(f"PRAGMA journal_mode={{mode}}").fetchone()[0] == mode
print("ready", flush=True)
sys.stdin.readline()
for number in range({ROWS}):
    base.execute("BEGIN IMMEDIATE")
    base.execute("INSERT INTO rows VALUES (?, ?, ?)", (writer, number, bytes(300) + bytes([number])))
    base.execute("UPDATE totals SET rows = rows + 1")
    if number % 5 == 4:
        base.execute("ROLLBACK")
    else:
        base.execute("COMMIT")
base.close()
"""


def make(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as base:
        assert base.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode,)
        base.execute("CREATE TABLE rows (writer TEXT, number INTEGER, data BLOB, PRIMARY KEY (writer, number))")
        base.execute("CREATE TABLE totals (rows INTEGER)")
        base.execute("INSERT INTO totals VALUES (0)")
        base.commit()


def check(path: Path) -> None:
    with closing(sqlite3.connect(path)) as base:
        assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        kept = 2 * ROWS * 4 // 5
        assert base.execute("SELECT count(*), (SELECT rows FROM totals) FROM rows").fetchone() == (kept, kept)


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
def test_two_processes_write_one_database(mounted: Mounted, root: Path, tmp_path: Path, mode: str) -> None:
    """Both writers' rows are all there, those that were rolled back are not, here and at the origin."""
    path = root / "base.db"
    make(path, mode)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE_ROWS, path, mode, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    ends = [start.communicate("\n", timeout=60) for start in started(writers)]
    assert [writer.returncode for writer in writers] == [0, 0], ends
    check(path)
    mounted.drain()
    copy = tmp_path / "copy.db"
    copy.write_bytes(mounted.source.get("base.db"))
    check(copy)
    mounted.cold()
    check(path)


def started(writers: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    """Let all of them go before the first one is waited for."""
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    return writers
