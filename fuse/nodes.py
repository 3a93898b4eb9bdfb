"""How the kernel names things: node ids, the keys behind them, and entries as it wants them told."""

from __future__ import annotations

import stat

from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, InvalidName, NameTooLong, ReadOnly
from tiercache.fuse.attributes import MAX_NAME_BYTES, Attr, Caller, EntryOut, attr_of
from tiercache.fuse.options import MountOptions
from tiercache.model import Entry, Key, Kind, has_posix_spelling, join

ROOT_NODE = 1
"""The kernel's name for the root of a mount."""

MAX_DIRECTORIES = 4096
"""Keys of directories that are remembered at a time."""

PRIVILEGE_BITS = stat.S_ISUID | stat.S_ISGID


class Nodes:
    """Node ids are the catalog's inode ids, which are persisted and never reused, except that the kernel calls the
    root 1: the two ids swap places."""

    def __init__(self, namespace: Namespace, root_key: Key, *, root_inode: int, options: MountOptions) -> None:
        self._namespace = namespace
        self.root_key = root_key
        self.root_inode = root_inode
        self.options = options
        self.privileged: set[int] = set()
        """Inodes with set-user-id or set-group-id bits, as far as the kernel was told: a write must clear them."""
        self._directory_keys: dict[int, Key] = {}
        self._directories_as_of = 0
        self._removed: dict[int, Entry] = {}
        """Directories that this mount removed and the kernel has not forgotten: somebody may stand in one."""

    def inode(self, node: int) -> int:
        if node == ROOT_NODE:
            return self.root_inode
        return ROOT_NODE if node == self.root_inode else node

    node = inode  # swapping two ids is its own inverse

    def key(self, node: int) -> Key:
        """The present key of a node; Absent when it has none."""
        return self.root_key if node == ROOT_NODE else self._namespace.key_of(self.inode(node))

    def directory_key(self, node: int) -> Key:
        """The same of a directory, remembered until a directory is moved or removed: most requests name one."""
        if self._directories_as_of != self._namespace.tree.trees_changed or len(self._directory_keys) > MAX_DIRECTORIES:
            self._directory_keys.clear()
            self._directories_as_of = self._namespace.tree.trees_changed
        key = self._directory_keys.get(node)
        if key is None:
            key = self._directory_keys[node] = self.key(node)
        return key

    def changed(self, inode: int) -> None:
        """The inode lost its name, or has another one."""
        self._directory_keys.pop(self.node(inode), None)

    def child(self, parent: int, name: bytes) -> Key:
        """The key of a name that is to be made or removed."""
        key = self.directory_key(parent)
        if len(name) > MAX_NAME_BYTES:
            raise NameTooLong(f"a name has at most {MAX_NAME_BYTES} bytes")
        if not has_posix_spelling(name):
            raise InvalidName(f"an origin cannot hold the name {name!r}")
        return join(key, name)

    def known_child(self, parent: int, name: bytes) -> Key:
        """The key of a name that is looked for: what no mount can show is absent."""
        try:
            return self.child(parent, name)
        except InvalidName:
            raise Absent(f"{name!r}: no such file or directory") from None

    def require_writable(self) -> None:
        """ReadOnly on a mount that is."""
        if self.options.read_only:
            raise ReadOnly("the mount is read-only")

    def attr(self, entry: Entry) -> Attr:
        if entry.mode & PRIVILEGE_BITS and entry.kind is Kind.FILE:
            self.privileged.add(entry.inode)
        return attr_of(entry, self.node(entry.inode), self.options.attributes_timeout_s)

    def removed(self, entry: Entry) -> None:
        """A directory lost its name; its attributes are still asked for by who has it open."""
        self._removed[entry.inode] = entry._replace(link_count=0)

    def removed_entry(self, inode: int) -> Entry | None:
        """The last entry of a removed directory, None for any other inode."""
        return self._removed.get(inode)

    def forgotten(self, inode: int) -> None:
        """The kernel dropped the inode."""
        self.privileged.discard(inode)
        self._removed.pop(inode, None)

    def entry_out(self, entry: Entry) -> EntryOut:
        return EntryOut(self.attr(entry), self.options.timeout_s)

    def listed(self, entry: Entry) -> EntryOut:
        """A directory line. Where a listing did not tell mode and owner, the kernel must ask before it uses them."""
        answer = self.entry_out(entry)
        if entry.attributes_known or not self.options.posix_metadata or entry.kind is Kind.DIRECTORY:
            return answer
        return EntryOut(answer.attr._replace(timeout_s=0.0), 0.0)


def without_privileges(entry: Entry) -> int | None:
    """The mode that is left when a file changes hands or is written; None when nothing has to change."""
    if entry.kind is Kind.DIRECTORY or not entry.mode & PRIVILEGE_BITS:
        return None
    dropped = stat.S_ISUID
    if entry.mode & stat.S_IXGRP:  # without group execution the bit has another meaning (mandatory locking)
        dropped |= stat.S_ISGID
    return entry.mode & ~dropped


def handed_down(directory: Entry, caller: Caller) -> tuple[int, int]:
    """Group of a new name, and the mode bit that a directory inherits: a set-group-id directory hands both down."""
    if directory.mode & stat.S_ISGID:
        return directory.gid, stat.S_ISGID
    return caller.gid, 0
