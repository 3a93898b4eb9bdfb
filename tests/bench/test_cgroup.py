"""A memory limit for the benchmark's processes, and nothing left of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tiercache.bench import cgroup
from tiercache.bench.cgroup import MemoryGroup, why_no_memory_group
from tiercache.errors import ConfigError

limited = pytest.mark.skipif(bool(why_no_memory_group()), reason=why_no_memory_group())

FAR = 64 * 1024 * 1024


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


@limited
def test_a_process_is_under_the_limit_and_back_afterwards() -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        before = groups_of(process.pid)
        with MemoryGroup() as group:
            group.add(process.pid)
            group.limit(FAR)
            [inside] = cgroup.ROOT.glob("**/tiercache-bench-*/cgroup.procs")
            assert inside.read_text().split() == [str(process.pid)]
            assert "tiercache-bench-" in groups_of(process.pid)
        assert groups_of(process.pid) == before
        assert list(cgroup.ROOT.glob("**/tiercache-bench-*")) == []


@limited
def test_a_process_that_ended_meanwhile_is_no_trouble() -> None:
    with MemoryGroup() as group, subprocess.Popen([sys.executable, "-c", ""]) as process:
        group.add(process.pid)
        process.wait()
    assert list(cgroup.ROOT.glob("**/tiercache-bench-*")) == []


def test_without_control_groups_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="there are no memory control groups here"):
        MemoryGroup()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert why_no_memory_group() == "a memory limit needs root"
