"""The three top-level folders are part of the package through links that git keeps as links."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

FOLDERS = ("fuse", "policies", "bench")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_package_reaches_the_folder_through_a_relative_link(root: Path, folder: str) -> None:
    link = root / "tiercache" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    assert (root / folder / "__init__.py").is_file()


@pytest.mark.parametrize("folder", FOLDERS)
def test_git_keeps_the_link_as_a_link(root: Path, folder: str) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--stage", f"tiercache/{folder}"], cwd=root, capture_output=True, text=True, check=True
    )
    assert listed.stdout.startswith("120000 ")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_folder_has_one_name_only(folder: str) -> None:
    """``fuse`` belongs to fusepy, which fsspec.fuse imports; an editable installation must not take it either."""
    assert importlib.util.find_spec(f"tiercache.{folder}") is not None
    found = importlib.util.find_spec(folder)
    assert found is None or "tiercache" not in str(found.origin)
