"""The directory of staged files: their names, descriptors and the bytes each is charged for."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import trio

from tiercache.errors import Lost
from tiercache.metrics import Metrics
from tiercache.staging.budget import Budget
from tiercache.staging.disk import FALLOC_KEEP_SIZE, Disk, told
from tiercache.staging.file import StagedFile
from tiercache.staging.room import WAIT_MAX_S, Room
from tiercache.staging.writers import tells_of_mappings

log = logging.getLogger(__name__)

LOST_DIRECTORY = "lost"
CREATE_BYTES = 4096
"""What a directory takes of the disk when it grows by a name."""
MAX_AWAKE = 128
"""Descriptors kept open of files that wait for their upload and are read meanwhile."""


class FoundFile(NamedTuple):
    """A file as the scan at start saw it."""

    size_bytes: int
    allocated_bytes: int
    inode: int
    mtime_ns: int = 0


class Staging:
    """One file per written inode, named by its id. Accounts are kept by one (the engine's) thread."""

    def __init__(
        self,
        directory: Path,
        capacity_bytes: int,
        metrics: Metrics,
        *,
        disk: Disk | None = None,
        wait_max_s: float = WAIT_MAX_S,
    ) -> None:
        self.directory = Path(directory)
        self.lost_directory = self.directory / LOST_DIRECTORY
        self.budget = Budget(capacity_bytes)
        self.budget.on_wait = metrics.back_pressure.inc
        self.room = Room(self.budget, metrics, wait_max_s)
        self.disk = disk or Disk()
        self._files: dict[int, StagedFile] = {}
        self._charges: dict[int, int] = {}
        # Files whose descriptor may be closed, and those of them that were opened again to be read.
        self._resting: dict[int, None] = {}
        self._awake: dict[int, None] = {}
        self._last_id = 0
        # Names made so far, and how many of them a finished fsync of the directory covers.
        self._names_made = 0
        self._names_durable = 0
        self._syncing_names = trio.Lock()
        self._show_used = metrics.staged_bytes
        metrics.staging_capacity_bytes.set(capacity_bytes)
        with told(f"making {self.directory}"):
            self.disk.make_directory(self.lost_directory)

    @property
    def used_bytes(self) -> int:
        return self.budget.used_bytes

    @property
    def capacity_bytes(self) -> int:
        return self.budget.capacity_bytes

    @property
    def unused_bytes(self) -> int:
        """What writers may still be granted: the disk has to have it."""
        return max(0, self.capacity_bytes - self.used_bytes)

    @cached_property
    def tells_of_mappings(self) -> bool:
        """Whether ``is_written_elsewhere`` tells of whoever has a file mapped."""
        tells = tells_of_mappings(str(self.directory))
        if not tells:
            log.warning(
                "new files are written through the engine: the filesystem of %s does not tell who has a file mapped "
                "(an overlay; cache_dir on a disk of its own is faster)",
                self.directory,
            )
        return tells

    # -- ids and files --------------------------------------------------------------------------------------------

    def new_id(self) -> int:
        """An id that this cache directory never had: microseconds since the epoch, or the next after the last one."""
        self._last_id = max(self._last_id + 1, time.time_ns() // 1000)
        return self._last_id

    def ids_after(self, last_id: int) -> None:
        """Never give out an id up to ``last_id`` (the journal's)."""
        self._last_id = max(self._last_id, last_id)

    def path(self, staged_id: int) -> str:
        return f"{self.directory}/{staged_id}"

    def exists(self, staged_id: int) -> bool:
        return os.path.exists(self.path(staged_id))

    def create(self, staged_id: int | None = None) -> StagedFile:
        """A new empty file, open. NoSpace, Broken."""
        staged_id = self.new_id() if staged_id is None else staged_id
        path = self.path(staged_id)
        fd = self.room.found(lambda: self._create(path), CREATE_BYTES)
        self._names_made += 1
        file = self._files[staged_id] = StagedFile(
            staged_id, path, self.disk, self.room, fd=fd, name_number=self._names_made, on_open=self._reopened
        )
        return file

    def _create(self, path: str) -> int:
        with told("making a staged file"):
            return self.disk.create(path)

    def open(self, staged_id: int) -> StagedFile:
        """The file of this id, the same object for all. Lost if it is not there."""
        file = self._files.get(staged_id)
        if file is not None:
            return file
        path = self.path(staged_id)
        if not os.path.exists(path):
            raise Lost(f"{path}: the staged file is gone")
        file = self._files[staged_id] = StagedFile(staged_id, path, self.disk, self.room, on_open=self._reopened)
        return file

    def take_in(self, staged_id: int) -> StagedFile:
        """A file that was just brought here under a ``new_id``: its name is as new as that of one made here."""
        file = self.open(staged_id)
        self._names_made += 1
        file.name_number = self._names_made
        return file

    def adopt(self, path: str) -> StagedFile:
        """Take in a file that an earlier run kept elsewhere on this disk: under a new id, without a record."""
        staged_id = self.new_id()
        with told("taking up a file that is open"):
            os.link(path, self.path(staged_id))
        file = self.take_in(staged_id)
        self.measure(staged_id)
        return file

    def is_written_elsewhere(self, staged_id: int, *, while_held: bool = True) -> bool:
        """Whether another process can write to the file: it has it open, or mapped. ``while_held`` as long as we use it
        ourselves."""
        file = self._files.get(staged_id)
        if file is not None:
            return file.is_written_elsewhere(while_held=while_held)
        with contextlib.suppress(OSError):
            return self.disk.has_writer(self.path(staged_id))
        return False

    def opened(self, staged_id: int) -> StagedFile | None:
        """The file if somebody has it open."""
        return self._files.get(staged_id)

    def rest(self, staged_id: int) -> None:
        """Nobody is going to write this file soon: its descriptor may be closed meanwhile."""
        file = self._files.get(staged_id)
        if file is not None and os.path.exists(file.path):
            file.rest()
            self._resting[staged_id] = None

    def wake(self, staged_id: int) -> None:
        """The file is written again: its descriptor stays."""
        self._resting.pop(staged_id, None)

    def _reopened(self, file: StagedFile) -> None:
        if file.id in self._resting:
            self._awake[file.id] = None
            while len(self._awake) > MAX_AWAKE:
                oldest = next(iter(self._awake))
                del self._awake[oldest]
                resting = self._files.get(oldest)
                if resting is not None and oldest in self._resting:
                    resting.rest()

    def unlink(self, staged_id: int) -> None:
        """Remove the name. Whoever has the file open goes on using it until ``delete``."""
        file = self._files.get(staged_id)
        if file is not None and os.path.exists(file.path):
            self.wake(staged_id)
            _ = file.fd  # opened while it still has a name
        self.remove_name(staged_id)
        if staged_id not in self._files:
            self._settle(staged_id)

    def delete(self, staged_id: int) -> None:
        """Remove the file, close it, give its bytes back to the budget. Idempotent."""
        try:
            self.unlink(staged_id)
        finally:
            self.closed(staged_id)

    def closed(self, staged_id: int) -> None:
        """The file left staging (renamed into a tier) or is deleted: close it and give its bytes back."""
        file = self._files.pop(staged_id, None)
        self._resting.pop(staged_id, None)
        self._awake.pop(staged_id, None)
        if file is not None:
            file.close()
        self._settle(staged_id)

    def set_aside(self, staged_id: int) -> None:
        """Keep a damaged file in ``lost/``, out of the budget. Idempotent."""
        self.move_aside(staged_id)
        self.closed(staged_id)

    def remove_name(self, staged_id: int) -> None:
        """The disk's half of ``unlink``; may run in any thread."""
        with told("removing a staged file"), contextlib.suppress(FileNotFoundError):
            self.disk.unlink(self.path(staged_id))

    def move_aside(self, staged_id: int) -> None:
        """The disk's half of ``set_aside``; may run in any thread."""
        target = str(self.lost_directory / str(staged_id))
        with told("setting a staged file aside"), contextlib.suppress(FileNotFoundError):
            self.disk.rename(self.path(staged_id), target)

    def close(self) -> None:
        """Close every descriptor; the files stay."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    # -- budget ---------------------------------------------------------------------------------------------------

    async def reserve(self, staged_id: int, amount_bytes: int, *, hurried: bool = False) -> None:
        """Ask for room for so many more bytes of one file; waits while staging is full, ``hurried`` only for uploads.
        NoSpace."""
        await self.budget.reserve(amount_bytes, staged_id=staged_id, hurried=hurried)
        self._charged(staged_id, max(0, amount_bytes))

    def reserve_now(self, staged_id: int, amount_bytes: int) -> bool:
        """The same where there is room and nobody waits for it; else False, and nothing is taken."""
        if not self.budget.reserve_now(amount_bytes):
            return False
        self._charged(staged_id, amount_bytes)
        return True

    def _charged(self, staged_id: int, amount_bytes: int) -> None:
        self._charges[staged_id] = self._charges.get(staged_id, 0) + amount_bytes
        self._show_used.set(self.used_bytes)

    def charged_bytes(self, staged_id: int) -> int:
        """The room that a file has: granted bytes, written or not."""
        return self._charges.get(staged_id, 0)

    def release(self, staged_id: int, amount_bytes: int) -> None:
        """Give back room that a write did not use."""
        self._charge_as(staged_id, max(0, self._charges.get(staged_id, 0) - amount_bytes))

    def cut(self, staged_id: int, size_bytes: int) -> None:
        """The file has no more than ``size_bytes`` now: what it was charged beyond that is given back. What it takes on
        the disk is no measure before it is sealed: writes that fill its holes are not asked for room."""
        self._charge_as(staged_id, min(size_bytes, self._charges.get(staged_id, 0)))

    def measure(self, staged_id: int) -> int:
        """The file's size; its charge becomes what it really takes, whoever wrote it. Lost if it is gone."""
        file = self._files.get(staged_id)
        try:
            status = file.status() if file is not None else os.stat(self.path(staged_id))
        except FileNotFoundError:
            raise Lost(f"{self.path(staged_id)}: the staged file is gone") from None
        self._charge_as(staged_id, min(status.st_size, status.st_blocks * 512))
        return status.st_size

    def state(self, staged_id: int) -> tuple[int, int]:
        """The file's size, and the time of the last change of its bytes in nanoseconds, whoever made it; 0 and -1 if
        it is gone."""
        try:
            status = os.stat(self.path(staged_id))
        except FileNotFoundError:
            return 0, -1
        return status.st_size, status.st_mtime_ns

    def found(self, staged_id: int, file: FoundFile) -> None:
        """Account for a file that an earlier run left."""
        self.ids_after(staged_id)
        self._charge_as(staged_id, file.allocated_bytes)

    def _charge_as(self, staged_id: int, amount_bytes: int) -> None:
        difference = amount_bytes - self._charges.get(staged_id, 0)
        self._charges[staged_id] = amount_bytes
        self.budget.charge(difference)
        self._show_used.set(self.used_bytes)

    def _settle(self, staged_id: int) -> None:
        amount_bytes = self._charges.pop(staged_id, 0)
        self.budget.release(amount_bytes)
        self._show_used.set(self.used_bytes)

    # -- bytes ----------------------------------------------------------------------------------------------------

    async def clone(self, source: StagedFile, target: StagedFile) -> None:
        """Make the target's bytes the source's, by shared extents where the disk can. NoSpace where some are gone."""
        source.require_whole()
        with source.held() as source_fd, target.held() as target_fd:
            await self._clone(source_fd, target_fd)
        self.measure(target.id)

    async def copy_range(self, source_fd: int, target: StagedFile, *, source: int, offset: int, length: int) -> int:
        """Copy a range of an open local file to ``offset`` of a staged one; how much was copied, less at the end."""

        def copy(target_fd: int) -> int:
            with told("copying into a staged file"):
                return self.disk.copy_range(source_fd, target_fd, source, offset, length)

        with target.held() as target_fd:
            return await self.room.found_in_thread(partial(copy, target_fd), length)

    async def fill_from(self, target: StagedFile, path: str) -> None:
        """The same from any local file. Lost if it is not there (any more)."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Lost(f"{path}: gone before it could be copied") from None
        try:
            with target.held() as target_fd:
                await self._clone(fd, target_fd)
        finally:
            os.close(fd)
        self.measure(target.id)

    async def _clone(self, source_fd: int, target_fd: int) -> None:
        def clone() -> None:
            with told("copying into a staged file"):
                self.disk.clone(source_fd, target_fd)

        await self.room.found_in_thread(clone, os.fstat(source_fd).st_size)

    async def allocate(self, staged_id: int, offset: int, length: int) -> None:
        """Room on the disk for a range of a file that others write; waits for uploads while there is none."""

        async def allocate() -> None:
            self.open(staged_id).allocate(FALLOC_KEEP_SIZE, offset, length)

        await self.room.waited_for(allocate)

    async def sync(self, file: StagedFile) -> None:
        """Make the bytes of a file durable, and its name when it is new. Lost when the bytes cannot be trusted.
        For a journalled file use ``WriteBack.sync``, which keeps the order data, journal, directory."""
        await self.sync_data(file)
        await self.sync_name(file)

    async def sync_data(self, file: StagedFile) -> None:
        with file.held():
            await trio.to_thread.run_sync(file.fsync)

    async def sync_name(self, file: StagedFile) -> None:
        """Make the file's name durable; callers that wait together share one fsync of the directory."""
        await self._sync_names_to(file.name_number)

    async def sync_new_names(self) -> None:
        """Make every name that was made so far durable."""
        await self._sync_names_to(self._names_made)

    async def _sync_names_to(self, number: int) -> None:
        if number <= self._names_durable:
            return
        async with self._syncing_names:
            if number <= self._names_durable:
                return
            covers = self._names_made
            await trio.to_thread.run_sync(self._sync_directory)
            self._names_durable = covers

    def sync_names(self) -> None:
        """Make every name in the directory durable. Blocking."""
        self._sync_directory()

    def _sync_directory(self) -> None:
        with told(f"fsync of {self.directory}"):
            self.disk.sync_directory(str(self.directory))

    # -- start ----------------------------------------------------------------------------------------------------

    def scan(self) -> dict[int, FoundFile]:
        """Every staged file on the disk by id. Blocking."""
        found: dict[int, FoundFile] = {}
        with told(f"reading {self.directory}"), os.scandir(self.directory) as names:
            for name in names:
                if name.name.isdigit() and name.is_file(follow_symlinks=False):
                    status = name.stat(follow_symlinks=False)
                    allocated_bytes = min(status.st_size, status.st_blocks * 512)
                    found[int(name.name)] = FoundFile(
                        status.st_size, allocated_bytes, status.st_ino, status.st_mtime_ns
                    )
        return found
