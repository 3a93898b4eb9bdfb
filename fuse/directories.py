"""Directory streams: a snapshot for each open directory, with cookies that stay valid while names come and go."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
    """One open directory. The cookie of a line is its position in the snapshot, counted from 1."""

    __slots__ = ("changed_inodes", "changed_names", "children", "inode", "shared")

    def __init__(self, inode: int, *, shared: bool = False) -> None:
        self.inode = inode
        self.shared = shared
        self.children: list[Child | None] | None = None
        self.changed_names: set[bytes] = set()
        self.changed_inodes: set[int] = set()

    def start(self, children: list[Child]) -> None:
        """Start over with a fresh snapshot (the first read, or rewinddir)."""
        if self.shared:
            self._renew(children)
        else:
            self._take(children)

    def _take(self, children: list[Child]) -> None:
        self.children = list(children)
        self.changed_names.clear()
        self.changed_inodes.clear()

    def _renew(self, children: list[Child]) -> None:
        """Several readers share the stream: every name keeps its place, so that the cookies of those who are in the
        middle stay valid. A name that is gone leaves a gap, until gaps are more than names."""
        now = dict(children)
        kept = [
            None if line is None or line[0] not in now else (line[0], now.pop(line[0])) for line in self.children or []
        ]
        gaps = sum(line is None for line in kept)
        self._take(children)
        if gaps <= len(children):
            self.children = [*kept, *now.items()]

    def lines(self, offset: int, limit: int) -> list[Line]:
        """At most ``limit`` lines from cookie ``offset`` on; none at the end."""
        if self.children is None:
            raise InvalidArgument("a directory stream is read from its start first")
        page = itertools.islice(enumerate(self.children, start=1), offset, None)
        present = ((cookie, line[0], line[1]) for cookie, line in page if line is not None)
        return [
            Line(name, entry, cookie, name in self.changed_names or entry.inode in self.changed_inodes)
            for cookie, name, entry in itertools.islice(present, limit)
        ]


class Streams:
    """All open directories of a mount."""

    def __init__(self, key_of: Callable[[int], Key]) -> None:
        self._key_of = key_of
        self._streams: dict[int, Stream] = {}
        self._ids = itertools.count(1)
        self._unopened: OrderedDict[int, Stream] = OrderedDict()

    def open(self, inode: int) -> int:
        handle = next(self._ids)
        self._streams[handle] = Stream(inode)
        return handle

    def unopened(self, inode: int) -> Stream:
        """The stream that all readers of a directory share on a mount whose kernel asks for no opendir."""
        stream = self._unopened.get(inode)
        if stream is None:
            stream = self._unopened[inode] = Stream(inode, shared=True)
            if len(self._unopened) > MAX_UNOPENED:
                self._unopened.popitem(last=False)
        self._unopened.move_to_end(inode)
        return stream

    def get(self, handle: int) -> Stream:
        stream = self._streams.get(handle)
        if stream is None:
            raise InvalidArgument(f"directory handle {handle} is not open")
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
