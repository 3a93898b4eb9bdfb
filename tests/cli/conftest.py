"""A command with a cache directory of its own, and something to cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.command import Command


@pytest.fixture
def tiercache(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    if command.cache_dir.exists():
        command(*command.here("stop", "--deadline", "0"))


@pytest.fixture
def inside(tiercache: Command) -> Command:
    """For commands that reach no engine."""
    return tiercache.inside()


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A directory with a few files."""
    directory = tmp_path / "origin"
    (directory / "sub").mkdir(parents=True)
    (directory / "a.txt").write_bytes(b"a" * 1000)
    (directory / "sub" / "b.txt").write_bytes(b"b" * 200_000)
    return directory


@pytest.fixture
def mountpoint(tmp_path: Path, tiercache: Command) -> Iterator[Path]:
    directory = tmp_path / "mnt"
    directory.mkdir()
    yield directory
    if os.path.ismount(directory):
        tiercache(*tiercache.here("umount", directory, "--lazy"))
