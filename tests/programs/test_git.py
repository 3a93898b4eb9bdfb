"""git on a mount: a clone, commits, gc and fsck."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rig.mounts import Mounted

TIMEOUT_S = 60
FILES = 12

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(directory: Path, *arguments: str) -> str:
    """Run git and return what it says; a warning on the way is a failure too."""
    result = subprocess.run(
        ["git", "-c", "core.fsync=all", "-c", "gc.auto=0", *arguments],
        cwd=directory,
        env={**ENVIRONMENT, "HOME": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr, result.stderr
    return result.stdout


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository on the local disk with a few commits."""
    path = tmp_path / "upstream"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    for number in range(3):
        for name in range(FILES):
            file = path / f"dir{name % 5}" / f"file{name}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{name} in commit {number}\n" * (name + 1))
        git(path, "add", "-A")
        git(path, "commit", "-q", "-m", f"commit {number}")
    return path


def test_git_clones_commits_collects_and_checks(mounted: Mounted, root: Path, upstream: Path) -> None:
    """A clone on the mount takes commits, is repacked, and is sound then and after a remount."""
    git(root, "clone", "-q", "--no-local", str(upstream), "clone")
    clone = root / "clone"
    assert git(clone, "status", "--porcelain") == ""
    for number in range(2):
        (clone / f"new{number}.txt").write_text("x" * 1000 * number)
        (clone / "dir0" / "file0.txt").write_text(f"changed {number}\n")
        git(clone, "add", "-A")
        git(clone, "commit", "-q", "-m", f"local {number}")
    git(clone, "checkout", "-q", "-b", "side", "HEAD~1")
    git(clone, "mv", "dir1", "moved")
    git(clone, "commit", "-q", "-m", "move")
    git(clone, "checkout", "-q", "main")
    git(clone, "merge", "-q", "--no-edit", "side")
    git(clone, "gc", "-q", "--prune=now")
    check(clone)
    mounted.drain()
    mounted.cold()
    check(root / "clone")


def check(clone: Path) -> None:
    git(clone, "fsck", "--strict", "--full")
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "rev-list", "--count", "HEAD").strip() == "7"
    assert (clone / "moved" / "file1.txt").exists()
