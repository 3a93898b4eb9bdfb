"""Files of mounts that go to the origin while they are written, because they do not fit in staging.

A barrier is the end of such a file: the last writer's close, or an fsync, brings the rest to the origin and completes
it there, and then it is a clean file of which nothing is here. When that fails the name is what the origin has, and who
has the file open gets ESTALE.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from tiercache.config import Profile
from tiercache.engine.commits import withdraw
from tiercache.engine.entries import attributes_of
from tiercache.engine.live import LiveInode, live_entry
from tiercache.engine.names import show
from tiercache.engine.parts import Parts
from tiercache.engine.tree import Tree
from tiercache.errors import NoSpace, TierCacheError, Unsupported
from tiercache.journal import StagedRecord
from tiercache.model import Attributes, Capability, Key, ObjectStat, StagedState
from tiercache.staging import StagedFile
from tiercache.writeback import wanted_condition


class SpilledFiles:
    """Of one tree under one profile. What changes one holds the inode's lock."""

    def __init__(self, tree: Tree, profile: Profile, parts: Parts) -> None:
        self._tree = tree
        self._uploads = profile.upload
        self._staging = parts.staging
        self._journal = parts.journal
        self._writeback = parts.writeback
        self._spills = parts.writeback.spills

    def may_begin(self, live: LiveInode, staged: StagedFile) -> bool:
        """Whether the bytes of this file may go up now: it has one name and nothing else is on its way there, and the
        kernel, which writes without asking, has it not."""
        record = self._journal.get(staged.id)
        if not self._uploads or live.key is None or record is None:
            return False
        if live.lent_inode or live.may_be_mapped or live.taken_over is not None:
            return False
        if live.entry.link_count > 1 or len(self._tree.names_of(live.inode)) > 1:
            return False
        if record.state is not StagedState.STAGED or not record.published or record.suspect or record.link_target:
            return False
        return all(other.id == record.id or not other.published for other in self._journal.at(*record.lane))

    def has_room(self, staged: StagedFile, growth_bytes: int) -> bool:
        """Whether a file that was spilled may grow by so much at once."""
        return self._spills.has_room(staged.id, growth_bytes)

    async def make_room(self, live: LiveInode, staged: StagedFile, growth_bytes: int, written_bytes: int) -> bool:
        """Let a file grow, of which the last ``written_bytes`` are about to be written: what is before them goes to the
        origin. False where that cannot be, and nothing has changed. NoSpace where it is in vain, since the file was not
        written in order or has no name any more."""
        async with live.lock:
            if live.staged is not staged or staged.ended:
                return True  # the caller looks again
            if staged.spilled and self._spills.has_room(staged.id, growth_bytes):
                return True
            if not staged.spilled and not self.may_begin(live, staged):
                return False
            self._require_name(live)
            position = min(staged.size_bytes, staged.size_bytes + growth_bytes - written_bytes)
            try:
                await self._spills.make_room(self._tree.origin, staged.id, position, growth_bytes)
            except Unsupported:
                if staged.spilled:
                    raise
                return False
            except TierCacheError:
                self._require_name(live)
                raise
            if not self._spills.has_room(staged.id, growth_bytes):
                raise NoSpace(f"{self._name(live)}: does not fit in staging, and was not written from its beginning on")
            return True

    async def is_spilled(self, live: LiveInode) -> bool:
        """Whether bytes of the file went to the origin. One for which that was begun, and of which nothing was sent, is
        like any other again."""
        if live.staged is None or not live.staged.spilled:
            return False
        async with live.lock:
            if live.staged is not None and live.staged.spilled and not live.staged.gone_bytes:
                await self._spills.take_back(live.staged.id)
            return live.staged is not None and live.staged.spilled

    def _require_name(self, live: LiveInode) -> None:
        if live.key is None:
            raise NoSpace("a file that does not fit in staging was removed while it was written: it cannot grow")

    def _name(self, live: LiveInode) -> str:
        return show(live.key) if live.key is not None else f"inode {live.inode}"

    async def complete(self, live: LiveInode, key: Key, record: StagedRecord) -> bool:
        """The file is written: it is at the origin on return, and clean. False if all of it is here after all. What the
        origin raises; then the file is given up. The caller holds the name too."""
        staged = self._staging.open(record.id)
        if not staged.gone_bytes:
            await self._spills.take_back(record.id)
            return False
        staged.ended = True
        try:
            await self._spills.send_all(record.id)
            await self._writeback.settle(self._tree.origin_id, key)
            record = self._journal.get(record.id) or record
            stat = await self._spills.complete(record.id, wanted_condition(record))
            self._writeback.taken(self._tree.origin_id, key)
            stat = await self._with_attributes(live, key, stat)
        except Exception:
            with trio.CancelScope(shield=True):
                await self._give_up(live, record)
            raise
        await self._spills.commit(record.id, stat)
        self._tree.changed(key, live.inode)
        return True

    async def _with_attributes(self, live: LiveInode, key: Key, stat: ObjectStat) -> ObjectStat:
        """The object was begun with the attributes of then. Where new ones cost a copy of it, those that a program set
        are worth that, and the time of the last write is not."""
        wanted, origin = attributes_of(live_entry(live)), self._tree.origin
        found = stat.attributes
        if found is None or _same(found, wanted):
            return stat
        if live.mtime_ns and not self._tree.can(Capability.SET_ATTRIBUTES) and _same(found, wanted, times=False):
            return stat
        return await self._tree.call(origin.set_attributes, key, wanted, stat.etag)

    async def _give_up(self, live: LiveInode, record: StagedRecord) -> None:
        live.lost = True
        withdraw(self._tree, record)
        with suppress(TierCacheError):  # the failure that led here is told; the next start knows what to abort
            await self._spills.end(record.id, completed=False)


def _same(found: Attributes, wanted: Attributes, *, times: bool = True) -> bool:
    """Whether they tell the same, as far as a program can set it."""
    same = (found.mode & 0o7777, found.uid, found.gid, found.xattrs) == (
        wanted.mode & 0o7777,
        wanted.uid,
        wanted.gid,
        wanted.xattrs,
    )
    return same and (not times or found.mtime_ns == wanted.mtime_ns)
