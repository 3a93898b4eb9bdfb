"""What a share counts against: the memory this process may use, the size of a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def memory_limit_bytes(*, cgroup_root: Path = CGROUP_ROOT, proc: Path = PROC) -> int:
    """The smallest memory limit of this process' cgroup and its ancestors (v2 and v1), at most the machine's memory.

    A container sees the host's MemTotal, so taking a share of that alone would get the process killed.
    """
    limits = [_memory_total_bytes(proc), *_cgroup_limits(cgroup_root, proc)]
    return min(limit for limit in limits if limit > 0)


def disk_total_bytes(path: Path) -> int:
    """Size of the filesystem that holds ``path``, or will hold it once it is made."""
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    stat = os.statvfs(existing)
    return stat.f_frsize * stat.f_blocks


def _memory_total_bytes(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    raise OSError(f"no MemTotal in {proc / 'meminfo'}")


def _cgroup_limits(root: Path, proc: Path) -> Iterator[int]:
    try:
        memberships = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        hierarchy, controllers, path = membership.split(":", 2)
        if hierarchy == "0" and not controllers:
            # Unified alone, or beside v1 (hybrid) in its own folder.
            yield from _limits_upward(root, path, "memory.max")
            yield from _limits_upward(root / "unified", path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_upward(root / "memory", path, "memory.limit_in_bytes")


def _limits_upward(hierarchy: Path, path: str, file_name: str) -> Iterator[int]:
    """Limits from ``path`` up to the root of the hierarchy; what is not visible in our namespace is skipped."""
    group = PurePosixPath(path.lstrip("/"))
    if ".." in group.parts:
        group = PurePosixPath(".")
    for directory in (group, *group.parents):
        try:
            text = (hierarchy / directory / file_name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)
