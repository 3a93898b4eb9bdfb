"""Local files that a mount lends to the kernel: which ones may be, and how later writes come to land in the same file.

The kernel takes one file for an inode as long as anybody has it open. So a clean file that is lent for reading and then
written is not copied into staging: the cached copy itself becomes the staged file, and all who have it open see the
write, as on a local disk. If nobody writes after all, it goes back into the cache.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import trio

from tiercache.cache import Cache, VersionRef
from tiercache.config import Profile
from tiercache.engine.live import LiveInode
from tiercache.engine.names import show
from tiercache.engine.promises import Promises, Xattrs
from tiercache.engine.tree import Tree
from tiercache.errors import Changed
from tiercache.journal import Journal
from tiercache.model import Durability, Entry, Key, StagedState
from tiercache.staging import StagedFile, Staging

HEADROOM_SHARE = 0.25
"""Share of the staging budget that must be free, in the budget and on the disk, before a file is lent for writing: the
kernel asks nobody for room, so near the limit writes go through the engine, where they wait."""


class TakenOver(NamedTuple):
    """A cached copy that became a staged file when it was opened for writing, and how it was then."""

    staged_id: int
    entry: Entry
    version: VersionRef
    checksums: bytes
    mtime_ns: int
    size_bytes: int


class Lending:
    """What ``Writes`` needs for lent files, under one profile."""

    def __init__(
        self, tree: Tree, profile: Profile, promises: Promises, cache: Cache, staging: Staging, journal: Journal
    ) -> None:
        self._tree = tree
        self._cache = cache
        self._staging = staging
        self._journal = journal
        self._read_only = profile.read_only
        self._promises = promises

    def _lends(self, key: Key | None, xattrs: Xattrs) -> bool:
        """With ``ack = origin`` fsync and close seal, and what is sealed goes up while programs may still write to it.
        So nothing is lent there that may be written, and nothing for reading that a writer would have to share."""
        return self._read_only or self._promises.of(key, xattrs).fsync is not Durability.ORIGIN

    def readable(self, version: VersionRef, xattrs: Xattrs) -> int | None:
        """A descriptor of the complete, checked copy on the NVMe tier; good until the next call of the cache."""
        if not self._lends(version.key, xattrs):
            return None
        return self._cache.open_local(version, on_nvme=True)

    def writable(self, staged: StagedFile, key: Key | None, xattrs: Xattrs, *, lent: bool) -> int | None:
        """A descriptor of a staged file that programs may write without asking for room. One that is ``lent`` already
        has to be shared, however little room there is."""
        record = self._journal.get(staged.id)
        open_for_writing = record is None or record.state is StagedState.STAGED
        lends = self._lends(key, xattrs)
        if not (lends and open_for_writing and (lent or self._is_lent_to_the_first())):
            return None
        return staged.fd

    def _is_lent_to_the_first(self) -> bool:
        """A mapping can outlive all descriptors: where nobody tells of it, nothing would tell when to send the file."""
        return self._staging.tells_of_mappings and self._has_headroom()

    def _has_headroom(self) -> bool:
        wanted_bytes = self._staging.capacity_bytes * HEADROOM_SHARE
        disk = os.statvfs(self._staging.directory)
        free_bytes = self._staging.capacity_bytes - self._staging.used_bytes
        return min(free_bytes, disk.f_bavail * disk.f_frsize) >= wanted_bytes

    async def take_over(self, live: LiveInode, entry: Entry, version: VersionRef) -> StagedFile:
        """Make the lent copy of a clean version the staged file; the caller writes its record. Changed when that file
        is not in the cache any more."""
        staged_id = self._staging.new_id()
        await self._staging.reserve(staged_id, version.size_bytes)
        try:
            taken = self._cache.take_out(version, self._staging.path(staged_id), file_inode=live.lent_inode)
            if taken is None:
                raise Changed(f"{show(version.key)}: the copy that is open for reading left the cache")
        except BaseException:
            self._staging.closed(staged_id)
            raise
        staged = self._staging.take_in(staged_id)
        live.taken_over = TakenOver(staged_id, entry, version, taken, staged.mtime_ns, staged.size_bytes)
        return staged

    def unwritten(self, live: LiveInode, staged: StagedFile) -> Entry | None:
        """The entry of the clean version that a file was taken over from, if nobody has written it since, or can."""
        taken = live.taken_over
        if taken is None or taken.staged_id != staged.id:
            return None
        if (staged.mtime_ns, staged.size_bytes) != (taken.mtime_ns, taken.size_bytes) or staged.is_written_elsewhere():
            return None
        return taken.entry

    async def give_back(self, live: LiveInode, staged: StagedFile) -> None:
        """An ``unwritten`` file is the clean version again, in the cache if that has a place for it. The catalog
        counts it as clean already: a name that counts as staged without a record would be looked up anew, as
        another file."""
        taken = live.taken_over
        assert taken is not None
        with trio.CancelScope(shield=True):
            # The record first: with the file renamed and the record left, recovery would count it as lost.
            await self._journal.drop(staged.id)
            if self._cache.adopt(taken.version, staged.path, taken.checksums):
                self._staging.closed(staged.id)
            else:
                self._staging.delete(staged.id)
