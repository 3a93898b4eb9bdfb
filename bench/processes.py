"""Processes behind a mount: what they use, and that they end with us."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class Usage(NamedTuple):
    """What a process and its children use; of an epoch: what they used in it, and the memory at its end."""

    cpu_s: float = 0.0
    read_calls: int = 0
    """System calls that read, from ``/dev/fuse`` too: about one for each request that the kernel sent."""
    write_calls: int = 0
    rss_bytes: int = 0
    """Memory in use now, pages of mapped files included."""
    anonymous_bytes: int = 0
    """The same without mapped files: what the process itself has taken."""

    def since(self, before: Usage) -> Usage:
        """The counters of the time between, with the memory of now."""
        return self._replace(
            cpu_s=self.cpu_s - before.cpu_s,
            read_calls=self.read_calls - before.read_calls,
            write_calls=self.write_calls - before.write_calls,
        )


def usage_of(pid: int) -> Usage:
    """Of a process and all below it; nothing of what has ended meanwhile."""
    parts = [_usage_of_one(each) for each in _family(pid)]
    return Usage(*(sum(column) for column in zip(*parts, strict=True))) if parts else Usage()


def dying_with_us(signal_name: str = "KILL") -> list[str]:
    """A command's prefix that ends it when the thread that starts it ends, even by SIGKILL; util-linux has it."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", signal_name] if found else []


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in (_PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                yield from _family(int(child))


def _usage_of_one(pid: int) -> Usage:
    directory = _PROC / str(pid)
    try:
        # The name in brackets may hold anything; the figures come after it.
        after_name = (directory / "stat").read_text().rpartition(")")[2].split()
        status = _fields(directory / "status")
    except OSError:
        return Usage()
    calls: dict[str, str] = {}
    with suppress(PermissionError):  # of another user's process, or one that may not be traced
        calls = _fields(directory / "io")
    return Usage(
        cpu_s=(int(after_name[11]) + int(after_name[12])) / _TICKS_PER_S,
        read_calls=int(calls.get("syscr", 0)),
        write_calls=int(calls.get("syscw", 0)),
        rss_bytes=_bytes(status, "VmRSS"),
        anonymous_bytes=_bytes(status, "RssAnon"),
    )


def _fields(path: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def _bytes(status: dict[str, str], name: str) -> int:
    return int(status.get(name, "0 kB").split()[0]) * 1024


def find_command(name: str) -> str:
    """The path of a program that a package put beside this Python, or of one on the PATH; empty if there is none."""
    beside_python = Path(sys.executable).parent / name
    return str(beside_python) if beside_python.exists() else shutil.which(name) or ""
