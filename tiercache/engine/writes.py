"""Written bytes on their way: into the staged file, which ``stages`` makes and ``closes`` sends."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from tiercache.config import Profile
from tiercache.engine.closes import Closes
from tiercache.engine.entries import attributes_of, now_ns, with_attributes
from tiercache.engine.live import LiveInode, live_entry
from tiercache.engine.names import Names
from tiercache.engine.parts import Parts
from tiercache.engine.promises import Promises
from tiercache.engine.spilled_files import SpilledFiles
from tiercache.engine.stages import Stages
from tiercache.engine.tree import Tree
from tiercache.errors import DiskFull, InvalidArgument, NoSpace, TooLarge, Unsupported
from tiercache.model import Attributes, Durability, Entry, Key
from tiercache.staging import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, StagedFile
from tiercache.units import format_size

COPY_RANGE_BYTES = 64 * 1024 * 1024
"""How much one copy_file_range(2) copies at most; programs ask again for the rest."""

FALLOC_ZERO_RANGE = 0x10


Result = TypeVar("Result")


class Writes:
    """Bytes and attributes of inodes of one tree under one profile. How files come to be staged and what becomes of
    them are those of ``Stages`` and ``Closes``."""

    def __init__(self, tree: Tree, names: Names, profile: Profile, promises: Promises, parts: Parts) -> None:
        self._tree = tree
        self._staging = parts.staging
        self._journal = parts.journal
        self._writeback = parts.writeback
        self.stages = Stages(tree, names, profile, promises, parts)
        self._spilled = SpilledFiles(tree, profile, parts)
        self.closes = Closes(tree, names, profile, promises, parts, self.stages.lending, self._spilled)

    # -- bytes --------------------------------------------------------------------------------------

    async def write(self, live: LiveInode, offset: int, data: bytes | memoryview, *, append: bool) -> int:
        """Put ``data`` into the inode's staged file, which is made at the first write."""
        written = self.write_now(live, offset, data, append=append)
        if written is not None:
            return written

        async def put(staged: StagedFile) -> int:
            return self._put(staged, staged.size_bytes if append else offset, data)

        return await self._into(live, lambda size_bytes: (size_bytes if append else offset) + len(data), put, len(data))

    def write_now(self, live: LiveInode, offset: int, data: bytes | memoryview, *, append: bool) -> int | None:
        """As ``write`` where nothing has to be waited for, else None and nothing is written."""
        staged = live.staged
        if staged is None or not self.stages.is_writable(staged):
            return None
        present_bytes = staged.size_bytes
        start = present_bytes if append else offset
        growth_bytes = start + len(data) - present_bytes
        if growth_bytes > 0 and not self._has_room(staged, growth_bytes):
            return None
        try:
            written = self._put(staged, start, data)
        except DiskFull:
            self._take_back(staged, max(0, growth_bytes))
            return None
        live.mtime_ns = now_ns()
        return written

    @staticmethod
    def _put(staged: StagedFile, start: int, data: bytes | memoryview) -> int:
        """Write all of ``data``; where the disk has no room for all of it the file grows by none of it, so that the
        same can be tried again."""
        size_bytes = staged.size_bytes
        try:
            return staged.write(start, data)
        except DiskFull:
            if staged.size_bytes > size_bytes:
                staged.truncate(size_bytes)
            raise

    async def truncate(self, live: LiveInode, size_bytes: int) -> None:
        """Set the size; to 0 without fetching what was there."""
        if size_bytes < 0:
            raise InvalidArgument("a file cannot have a negative size")
        self._require_possible(live, size_bytes)

        async def put(staged: StagedFile) -> None:
            staged.truncate(size_bytes)
            if not staged.spilled:
                self._staging.cut(staged.id, size_bytes)

        await self._into(live, lambda _: size_bytes, put, empty=size_bytes == 0)

    async def allocate(self, live: LiveInode, mode: int, offset: int, length: int) -> None:
        """fallocate(2). Unsupported for what changes the place of bytes in a file."""
        if mode & ~(FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            raise Unsupported(f"fallocate with the flags {mode:#x}")
        end = 0 if mode & FALLOC_PUNCH_HOLE else offset + length
        self._require_possible(live, end)

        async def put(staged: StagedFile) -> None:
            staged.allocate(mode, offset, length)

        await self._into(live, lambda size_bytes: max(size_bytes, end), put)

    def _require_possible(self, live: LiveInode, end: int) -> None:
        """TooLarge for a file of which more would have to be here than can ever be."""
        gone_bytes = live.staged.gone_bytes if live.staged is not None else 0
        if end - gone_bytes > self._staging.capacity_bytes:
            raise TooLarge(f"{format_size(end)} are more than staging may ever hold; raise staging.capacity")

    async def copy_into(self, live: LiveInode, offset: int, source_fd: int, source: int, length: int) -> int:
        """Copy a range of an open local file; how much was copied."""
        most_bytes = min(COPY_RANGE_BYTES, max(4096, self._staging.capacity_bytes // 8))
        length = min(length, max(0, os.fstat(source_fd).st_size - source), most_bytes)

        async def put(staged: StagedFile) -> int:
            async with live.lock:  # meanwhile the staged file stays the one that is copied into
                staged.require_here(offset)
                return await self._staging.copy_range(source_fd, staged, source=source, offset=offset, length=length)

        return await self._into(live, lambda size_bytes: max(size_bytes, offset + length), put, length)

    async def _into(
        self,
        live: LiveInode,
        wanted_bytes: Callable[[int], int],
        put: Callable[[StagedFile], Awaitable[Result]],
        written_bytes: int = 0,
        *,
        empty: bool = False,
    ) -> Result:
        """``put`` into the staged file, which may grow to ``wanted_bytes`` of its present size: in the budget, and
        where others fill the disk, when uploads have made room there. The last ``written_bytes`` of that size are about
        to be written; where there is no room at all, what is before them may go to the origin."""

        async def attempt() -> Result:
            staged, granted_bytes = await self._with_room(live, wanted_bytes, written_bytes, empty=empty)
            try:
                return await put(staged)
            except DiskFull:
                self._take_back(staged, granted_bytes)
                raise

        result = await self._staging.room.waited_for(attempt)
        live.mtime_ns = now_ns()
        return result

    async def _with_room(
        self, live: LiveInode, wanted_bytes: Callable[[int], int], written_bytes: int, *, empty: bool = False
    ) -> tuple[StagedFile, int]:
        """The staged file that may be written now, and what it was granted to grow to ``wanted_bytes`` of its present
        size. While we wait for room others append to it, or it is sealed and sent: then everything is asked again."""
        while True:
            staged = await self.stages.writable(live, empty=empty)
            growth_bytes = wanted_bytes(staged.size_bytes) - staged.size_bytes
            if growth_bytes <= 0:
                return staged, 0
            granted_bytes = await self._reserve(live, staged, growth_bytes, written_bytes)
            grown = wanted_bytes(staged.size_bytes) - staged.size_bytes if live.staged is staged else 0
            if grown == growth_bytes and self.stages.is_writable(staged):
                return staged, granted_bytes
            self._take_back(staged, granted_bytes)

    async def _reserve(self, live: LiveInode, staged: StagedFile, growth_bytes: int, written_bytes: int) -> int:
        """Room for a file to grow, and how much of it is to be given back if it does not. Where there is none, and no
        upload is going to make some, the file's beginning goes to the origin."""
        may_spill = staged.spilled or (written_bytes > 0 and self._spilled.may_begin(live, staged))
        if may_spill and not staged.spilled:
            with suppress(NoSpace):
                await self._staging.reserve(staged.id, growth_bytes, hurried=True)
                return growth_bytes
        if may_spill and await self._spilled.make_room(live, staged, growth_bytes, written_bytes):
            return 0
        await self._staging.reserve(staged.id, growth_bytes)
        return growth_bytes

    def _has_room(self, staged: StagedFile, growth_bytes: int) -> bool:
        if staged.spilled:
            return self._spilled.has_room(staged, growth_bytes)
        return self._staging.reserve_now(staged.id, growth_bytes)

    def _take_back(self, staged: StagedFile, granted_bytes: int) -> None:
        """What was granted is not used; a file that is spilled keeps it for its next write."""
        if not staged.spilled:
            self._staging.release(staged.id, granted_bytes)

    # -- attributes ---------------------------------------------------------------------------------

    async def set_attributes(self, key: Key, entry: Entry, attributes: Attributes) -> Entry:
        """New attributes travel with an upload, of a clean file too where the origin stores them in no other way."""
        with self._tree.live.using(entry.inode, key, entry) as live:
            staged = await self.stages.writable(live)
            live.mtime_ns = 0
            changed = live.entry = with_attributes(live_entry(live), attributes)
            record = self._journal.get(staged.id)
            if live.key is not None:
                self._tree.put_names(live.key, changed)
            if record is not None:
                await self._journal.note(put=[record._replace(attributes=attributes_of(changed))])
            if live.writers == 0:
                await self.closes.seal(live)
            return live.entry

    # -- how far it has come ----------------------------------------------------------------------

    def state(self, entry: Entry) -> str:
        """``clean``, or the state of the staged file: staged, sealed, uploading, conflict, lost."""
        record = self._journal.get(entry.staged) if entry.staged else None
        return str(record.state) if record is not None else "clean"

    def error(self, entry: Entry) -> str:
        """What keeps the newest bytes from the origin, as the last try told it; nothing where there is no trouble."""
        record = self._journal.get(entry.staged) if entry.staged else None
        return record.last_error if record is not None else ""

    def durable(self, entry: Entry) -> Durability:
        """The level that the newest bytes have reached for certain."""
        return self._writeback.durable(entry.staged) if entry.staged else Durability.ORIGIN
