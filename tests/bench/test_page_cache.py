"""The proof that the page cache is empty must itself be right."""

from __future__ import annotations

import os
from pathlib import Path

from tiercache.bench.pagecache import PageCache, resident_share

PAGES = 64


def test_a_file_just_written_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "written"
    path.write_bytes(b"x" * PAGES * os.sysconf("SC_PAGESIZE"))
    assert resident_share([path]) == 1.0


def test_a_hole_that_nobody_read_is_not_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "hole"
    path.touch()
    os.truncate(path, PAGES * os.sysconf("SC_PAGESIZE"))
    assert resident_share([path]) == 0.0


def test_files_without_pages_and_files_that_are_gone_count_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert resident_share([tmp_path / "empty", tmp_path / "gone"]) == 0.0


def test_dropping_loses_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"x" * 100_000)
    cache = PageCache()
    cache.drop([path, tmp_path / "gone"])
    assert path.read_bytes() == b"x" * 100_000
    assert ("drop_caches" in cache.how) == cache.drops_all
