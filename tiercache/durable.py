"""Directories and small files that survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """Make a directory for us alone, and those above it, durably; nothing to do where it is. Blocking. OSError."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for directory in reversed(missing):
        try:
            sync_directory(directory.parent)
        except OSError:
            os.sync()  # a directory that we may write and not read, or a filesystem that syncs no directories


def write_file(path: Path, data: bytes) -> None:
    """Put a small file in the place of what is there: after a crash it is all old or all new. Blocking. OSError."""
    new = path.with_name(path.name + ".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    os.replace(new, path)
    sync_directory(path.parent)


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable. Blocking. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
