"""Directory streams: a snapshot for each open directory, with cookies that stay valid while names come and go."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from tiercache.errors import Absent, InvalidArgument
from tiercache.model import Entry, Key, join, name_of, parent_of

Child = tuple[bytes, Entry]


class Line(NamedTuple):
    """One name of a stream and the cookie of the line after it."""

    name: bytes
    entry: Entry
    cookie: int
    changed: bool
    """The entry is older than the last change of this name: look it up again."""


class Stream:
    """One open directory. The cookie of a line is its position in the snapshot, counted from 1."""

    __slots__ = ("changed_inodes", "changed_names", "children", "inode")

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.children: list[Child] | None = None
        self.changed_names: set[bytes] = set()
        self.changed_inodes: set[int] = set()

    def take(self, children: list[Child]) -> None:
        """Start over with a fresh snapshot (the first read, or rewinddir)."""
        self.children = children
        self.changed_names.clear()
        self.changed_inodes.clear()

    def lines(self, offset: int, limit: int) -> list[Line]:
        """At most ``limit`` lines from cookie ``offset`` on; none at the end."""
        if self.children is None:
            raise InvalidArgument("a directory stream is read from its start first")
        page = self.children[offset : offset + limit]
        return [
            Line(name, entry, cookie, name in self.changed_names or entry.inode in self.changed_inodes)
            for cookie, (name, entry) in enumerate(page, start=offset + 1)
        ]


class Streams:
    """All open directories of a mount."""

    def __init__(self, key_of: Callable[[int], Key]) -> None:
        self._key_of = key_of
        self._streams: dict[int, Stream] = {}
        self._ids = itertools.count(1)

    def open(self, inode: int) -> int:
        handle = next(self._ids)
        self._streams[handle] = Stream(inode)
        return handle

    def get(self, handle: int) -> Stream:
        stream = self._streams.get(handle)
        if stream is None:
            raise InvalidArgument(f"directory handle {handle} is not open")
        return stream

    def close(self, handle: int) -> None:
        self._streams.pop(handle, None)

    def __bool__(self) -> bool:
        return bool(self._streams)

    def note_change(self, key: Key, inode: int) -> None:
        """A name or its file changed: streams that show it look it up again before they tell of it."""
        for stream in self._streams.values():
            if inode:
                stream.changed_inodes.add(inode)
            if self._shows(stream, key):
                stream.changed_names.add(name_of(key))

    def note_write(self, inode: int) -> None:
        """A file's size moved."""
        for stream in self._streams.values():
            stream.changed_inodes.add(inode)

    def _shows(self, stream: Stream, key: Key) -> bool:
        try:
            return self._key_of(stream.inode) == parent_of(key)
        except Absent:
            return False

    def key_of_line(self, stream: Stream, name: bytes) -> Key:
        """Where the line's name lies now, wherever its directory was moved."""
        return join(self._key_of(stream.inode), name)
