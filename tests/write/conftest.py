"""Fixtures of the write path's tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.writing_desk import Desk


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory, where a sync costs nothing, for tests that start anew hundreds of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.origin.release.set()
    desk.close()
