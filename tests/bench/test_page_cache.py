"""The proof that the page cache is empty must itself be right."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from tiercache.bench.pagecache import ATTEMPTS, PageCache, resident_share

PAGES = 64

syncs_the_machine = pytest.mark.timeout(600)
"""The whole page cache can be dropped only when everybody's dirty pages are on disk, and that takes what it takes."""


def mapped_page(path: Path) -> mmap.mmap:
    """A page that is in memory and mapped, which the kernel does not drop."""
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert mapping[0] == ord("x")
    return mapping


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


@syncs_the_machine
def test_dropping_loses_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"x" * 100_000)
    cache = PageCache()
    cache.drop([path, tmp_path / "gone"])
    assert path.read_bytes() == b"x" * 100_000
    assert ("drop_caches" in cache.how) == cache.drops_all


def test_dropping_does_not_give_up_a_page_that_somebody_held_for_a_moment(tmp_path: Path) -> None:
    """As the compaction of memory holds pages of any file; with a mapping the moment is ours to choose."""
    path = tmp_path / "held"
    mapping = mapped_page(path)
    PageCache(everything=False, pause=mapping.close).drop([path])
    assert resident_share([path]) == 0.0


def test_a_page_that_stays_mapped_is_told_after_a_bounded_number_of_attempts(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    pauses: list[None] = []
    with mapped_page(path):
        PageCache(everything=False, pause=lambda: pauses.append(None)).drop([path])
        assert resident_share([path]) == 1.0
    assert len(pauses) == ATTEMPTS - 1


@syncs_the_machine
def test_the_whole_page_cache_is_dropped_with_the_dirty_pages_of_others(tmp_path: Path) -> None:
    """A server's files cannot be named, and were written a moment ago."""
    files = [tmp_path / str(number) for number in range(100)]
    for file in files:
        file.write_bytes(b"x")
    cache = PageCache()
    cache.drop([])
    # Unnamed files have one attempt: compaction may hold a few pages.
    assert (resident_share(files) < 0.1) == cache.drops_all
