"""The inodes that are in use right now: open handles and the staged file, keyed by inode and never by path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from tiercache.model import Entry, Key

if TYPE_CHECKING:
    from tiercache.engine.handle import Handle
    from tiercache.engine.lending import TakenOver
    from tiercache.staging import StagedFile


@dataclass(slots=True, eq=False)
class LiveInode:
    """What the engine holds in memory for one inode. All reading and writing of an open file goes through it."""

    inode: int
    key: Key | None
    """The current name; None once unlinked: then the inode lives only as long as its handles."""

    entry: Entry
    """The last known entry. Its size and mtime are not those of a file being written: see ``staged``."""

    handles: set[Handle] = field(default_factory=set)

    staged: StagedFile | None = None
    """The newest bytes, where the origin lacks them."""

    hold: ExitStack | None = None
    """Keeps the staged file's descriptor open after its name went, for the handles of an inode that was unlinked,
    replaced or renamed over."""

    replaced: bool = False
    """Others put another object under its name: whoever opens it anew must look the name up again."""

    lost: bool = False
    """Neither a name nor bytes are left of it: it is there for its handles, to tell so."""

    mtime_ns: int = 0
    """Time of the last write through a handle, 0 if none since the attributes were last set."""

    taken_over: TakenOver | None = None
    """The last staged file that was the cached copy itself, which the kernel had for reading."""

    seen_mtime_ns: int = 0
    """mtime of the staged file when it was last looked at: the kernel writes lent files without telling us."""

    may_be_mapped: bool = False
    """The kernel had the staged file for writing: after the last close somebody may still have it mapped."""

    users: int = 0
    """Operations without a handle that are under way."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while the staged file is made, replaced or sealed, so that two first writes stage once."""

    @property
    def writers(self) -> int:
        """How many open handles may write."""
        return sum(1 for handle in self.handles if handle.writable)

    @property
    def lent_inode(self) -> int:
        """Inode number of the local file that the kernel reads and writes for some handle; 0 for none."""
        return next((handle.lent_inode for handle in self.handles if handle.lent_inode), 0)

    @property
    def lent_for_writing(self) -> bool:
        """Whether the kernel may write to the staged file at any time."""
        return any(handle.lent_inode and handle.writable for handle in self.handles)

    def note_kernel_writes(self) -> None:
        """A lent file that the kernel wrote to has the time of that write."""
        if self.staged is not None and self.may_be_mapped:
            mtime_ns = self.staged.mtime_ns
            if mtime_ns != self.seen_mtime_ns:
                self.seen_mtime_ns = self.mtime_ns = mtime_ns


class LiveTable:
    """All live inodes of one origin. An inode that nobody uses and that has no staged bytes is dropped."""

    def __init__(self) -> None:
        self._by_inode: dict[int, LiveInode] = {}

    def get(self, inode: int) -> LiveInode | None:
        return self._by_inode.get(inode)

    def obtain(self, inode: int, key: Key, entry: Entry) -> LiveInode:
        """The live inode, made if it is not there; its entry is brought up to date."""
        live = self._by_inode.get(inode)
        if live is None:
            live = self._by_inode[inode] = LiveInode(inode, key, entry)
        elif live.key is not None and (live.staged is None or entry.staged):
            live.entry = entry
        return live

    @contextmanager
    def using(self, inode: int, key: Key, entry: Entry) -> Iterator[LiveInode]:
        """The live inode, which stays in the table until the block ends, whatever arrives at the origin meanwhile."""
        live = self.obtain(inode, key, entry)
        live.users += 1
        try:
            yield live
        finally:
            live.users -= 1
            self.release(live)

    def add_nameless(self, inode: int, entry: Entry) -> LiveInode:
        """The live inode of a file that has no name, but is open; made if it is not there."""
        return self._by_inode.setdefault(inode, LiveInode(inode, None, entry._replace(link_count=0)))

    def release(self, live: LiveInode) -> None:
        """Drop the inode if nothing uses it any more."""
        if live.hold is not None and not live.handles:
            live.hold.close()
            live.hold = None
        if not live.handles and not live.users and live.staged is None:
            self._by_inode.pop(live.inode, None)

    def __iter__(self) -> Iterator[LiveInode]:
        return iter(list(self._by_inode.values()))


def live_entry(live: LiveInode) -> Entry:
    """The entry with the size and times of the bytes being written."""
    entry = live.entry
    if live.staged is not None:
        live.note_kernel_writes()
        entry = entry._replace(size_bytes=live.staged.size_bytes, staged=live.staged.id)
    if live.mtime_ns:
        entry = entry._replace(mtime_ns=live.mtime_ns, ctime_ns=max(live.mtime_ns, entry.ctime_ns))
    return entry
