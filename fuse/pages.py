"""Which bytes the kernel's page cache of an inode holds, so that an open keeps them only while they are right."""

from __future__ import annotations

from typing import NamedTuple

from tiercache.model import Entry


class Content(NamedTuple):
    """Names the bytes of one inode: an etag (unlike a version id it survives a rename), or the newer staged file."""

    etag: str
    staged: int


def content_of(entry: Entry) -> Content:
    """The bytes that an open of this entry reads. While a file is staged, the staged file alone names them."""
    return Content("", entry.staged) if entry.staged else Content(entry.etag, 0)


class PageVerdict(NamedTuple):
    """What an open may do: keep the pages that are there, or go round the page cache."""

    keep_cache: bool
    direct_io: bool


class _Pages:
    """One inode's pages: what they hold and who reads them."""

    __slots__ = ("content", "handles", "stale", "written")

    def __init__(self, content: Content) -> None:
        self.content = content
        self.handles = 0
        self.written = content.staged != 0  # the newest bytes went through these pages, whatever their name is by now
        self.stale = False  # someone else replaced the bytes


class PageCache:
    """Remembers for each inode what the kernel's pages hold, until the kernel forgets the inode.

    Pages belong to the inode, not to the handle. So an open of other bytes drops them; and while an older version
    is still open through the page cache, a new handle goes round it, or the two would mix.
    """

    def __init__(self) -> None:
        self._pages: dict[int, _Pages] = {}

    def opened(self, inode: int, content: Content) -> PageVerdict:
        """Note an open and say how the kernel should treat its pages. One that goes round them is not counted."""
        pages = self._pages.get(inode)
        if pages is None:
            pages = self._pages[inode] = _Pages(content)
            keep = False
        elif pages.stale or not (pages.content == content or pages.written):
            if pages.handles:
                return PageVerdict(keep_cache=False, direct_io=True)
            pages.stale, pages.written, keep = False, content.staged != 0, False
        else:
            # What was written through the pages is in them under any name: staged file, the next one, its upload.
            keep = True
        pages.content = content
        pages.handles += 1
        return PageVerdict(keep_cache=keep, direct_io=False)

    def written(self, inode: int) -> None:
        """Bytes were written through the page cache: they are the newest there are."""
        pages = self._pages.get(inode)
        if pages is not None:
            pages.written = True

    def renamed(self, inode: int, before: Content, after: Content) -> None:
        """The same bytes go by another name: new attributes or a copy inside the store gave them another etag."""
        pages = self._pages.get(inode)
        if pages is not None and pages.content == before:
            pages.content = after

    def replaced(self, inode: int) -> None:
        """Someone else gave the file other bytes."""
        pages = self._pages.get(inode)
        if pages is not None:
            pages.stale = True

    def closed(self, inode: int) -> None:
        """A handle that was counted is gone."""
        pages = self._pages.get(inode)
        if pages is not None:
            pages.handles -= 1

    def is_open(self, inode: int) -> bool:
        """Whether any handle goes through the inode's pages."""
        pages = self._pages.get(inode)
        return pages is not None and pages.handles > 0

    def forgotten(self, inode: int) -> None:
        """The kernel dropped the inode. Too early a call costs one needless drop, so lookups are not counted."""
        pages = self._pages.get(inode)
        if pages is not None and not pages.handles:
            del self._pages[inode]
