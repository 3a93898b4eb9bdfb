"""Which bytes the kernel's page cache of an inode holds, so that an open keeps them only while they are right."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from tiercache.fuse.backing import Backing, Backings, FileId, file_id
from tiercache.fuse.estate import OpenFlag, OpenSlot
from tiercache.model import Entry

STAGED_FINGERPRINT = 1


class Content(NamedTuple):
    """Names the bytes of one inode: an etag (unlike a version id it survives a rename), or the newer staged file."""

    etag: str
    staged: int

    @property
    def fingerprint(self) -> int:
        """A number that tells other bytes from these, for the next engine; STAGED_FINGERPRINT for all staged ones."""
        return (
            STAGED_FINGERPRINT if self.staged else xxhash.xxh3_64_intdigest(self.etag.encode(errors="surrogateescape"))
        )


def content_of(entry: Entry) -> Content:
    """The bytes that an open of this entry reads. While a file is staged, the staged file alone names them."""
    return Content("", entry.staged) if entry.staged else Content(entry.etag, 0)


class PageVerdict(NamedTuple):
    """How the kernel is to read an open file: through its pages (keeping those that are there or not), round them, or
    from a local file that is lent to it."""

    keep_cache: bool = False
    direct_io: bool = False
    backing: Backing | None = None


class Mixed(Exception):
    """The kernel has another file for the inode, and one inode cannot have two."""


class _Pages:
    """One inode's pages: what they hold and who reads them."""

    __slots__ = ("backing", "content", "handles", "stale", "written")

    def __init__(self, content: Content) -> None:
        self.content = content
        self.handles = 0
        self.written = content.staged != 0  # the newest bytes went through these pages, whatever their name is by now
        self.stale = False  # someone else replaced the bytes
        self.backing: Backing | None = None  # while it is lent, no handle goes through the pages


class PageCache:
    """Remembers for each inode what the kernel's pages hold, until the kernel forgets the inode.

    Pages belong to the inode, not to the handle. So an open of other bytes drops them; and while an older version
    is still open through the page cache, a new handle goes round it, or the two would mix. For the same reason the
    kernel takes a lent file for an inode only while nobody has it open through its pages, and then wants the same
    file for every open: anything else is EIO to the program.
    """

    def __init__(self, backings: Backings) -> None:
        self._pages: dict[int, _Pages] = {}
        self._backings = backings

    def opened(self, inode: int, content: Content, fd: int | None = None, *, others_agree: bool = False) -> PageVerdict:
        """Note an open and say how the kernel should treat it. ``fd``: a local file with all its bytes, to be lent
        where that is possible. ``others_agree``: who has the inode open reads the same bytes, so that its pages need
        only be dropped, whatever is in them. Mixed when other bytes are lent for the inode already."""
        pages = self._pages.get(inode)
        if pages is not None and pages.backing is not None:
            same_bytes = others_agree and not content.staged
            return self._lent_again(pages, pages.backing, content, fd, same_bytes=same_bytes)
        if fd is not None and (pages is None or not pages.handles):
            backing = self._backings.lend(fd)
            if backing is not None:
                return self._lent(inode, content, backing)
        if pages is None:
            pages = self._pages[inode] = _Pages(content)
            keep = False
        elif pages.stale or not (pages.content == content or pages.written):
            if pages.handles and not others_agree:
                return PageVerdict(direct_io=True)
            pages.stale, pages.written, keep = False, content.staged != 0, False
        else:
            # What was written through the pages is in them under any name: staged file, the next one, its upload.
            keep = True
        pages.content = content
        pages.handles += 1
        return PageVerdict(keep_cache=keep)

    def _lent(self, inode: int, content: Content, backing: Backing) -> PageVerdict:
        pages = self._pages.setdefault(inode, _Pages(content))
        pages.content = content
        pages.backing = backing
        pages.stale = True  # what is written to the file goes round the pages
        backing.users = 1
        return PageVerdict(backing=backing)

    def _lent_again(
        self, pages: _Pages, backing: Backing, content: Content, fd: int | None, *, same_bytes: bool
    ) -> PageVerdict:
        # Of one version all copies are the same, also when the one that was lent has left the cache.
        if pages.content != content and not same_bytes and (fd is None or file_id(fd) != backing.file):
            raise Mixed
        pages.content = content
        backing.users += 1
        return PageVerdict(backing=backing)

    def reopened(self, inode: int, content: Content, slot: OpenSlot) -> PageVerdict:
        """Note what an earlier engine had open."""
        if slot.flags & OpenFlag.DIRECT_IO:
            return PageVerdict(direct_io=True)
        pages = self._pages.get(inode)
        if pages is None:
            pages = self._pages[inode] = _Pages(content)
        if slot.backing_id:
            if pages.backing is None:
                pages.backing = Backing(slot.backing_id, FileId(slot.lent_device, slot.lent_inode))
            pages.backing.users += 1
            pages.stale = True
            return PageVerdict(backing=pages.backing)
        pages.handles += 1
        was_staged = slot.content == STAGED_FINGERPRINT
        pages.written |= was_staged
        # Others may have replaced the bytes; or it was written and uploaded, and goes round its pages for no reason.
        pages.stale |= not (was_staged or content.staged or slot.content == content.fingerprint)
        return PageVerdict(keep_cache=bool(slot.flags & OpenFlag.KEEP_CACHE))

    def lent(self, inode: int) -> Backing | None:
        """The file that the kernel has for an inode now."""
        pages = self._pages.get(inode)
        return None if pages is None else pages.backing

    def written(self, inode: int) -> None:
        """Bytes were written through the page cache: they are the newest there are."""
        pages = self._pages.get(inode)
        if pages is not None and pages.backing is None:
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

    def closed(self, inode: int, verdict: PageVerdict) -> None:
        """A handle that was opened with ``verdict`` is gone."""
        pages = self._pages.get(inode)
        if pages is None or verdict.direct_io:
            return
        if verdict.backing is None:
            pages.handles -= 1
            return
        verdict.backing.users -= 1
        if not verdict.backing.users:
            self._backings.take_back(verdict.backing)
            pages.backing = None

    def is_open(self, inode: int) -> bool:
        """Whether any handle goes through the inode's pages, or reads a file that is lent for it."""
        pages = self._pages.get(inode)
        return pages is not None and (pages.handles > 0 or pages.backing is not None)

    def mode(self, inode: int) -> str:
        """How the kernel reads the inode now: ``passthrough``, ``cached`` or, when nobody has it open, ``closed``."""
        pages = self._pages.get(inode)
        if pages is None or not (pages.handles or pages.backing):
            return "closed"
        return "passthrough" if pages.backing is not None else "cached"

    def forgotten(self, inode: int) -> None:
        """The kernel dropped the inode. Too early a call costs one needless drop, so lookups are not counted."""
        pages = self._pages.get(inode)
        if pages is not None and not pages.handles and pages.backing is None:
            del self._pages[inode]
