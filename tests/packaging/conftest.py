"""The package as its users get it: a source distribution, and the wheel that is built from that."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Distributions(NamedTuple):
    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built from a copy: a build leaves its traces beside the sources, and other tests read those."""
    copy = tmp_path_factory.mktemp("source") / "tiercache"
    shutil.copytree(
        ROOT,
        copy,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", "*.egg-info", "build", "dist", "__pycache__", ".*_cache", "tests"
        ),
    )
    out = tmp_path_factory.mktemp("dist")
    # Without isolation: setuptools is among the test extra, so no second download of it.
    result = subprocess.run(
        [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return Distributions(next(out.glob("*.tar.gz")), next(out.glob("*.whl")))
