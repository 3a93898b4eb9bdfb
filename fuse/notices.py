"""What the kernel has to be told of: names that changed behind its back, not by the mount itself."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

from tiercache.engine.namespace import Namespace
from tiercache.fuse.nodes import Nodes
from tiercache.fuse.pages import PageCache
from tiercache.model import Key, Kind, is_below, name_of, parent_of

_acting: ContextVar[Notices | None] = ContextVar("tiercache_mount_acting", default=None)
"""The mount that changes a name itself just now: its kernel side knows of that change and needs no notice."""


class Change(NamedTuple):
    """A name that changed."""

    parent: int
    name: bytes
    node: int
    """0 when the inode is not known."""
    in_use: bool
    """Its file is open or it is a directory: drop its attributes, but leave the name in place."""


class Notices:
    """Turns a namespace's changes into notices for one mount."""

    def __init__(self, namespace: Namespace, nodes: Nodes, pages: PageCache) -> None:
        self._namespace = namespace
        self._nodes = nodes
        self._pages = pages
        self.send: Callable[[Change], None] | None = None
        self.told: list[Callable[[], Awaitable[None]]] = []
        """Each returns when the kernel has taken what it was sent before, of one kind."""

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Changes inside the block are the mount's own."""
        token = _acting.set(self)
        try:
            yield
        finally:
            _acting.reset(token)

    def note_change(self, key: Key, inode: int) -> None:
        """A name changed, by this mount or by anyone else."""
        if _acting.get() is self:
            return
        self._pages.replaced(inode)
        if self.send is not None:
            change = self._change(key, inode)
            if change is not None:
                self.send(change)

    def _change(self, key: Key, inode: int) -> Change | None:
        nodes, entry_of = self._nodes, self._namespace.tree.entry
        directory = entry_of(parent_of(key))
        if key == nodes.root_key or not is_below(key, nodes.root_key) or directory is None:
            return None
        entry = entry_of(key)
        is_directory = entry is not None and entry.kind is Kind.DIRECTORY
        return Change(
            parent=nodes.node(directory.inode),
            name=name_of(key),
            node=nodes.node(inode) if inode else 0,
            in_use=is_directory or self._pages.is_open(inode),
        )
