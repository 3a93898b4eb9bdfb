"""A small disk of its own: a tmpfs mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size_mib: int) -> Iterator[Path]:
    """Mount a tmpfs at ``path``; skips the test where that is not allowed."""
    path.mkdir()
    options = f"size={size_mib}m,mode=0700"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs needs CAP_SYS_ADMIN: {mounted.stderr!r}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write there."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize
