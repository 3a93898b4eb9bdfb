"""What can be answered at once, from the catalog and from open files: no thread, no origin, no yielding.

Every method returns None where somebody has to wait; the caller then asks ``Vfs``, which does the same with patience.
"""

from __future__ import annotations

import os

from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Changed, NoAttribute
from tiercache.fuse.attributes import Attr, DirEntry, EntryOut
from tiercache.fuse.directories import Child, Stream, Streams
from tiercache.fuse.handles import HandleTable
from tiercache.fuse.latest import LATEST
from tiercache.fuse.nodes import ROOT_NODE, Nodes
from tiercache.fuse.openless import Openless
from tiercache.fuse.pages import PageCache
from tiercache.model import Key, Kind, parent_of


class Hits:
    """The impatient half of a mount. It shares the state of its ``Vfs``."""

    def __init__(
        self,
        namespace: Namespace,
        nodes: Nodes,
        handles: HandleTable,
        streams: Streams,
        pages: PageCache,
        openless: Openless,
    ) -> None:
        self._namespace = namespace
        self._nodes = nodes
        self._handles = handles
        self._streams = streams
        self._pages = pages
        self._openless = openless

    # -- names and attributes -----------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> EntryOut | None:
        """Absent for a name that is known not to be there."""
        key = self.key_of_name(parent, name)
        entry = self._namespace.known(key)
        if entry is None:
            return None
        if entry.kind is Kind.ABSENT:
            if name == LATEST:
                return None
            raise Absent(f"{name!r}: no such file or directory")
        if self._nodes.options.no_open:
            self._openless.looked_up(key, entry)
        return self._nodes.entry_out(entry)

    def key_of_name(self, parent: int, name: bytes) -> Key:
        """The key that a name stands for; Absent when no mount can show it."""
        nodes = self._nodes
        if name == b".":
            return nodes.key(parent)
        if name == b"..":
            return nodes.root_key if parent == ROOT_NODE else parent_of(nodes.key(parent))
        return nodes.known_child(parent, name)

    def getattr(self, node: int) -> Attr | None:
        try:
            entry = self._namespace.known_inode(self._nodes.inode(node))
        except Changed:
            return None  # it may be remembered as a removed one
        return None if entry is None else self._nodes.attr(entry)

    def getxattr(self, node: int, name: bytes) -> bytes | None:
        """NoAttribute for what is not set. The kernel and many tools ask for what only local disks have."""
        if not name.startswith(b"user."):
            raise NoAttribute(f"no attributes outside user.: {name!r}")
        entry = self._namespace.known_inode(self._nodes.inode(node))
        return None if entry is None else self._namespace.xattrs.of(entry, name)

    # -- files --------------------------------------------------------------------------------------

    def read(self, handle: int, offset: int, size_bytes: int) -> bytes | None:
        """Bytes of a local file; short only at the end."""
        return self._handles.get(handle).file.read_now(offset, size_bytes)

    def read_unopened(self, node: int, offset: int, size_bytes: int) -> bytes | memoryview | None:
        """The same on a mount whose kernel asks for no open; good until the next call."""
        return self._openless.read_now(self._nodes.inode(node), offset, size_bytes)

    def begin_expected(self) -> None:
        """Called while the next request is waited for: begin with a read that is likely to come."""
        self._openless.begin_expected()

    def write(
        self, handle: int, offset: int, data: bytes | memoryview, *, kill_privileges: bool, from_pages: bool = False
    ) -> int | None:
        """Write all of ``data`` into a staged file that has room."""
        opened = self._handles.get(handle)
        inode = opened.file.inode
        if kill_privileges and inode in self._nodes.privileged:
            return None
        written = opened.file.write_now(offset, data, placed=from_pages)
        if written is not None:
            self._pages.written(inode)
            if self._streams:
                self._streams.note_write(inode)
        return written

    def flush(self, handle: int) -> bool:
        """Whether closing a descriptor of this open has nothing to wait for."""
        return self._handles.get(handle).file.flush_now()

    # -- directories --------------------------------------------------------------------------------

    def readdirplus(self, stream: Stream, offset: int, limit: int) -> list[DirEntry] | None:
        """The next lines of a stream none of whose names changed since it was read."""
        if offset == 0 or stream.children is None:
            children = self.children(stream)
            if children is None:
                return None
            stream.start(children)
        lines = stream.lines(offset, limit)
        if any(line.changed for line in lines):
            return None
        listed = self._nodes.listed
        return [DirEntry(line.name, listed(line.entry), line.cookie) for line in lines]

    def stream(self, node: int, handle: int) -> Stream:
        """The stream of an open directory; ``handle`` is 0 on a mount whose kernel asks for no opendir."""
        inode = self._nodes.inode(node) if node else 0
        return self._streams.get(handle, inode) if handle else self._streams.unopened(inode)

    def children(self, stream: Stream) -> list[Child] | None:
        """What a fresh listing of the stream's directory holds, with the entries for itself and the one above."""
        namespace = self._namespace
        key = namespace.key_of(stream.inode)
        children = namespace.known_children(key)
        own = namespace.known_inode(stream.inode)
        above = own if stream.inode == self._nodes.root_inode else namespace.known(parent_of(key))
        if children is None or own is None or above is None or above.kind is Kind.ABSENT:
            return None
        return [(b".", own), (b"..", above), *children]


def reads_only(flags: int) -> bool:
    """Whether an open with these flags changes nothing."""
    return flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_TRUNC
