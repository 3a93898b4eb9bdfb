"""A memory limit for some processes and the page cache that they fill: a control group of its own."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tiercache.errors import ConfigError

ROOT = Path("/sys/fs/cgroup")
LIMIT_FILES = {2: "memory.max", 1: "memory.limit_in_bytes"}


class MemoryGroup:
    """The processes in it share what ``limit`` says. A context manager: afterwards they are where they were.

    The kernel charges a page of a file to the group whose process brings it into memory.
    """

    def __init__(self) -> None:
        """ConfigError if there can be none."""
        problem = why_no_memory_group()
        if problem:
            raise ConfigError(problem)
        self._version = _version()
        self._hierarchy = ROOT if self._version == 2 else ROOT / "memory"
        self._directory = self._hierarchy / f"tiercache-bench-{uuid.uuid4().hex[:8]}"
        self._homes: dict[int, Path] = {}

    def __enter__(self) -> MemoryGroup:
        self._directory.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in map(int, (self._directory / "cgroup.procs").read_text().split()):
            _move(pid, self._homes.get(pid, self._hierarchy))
        with suppress(OSError):  # one that ends now; nothing but a name is left
            self._directory.rmdir()

    def add(self, pid: int) -> None:
        """Move a process in. What it starts afterwards is in it too."""
        self._homes[pid] = self._hierarchy / self._path_of(pid).lstrip("/")
        _move(pid, self._directory)

    def limit(self, limit_bytes: int) -> None:
        """Let all of them together have so much memory."""
        (self._directory / LIMIT_FILES[self._version]).write_text(str(limit_bytes))

    def _path_of(self, pid: int) -> str:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if (controllers == "") if self._version == 2 else "memory" in controllers.split(","):
                return path
        return "/"


def why_no_memory_group() -> str:
    """Why memory cannot be limited here; empty if it can."""
    if os.geteuid() != 0:
        return "a memory limit needs root"
    return "" if _version() else "there are no memory control groups here"


def _version() -> int:
    """Of the hierarchy that has the memory controller for groups at its top; 0 if there is none."""
    enabled = ROOT / "cgroup.subtree_control"
    if enabled.exists() and "memory" in enabled.read_text().split():
        return 2
    return 1 if (ROOT / "memory" / LIMIT_FILES[1]).exists() else 0


def _move(pid: int, group: Path) -> None:
    with suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))
