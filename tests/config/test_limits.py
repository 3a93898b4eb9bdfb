"""Shares count against what this process may use: the cgroup's memory, the disk of the cache directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiercache.config import Config, disk_total_bytes, memory_limit_bytes

MIB = 1024**2


class Machine:
    """A /proc and a /sys/fs/cgroup in a folder."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text("MemTotal:        1048576 kB\nMemFree:         1000 kB\n")

    def member_of(self, text: str) -> None:
        (self.proc / "self" / "cgroup").write_text(text)

    def limit(self, file: str, text: str) -> None:
        path = self.cgroup / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def memory_limit_bytes(self) -> int:
        return memory_limit_bytes(cgroup_root=self.cgroup, proc=self.proc)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_cgroups_the_machines_memory_counts(machine: Machine) -> None:
    assert machine.memory_limit_bytes() == 1024 * MIB


def test_a_v2_limit_counts(machine: Machine) -> None:
    machine.member_of("0::/job/task\n")
    machine.limit("job/task/memory.max", str(100 * MIB))
    assert machine.memory_limit_bytes() == 100 * MIB


def test_the_tightest_limit_up_the_v2_hierarchy_counts(machine: Machine) -> None:
    machine.member_of("0::/job/task\n")
    machine.limit("job/task/memory.max", "max")
    machine.limit("job/memory.max", str(50 * MIB))
    machine.limit("memory.max", str(200 * MIB))
    assert machine.memory_limit_bytes() == 50 * MIB


def test_a_container_sees_its_own_limit_at_the_root(machine: Machine) -> None:
    """Inside a cgroup namespace the path is ``/``; without one it names folders that are not visible."""
    machine.limit("memory.max", str(70 * MIB))
    for path in ("/", "/system.slice/docker-abc.scope", "/../../outside"):
        machine.member_of(f"0::{path}\n")
        assert machine.memory_limit_bytes() == 70 * MIB


def test_a_v1_limit_counts_and_its_unlimited_value_does_not(machine: Machine) -> None:
    machine.member_of("9:name=systemd:/\n4:memory:/job\n1:cpu,cpuacct:/\n0::/\n")
    machine.limit("memory/memory.limit_in_bytes", "9223372036854771712")
    assert machine.memory_limit_bytes() == 1024 * MIB
    machine.limit("memory/job/memory.limit_in_bytes", str(30 * MIB))
    assert machine.memory_limit_bytes() == 30 * MIB


def test_a_hybrid_machine_counts_both(machine: Machine) -> None:
    machine.member_of("4:memory:/\n0::/job\n")
    machine.limit("memory/memory.limit_in_bytes", str(90 * MIB))
    machine.limit("unified/job/memory.max", str(80 * MIB))
    assert machine.memory_limit_bytes() == 80 * MIB


def test_this_machine_has_a_limit() -> None:
    assert 0 < memory_limit_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_disk_of_a_directory_that_is_not_made_yet_is_its_parents(tmp_path: Path) -> None:
    assert disk_total_bytes(tmp_path / "not" / "yet") == disk_total_bytes(tmp_path) > 0


def test_capacities_resolve_against_disk_and_memory(tmp_path: Path) -> None:
    config = Config(
        cache_dir=tmp_path,
        ram={"capacity": "1%", "directory": tmp_path / "ram"},
        nvme={"capacity": "50%", "free_space_floor": "1MiB"},
        staging={"capacity": "25%"},
    )  # type: ignore[arg-type]
    total_bytes = disk_total_bytes(tmp_path)
    assert config.ram_capacity_bytes() == min(int(memory_limit_bytes() * 0.01), int(total_bytes * 0.9))
    assert config.nvme_capacity_bytes() == int(total_bytes * 0.5)
    assert config.free_space_floor_bytes() == MIB
    assert config.staging_capacity_bytes() == int(total_bytes * 0.25)


def test_the_ram_tier_is_never_larger_than_its_tmpfs(tmp_path: Path) -> None:
    config = Config(cache_dir=tmp_path, ram={"capacity": "1PiB", "directory": tmp_path})  # type: ignore[arg-type]
    assert config.ram_capacity_bytes() == int(disk_total_bytes(tmp_path) * 0.9)
