"""Which pages the kernel may keep at an open: decided from versions and staged files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiercache.fuse.backing import Backings
from tiercache.fuse.pages import Content, Mixed, PageCache, PageVerdict, content_of
from tiercache.model import Entry, Kind, VersionId

INODE = 7
KEEP = PageVerdict(keep_cache=True)
DROP = PageVerdict()
ROUND = PageVerdict(direct_io=True)

V1 = Content("one", 0)
V2 = Content("two", 0)


def staged(number: int) -> Content:
    return Content("", number)


@pytest.fixture
def pages() -> PageCache:
    return PageCache(Backings())


def test_the_first_open_drops_what_may_be_left(pages: PageCache) -> None:
    assert pages.opened(INODE, V1) == DROP


def test_the_same_version_keeps_its_pages(pages: PageCache) -> None:
    pages.opened(INODE, V1)
    pages.closed(INODE, DROP)
    assert pages.opened(INODE, V1) == KEEP


def test_another_version_drops_the_pages(pages: PageCache) -> None:
    pages.opened(INODE, V1)
    pages.closed(INODE, DROP)
    assert pages.opened(INODE, V2) == DROP


def test_another_version_goes_round_pages_that_are_in_use(pages: PageCache) -> None:
    pages.opened(INODE, V1)
    assert pages.opened(INODE, V2) == ROUND
    pages.closed(INODE, DROP)
    assert pages.opened(INODE, V2) == DROP


def test_pages_are_dropped_where_all_who_use_them_read_the_same_bytes(pages: PageCache) -> None:
    pages.opened(INODE, V1)
    assert pages.opened(INODE, V2, others_agree=True) == DROP
    assert pages.opened(INODE, V2) == KEEP


class Numbers:
    """A kernel that takes every file."""

    def lend(self, fd: int) -> int:
        return fd

    def take_back(self, backing_id: int) -> None:
        """Nothing to do."""


def test_a_lent_file_serves_all_opens_of_the_same_bytes(tmp_path: Path) -> None:
    """Written by the kernel, uploaded and evicted: it has another name for its bytes and no copy, and is the same."""
    backings = Backings()
    backings.lender = Numbers()
    pages = PageCache(backings)
    with open(tmp_path / "file", "wb") as file:
        lent = pages.opened(INODE, staged(1), file.fileno())
        assert lent.backing is not None
        assert pages.opened(INODE, V1, others_agree=True) == lent
        with pytest.raises(Mixed):
            pages.opened(INODE, V2)
        with pytest.raises(Mixed):
            pages.opened(INODE, staged(2), others_agree=True)


def test_written_pages_stay_through_staging_and_upload(pages: PageCache) -> None:
    pages.opened(INODE, V1)
    pages.written(INODE)
    assert pages.opened(INODE, staged(1)) == KEEP
    assert pages.opened(INODE, staged(2)) == KEEP
    assert pages.opened(INODE, V2) == KEEP


def test_a_created_file_keeps_its_pages_through_upload(pages: PageCache) -> None:
    pages.opened(INODE, staged(1))
    pages.closed(INODE, DROP)
    assert pages.opened(INODE, V1) == KEEP


def test_what_a_stranger_replaced_is_dropped_even_after_own_writes(pages: PageCache) -> None:
    pages.opened(INODE, staged(1))
    pages.closed(INODE, DROP)
    pages.replaced(INODE)
    assert pages.opened(INODE, V2) == DROP
    pages.closed(INODE, DROP)
    assert pages.opened(INODE, V2) == KEEP


def test_what_a_stranger_replaced_is_not_mixed_with_an_open_file(pages: PageCache) -> None:
    pages.opened(INODE, staged(1))
    pages.replaced(INODE)
    assert pages.opened(INODE, V2) == ROUND


def test_new_attributes_do_not_cost_the_pages(pages: PageCache) -> None:
    pages.opened(INODE, V1)
    pages.renamed(INODE, V1, V2)
    assert pages.opened(INODE, V2) == KEEP


def test_a_forgotten_inode_starts_anew(pages: PageCache) -> None:
    pages.opened(INODE, V1)
    pages.forgotten(INODE)
    assert pages.is_open(INODE), "an open inode is not forgotten"
    pages.closed(INODE, DROP)
    pages.forgotten(INODE)
    assert pages.opened(INODE, V1) == DROP


def test_a_staged_file_names_the_bytes_alone() -> None:
    entry = Entry(Kind.FILE, INODE, version=VersionId(b"v"), etag="one")
    assert content_of(entry) == V1
    assert content_of(entry._replace(staged=3)) == content_of(entry._replace(staged=3, etag="other"))
