"""What close and fsync promise, and when a staged file is sealed: by its last writer, or where a promise needs it."""

from __future__ import annotations

import trio

from tiercache.config import Profile
from tiercache.engine.entries import attributes_of
from tiercache.engine.lending import Lending
from tiercache.engine.live import LiveInode, live_entry
from tiercache.engine.names import Names, show
from tiercache.engine.parts import Parts
from tiercache.engine.promises import Promise, Promises
from tiercache.engine.spilled_files import SpilledFiles
from tiercache.engine.tree import Tree
from tiercache.errors import InUse
from tiercache.journal import StagedRecord
from tiercache.model import Durability, Entry, Key, StagedState, is_below
from tiercache.staging import StagedFile

LET_GO_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
"""When to look again whether a file that was just closed is mapped: the kernel tells us of the close a moment before it
lets go of the file itself."""


class Closes:
    """Sealing and waiting, for inodes of one tree under one namespace's promises."""

    def __init__(
        self,
        tree: Tree,
        names: Names,
        profile: Profile,
        promises: Promises,
        parts: Parts,
        lending: Lending,
        spilled: SpilledFiles,
    ) -> None:
        self._tree = tree
        self._names = names
        self._profile = profile
        self._promises = promises
        self._staging = parts.staging
        self._journal = parts.journal
        self._writeback = parts.writeback
        self._lending = lending
        self._spilled = spilled

    def promise(self, live: LiveInode) -> Promise:
        """What is promised of this file now."""
        return self._promises.of(live.key, live.entry.xattrs)

    def flushed(self, live: LiveInode) -> bool:
        """Whether there is nothing to do, nor to tell, when a descriptor that may write is closed."""
        if live.staged is None:
            return True
        if live.staged.spilled:
            return False
        return self.promise(live).close is Durability.MEMORY and self._writeback.error_of(live.staged.id) is None

    async def flush(self, live: LiveInode) -> None:
        """A descriptor was closed: what close promises of the bytes that are there now. Their way to the origin begins
        when the last descriptor of the last handle is gone, since copies of this one may still write, in other
        processes too; unless the promise is that the origin has them when close returns, or there was no room here for
        all of them: the last writer's close brings them there and tells what becomes of that."""
        if await self._spilled.is_spilled(live):
            if live.writers <= 1:
                await self.seal(live)
            return
        await self._bring(live, self.promise(live).close)

    async def fsync(self, live: LiveInode) -> None:
        """What fsync promises of them; of a file that was spilled, that it is at the origin, which is its end."""
        if await self._spilled.is_spilled(live):
            await self.seal(live)
            return
        await self._bring(live, self.promise(live).fsync)

    async def _bring(self, live: LiveInode, level: Durability) -> None:
        """Return when the bytes that are there now have reached the level: of the engine's own memory they are part
        already; on the disk are the data, then the journal; at the origin is what was uploaded."""
        staged = live.staged
        if staged is None:
            return
        self._tell_failure(staged)
        if level is Durability.MEMORY:
            return
        await self._writeback.sync(staged.id, attributes=attributes_of(live_entry(live)))
        if level is Durability.ORIGIN:
            self._require_sealable(live)
            await self.seal(live)
            await self._writeback.wait(staged.id)

    def _require_sealable(self, live: LiveInode) -> None:
        if live.key is not None and self.kernel_may_write(live):
            raise InUse(
                f"{show(live.key)}: cannot wait for the origin, since the kernel writes the file by itself; "
                "close it and open it again"
            )

    async def seal_closed(self, live: LiveInode, staged: StagedFile, level: Durability) -> None:
        """A client's file is published: what whoever holds the name does for the level."""
        self._tell_failure(staged)
        await self.seal_held(live, sync=level is not Durability.MEMORY)

    async def wait_closed(self, staged_id: int, level: Durability) -> None:
        """The rest, which takes as long as the upload."""
        if level is Durability.ORIGIN:
            await self._writeback.wait(staged_id)

    async def seal(self, live: LiveInode) -> None:
        """Start the upload of what was written, unless the profile keeps it here or it has no name; one that was
        spilled ends at the origin before this returns. Waits while the name is being changed: nothing may go up under
        one that is on its way out."""
        async with self._tree.name_of(live):
            await self.seal_held(live)

    def seal_now(self, live: LiveInode) -> bool:
        """``seal`` where nothing has to be waited for; else False, and nothing has changed."""
        key, staged = live.key, live.staged
        if key is not None and (live.lock.locked() or not self._tree.are_free(key)):
            return False
        record = self._journal.get(staged.id) if staged is not None else None
        if key is None or record is None or record.state is not StagedState.STAGED or live.lent_for_writing:
            return True  # there is nothing to do: see ``seal_held``
        if self.is_mapped(live):
            return False
        entry = live_entry(live)
        if live.taken_over is not None or record.spilled:
            return False
        if self._profile.upload:
            done = self._writeback.seal_now(record.id, attributes_of(entry))
        else:
            done = self._journal.note_now([self._as_written(record, entry)])
        if done:
            live.mtime_ns = 0
            live.entry = self._tree.put_names(key, entry)
        return done

    async def seal_held(self, live: LiveInode, *, sync: bool = False) -> None:
        """The same for a caller that holds the name."""
        async with live.lock:
            staged = live.staged
            record = self._journal.get(staged.id) if staged is not None else None
            if staged is None or record is None or live.key is None:
                return
            if record.spilled and await self._spilled.complete(live, live.key, record):
                return
            record = self._journal.get(staged.id) or record
            if record.state is not StagedState.STAGED:
                if sync:
                    await self._writeback.sync(staged.id)
                return
            if self.kernel_may_write(live):
                return  # it is sealed by the last close, or by ``engine.lent`` when nobody has it mapped any more
            if await self._given_back(live, live.key, staged):
                return
            entry = live_entry(live)
            live.mtime_ns = 0
            live.entry = self._tree.put_names(live.key, entry)
            if self._profile.upload:
                await self._writeback.seal(staged.id, attributes=attributes_of(entry), sync=sync)
            else:
                await self._journal.note(put=[self._as_written(record, entry)])
                if sync:
                    await self._writeback.sync(staged.id, attributes=attributes_of(entry))

    def _as_written(self, record: StagedRecord, entry: Entry) -> StagedRecord:
        """The record of a file that stays here, as its last writer left it: one that a client published is no less
        published for that."""
        return record._replace(
            published=True,
            taken=record.taken if record.published else self._staging.new_id(),
            size_bytes=self._staging.measure(record.id),
            attributes=attributes_of(entry),
        )

    def kernel_may_write(self, live: LiveInode) -> bool:
        """Whether it may write to the staged file at any time: nothing of it can be sealed."""
        return live.lent_for_writing or self.is_mapped(live)

    def is_mapped(self, live: LiveInode) -> bool:
        """Whether a program can write to a file that the kernel had for writing, and that all have closed."""
        if live.may_be_mapped and live.staged is not None:
            live.note_kernel_writes()
            live.may_be_mapped = live.staged.is_written_elsewhere()
        return live.may_be_mapped

    async def stays_mapped(self, live: LiveInode) -> bool:
        """The same of a file that was closed just now."""
        for delay_s in LET_GO_S:
            if live.writers or not self.is_mapped(live):
                return False
            await trio.sleep(delay_s)
        return self.is_mapped(live)

    async def _given_back(self, live: LiveInode, key: Key, staged: StagedFile) -> bool:
        """A file that was opened for writing while others read it, and was not written, is clean again."""
        taken = live.taken_over
        if taken is None or attributes_of(live_entry(live)) != attributes_of(taken.entry):
            return False
        entry = self._lending.unwritten(live, staged)
        if entry is None:
            return False
        before = live.entry
        self._set_staged(live, key, None, entry)
        try:
            await self._lending.give_back(live, staged)
        except BaseException:
            if self._journal.get(staged.id) is not None:
                self._set_staged(live, key, staged, before)
            raise
        return True

    def _set_staged(self, live: LiveInode, key: Key, staged: StagedFile | None, entry: Entry) -> None:
        """The newest bytes of an inode are those of ``staged``; of its clean version where that is None."""
        live.staged = staged
        self._tree.place_staged(live.inode, key if staged is not None else None)
        live.entry = self._tree.put_names(key, entry)

    def _tell_failure(self, staged: StagedFile) -> None:
        error = self._writeback.error_of(staged.id)
        if error is not None:
            raise error

    def rest(self, staged: StagedFile) -> None:
        """Nobody writes it for now: thousands of such files must not hold a descriptor each."""
        self._staging.rest(staged.id)

    def drop_staged(self, live: LiveInode) -> None:
        """An unlinked inode lost its last handle: its bytes go."""
        if live.staged is not None:
            self._writeback.spills.forget(live.staged.id)
            self._staging.delete(live.staged.id)
            live.staged = None

    async def write_through(self, key: Key) -> None:
        """Bring a dirty file, whose name the caller holds, to the origin and wait until it is there."""
        entry = await self._names.lookup(key)
        live = self._tree.live.get(entry.inode)
        while live is not None and live.staged is not None:
            staged = live.staged
            if live.lent_for_writing:
                raise InUse(f"{show(key)}: is being written through the kernel; close it first")
            if staged.spilled:
                raise InUse(f"{show(key)}: is sent to the origin while it is written; close it first")
            if await self.stays_mapped(live):
                raise InUse(f"{show(key)}: a program has it mapped for writing")
            await self.seal_held(live)
            await self._writeback.wait(staged.id)

    async def leave_with(self, other: Key, key: Key, entry: Entry) -> bool:
        """The staged bytes of a hard-linked file go to the origin under ``other``, another of its names, instead of
        ``key``. False when they cannot, or have arrived. The caller holds both names."""
        live, record = self._tree.live.get(entry.inode), self._journal.get(entry.staged)
        if live is None or record is None or not record.in_place:
            return False
        if record.key != key:
            return True
        if not await self._writeback.relocate(record.id, other):
            return False
        live.key = other
        self._tree.place_staged(live.inode, other)
        if not live.writers:
            await self.seal_held(live)
        return True

    async def write_through_below(self, directory: Key) -> None:
        """The same for every dirty file at or under ``directory``."""
        for live in self._tree.live:
            if live.staged is not None and live.key is not None and is_below(live.key, directory):
                await self.write_through(live.key)
