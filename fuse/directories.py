"""Directory streams: a snapshot for each open directory, in an order that any later snapshot has as well.

The cookie of a line is a digest of its name, and lines are in the order of their cookies. So a reader goes on where it
was in a snapshot that is taken anew, by another engine too: whatever came or went meanwhile, each name that was there
all along is told once.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import xxhash

from tiercache.errors import Absent, InvalidArgument
from tiercache.model import Entry, Key, join, name_of, parent_of

Child = tuple[bytes, Entry]

MAX_UNOPENED = 256
"""Directories whose shared stream is remembered; one that was dropped is read anew, from where its reader is."""


class Line(NamedTuple):
    """One name of a stream and the cookie of the line after it."""

    name: bytes
    entry: Entry
    cookie: int
    changed: bool
    """The entry is older than the last change of this name: look it up again."""


class Stream:
    """One open directory."""

    __slots__ = ("_cookies", "changed_inodes", "changed_names", "children", "inode")

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.children: list[Child] | None = None
        self._cookies: list[int] = []
        self.changed_names: set[bytes] = set()
        self.changed_inodes: set[int] = set()

    def start(self, children: Iterable[Child]) -> None:
        """Take a fresh snapshot: for the first read, for rewinddir, or to go on where an earlier one was read."""
        lines = sorted((cookie_of(child[0]), child) for child in children)
        self._cookies = [cookie for cookie, _ in lines]
        self.children = [child for _, child in lines]
        self.changed_names.clear()
        self.changed_inodes.clear()

    def lines(self, offset: int, limit: int) -> list[Line]:
        """About ``limit`` lines after cookie ``offset``; none at the end. Names that share a cookie come together."""
        if self.children is None:
            raise InvalidArgument("a directory stream has no snapshot yet")
        first = bisect_right(self._cookies, offset)
        end = min(first + limit, len(self._cookies))
        while first < end < len(self._cookies) and self._cookies[end] == self._cookies[end - 1]:
            end += 1
        return [
            Line(name, entry, cookie, name in self.changed_names or entry.inode in self.changed_inodes)
            for cookie, (name, entry) in zip(self._cookies[first:end], self.children[first:end], strict=True)
        ]


def cookie_of(name: bytes) -> int:
    """A positive 63-bit number; the directory itself and the one above come first."""
    if name in (b".", b".."):
        return len(name)
    return max(xxhash.xxh3_64_intdigest(name) >> 1, 3)


class Streams:
    """All open directories of a mount."""

    def __init__(self, key_of: Callable[[int], Key]) -> None:
        self._key_of = key_of
        self._streams: dict[int, Stream] = {}
        # An earlier engine's handles are still with the kernel, and must not be given out twice.
        self._ids = itertools.count(time.time_ns())
        self._unopened: OrderedDict[int, Stream] = OrderedDict()

    def open(self, inode: int) -> int:
        handle = next(self._ids)
        self._streams[handle] = Stream(inode)
        return handle

    def unopened(self, inode: int) -> Stream:
        """The stream that all readers of a directory share on a mount whose kernel asks for no opendir."""
        stream = self._unopened.get(inode)
        if stream is None:
            stream = self._unopened[inode] = Stream(inode)
            if len(self._unopened) > MAX_UNOPENED:
                self._unopened.popitem(last=False)
        self._unopened.move_to_end(inode)
        return stream

    def get(self, handle: int, inode: int = 0) -> Stream:
        """The stream of a handle. With ``inode``, one that an earlier engine gave out is opened again."""
        stream = self._streams.get(handle)
        if stream is None:
            if not inode:
                raise InvalidArgument(f"directory handle {handle} is not open")
            stream = self._streams[handle] = Stream(inode)
        return stream

    def close(self, handle: int) -> None:
        self._streams.pop(handle, None)

    def __bool__(self) -> bool:
        return bool(self._streams or self._unopened)

    def _all(self) -> Iterator[Stream]:
        return itertools.chain(self._streams.values(), self._unopened.values())

    def note_change(self, key: Key, inode: int) -> None:
        """A name or its file changed: streams that show it look it up again before they tell of it."""
        for stream in self._all():
            if inode:
                stream.changed_inodes.add(inode)
            if self._shows(stream, key):
                stream.changed_names.add(name_of(key))

    def note_write(self, inode: int) -> None:
        """A file's size moved."""
        for stream in self._all():
            stream.changed_inodes.add(inode)

    def _shows(self, stream: Stream, key: Key) -> bool:
        try:
            return self._key_of(stream.inode) == parent_of(key)
        except Absent:
            return False

    def key_of_line(self, stream: Stream, name: bytes) -> Key:
        """Where the line's name lies now, wherever its directory was moved."""
        return join(self._key_of(stream.inode), name)
