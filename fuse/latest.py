"""The name ``latest-complete``: in a directory with checkpoints it leads to the latest one that is complete."""

from __future__ import annotations

from tiercache.engine.checkpoints import LATEST
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent
from tiercache.fuse.attributes import EntryOut
from tiercache.fuse.nodes import Nodes
from tiercache.model import Entry, Key, Kind

__all__ = ["LATEST", "LatestLinks"]


class LatestLinks:
    """Symbolic links that no origin has and no listing shows; a real file of the name goes before them. Each lookup
    asks anew, and the kernel keeps none of them."""

    def __init__(self, namespace: Namespace, nodes: Nodes) -> None:
        self._namespace = namespace
        self._nodes = nodes
        # As many as the kernel knows of.
        self._links: dict[int, Entry] = {}
        self._inodes: dict[Key, int] = {}

    async def look_up(self, directory: Key) -> EntryOut:
        """Absent where there is no complete checkpoint."""
        found = await self._namespace.checkpoints.latest(directory)
        if found is None:
            raise Absent("there is no complete checkpoint")
        inode = self._inodes.get(directory) or self._namespace.tree.catalog.new_inode()
        self._inodes[directory] = inode
        link = self._links[inode] = Entry(
            Kind.SYMLINK,
            inode,
            size_bytes=len(found.name),
            mode=0o777,
            mtime_ns=found.saved_ns,
            ctime_ns=found.saved_ns,
            attributes_known=True,
            link_target=found.name,
        )
        return EntryOut(self._nodes.attr(link)._replace(timeout_s=0.0), 0.0)

    def entry(self, inode: int) -> Entry | None:
        """What the kernel was told last, None for any other inode."""
        return self._links.get(inode)

    def forget(self, inode: int) -> None:
        """The kernel dropped the inode."""
        if self._links.pop(inode, None) is not None:
            self._inodes = {directory: known for directory, known in self._inodes.items() if known != inode}
