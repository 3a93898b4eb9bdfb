"""tar, rsync and cp on a mount: what goes in comes out, contents and attributes."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from rig.mounts import Mounted

TIMEOUT_S = 60
RANDOM = random.Random(31)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a program that must succeed and has nothing to complain of."""
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files of many sizes, modes and times, an empty directory, and symbolic links."""
    top = tmp_path / "tree"
    for number in range(24):
        path = top / f"d{number % 4}" / f"e{number % 3}" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(RANDOM.randbytes(number**4))
        path.chmod((0o644, 0o600, 0o755, 0o440)[number % 4])
        os.utime(path, ns=(1_500_000_000_000_000_000 + number, 1_600_000_000_123_456_789 + number * 10**9))
    (top / "empty").mkdir()
    (top / "link").symlink_to("d0/e0/file 0")
    (top / "dangling").symlink_to("nowhere")
    for directory in [top, *(path for path in top.rglob("*") if path.is_dir())]:
        os.utime(directory, ns=(10**18, 10**18))
    return top


def described(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a copy keeps, by relative path."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        what: tuple[object, ...]
        if path.is_symlink():
            what = (os.readlink(path),)
        elif path.is_dir():
            what = (status.st_mode,)
        else:
            what = (status.st_mode, status.st_mtime_ns, path.read_bytes())
        found[str(path.relative_to(top))] = what
    return found


def test_tar_extracts_compares_and_creates(mounted: Mounted, root: Path, tree: Path, tmp_path: Path) -> None:
    archive = tmp_path / "tree.tar"
    run("tar", "-C", tree, "--format=posix", "-cf", archive, ".")
    (root / "out").mkdir()
    run("tar", "-C", root / "out", "-xpf", archive)
    run("tar", "-C", root / "out", "--compare", "-f", archive)
    run("tar", "-C", root / "out", "--format=posix", "-cf", root / "again.tar", ".")
    mounted.drain()
    mounted.cold()
    assert described(root / "out") == described(tree)
    (tmp_path / "back").mkdir()
    run("tar", "-C", tmp_path / "back", "-xpf", root / "again.tar")
    assert described(tmp_path / "back") == described(tree)


def test_rsync_transfers_nothing_the_second_time(mounted: Mounted, root: Path, tree: Path) -> None:
    run("rsync", "-a", f"{tree}/", f"{root}/copy/")
    assert described(root / "copy") == described(tree)
    assert changes(tree, root / "copy") == []
    mounted.drain()
    mounted.cold()
    assert changes(tree, root / "copy") == []
    changed = tree / "d1" / "e1" / "file 1"
    changed.write_bytes(b"other bytes")
    (tree / "d2" / "e2" / "file 2").unlink()
    run("rsync", "-a", "--delete", f"{tree}/", f"{root}/copy/")
    assert described(root / "copy") == described(tree)


def changes(source: Path, target: Path) -> list[str]:
    """What rsync transfers or touches; an object store keeps no times of directories."""
    lines = run("rsync", "-a", "--itemize-changes", "--omit-dir-times", f"{source}/", f"{target}/").splitlines()
    return [line for line in lines if line]


def test_cp_copies_into_within_and_out_of_a_mount(mounted: Mounted, root: Path, tree: Path, tmp_path: Path) -> None:
    """Sharing extents where it can (it cannot here), and all attributes."""
    run("cp", "-a", "--reflink=auto", tree, root / "in")
    run("cp", "-a", "--reflink=auto", root / "in", root / "within")
    mounted.drain()
    mounted.cold()
    run("cp", "-r", "-p", root / "within", tmp_path / "out")
    for copy in (root / "in", root / "within", tmp_path / "out"):
        assert described(copy) == described(tree)


def test_copies_of_open_and_of_growing_files_are_whole(root: Path) -> None:
    """cp of a file that is still open for writing copies what was written so far."""
    data = RANDOM.randbytes(3_000_000)
    with open(root / "growing", "wb", buffering=0) as file:
        file.write(data)
        run("cp", "--reflink=auto", root / "growing", root / "copy")
        file.write(b"more")
    assert (root / "copy").read_bytes() == data
    assert (root / "growing").read_bytes() == data + b"more"
