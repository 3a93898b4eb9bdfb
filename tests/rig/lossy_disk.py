"""A staging disk and a journal that can lose power: what was not synced is kept, torn or gone when it comes back.

The files themselves are the page cache. Beside them is noted, of each file, what its last sync made durable and every
state since, under which name it is durable, and what the journal's last commit left. ``cut`` makes of these what a disk
might have: of each 4 KiB piece any of its states, or a part of one; of each name the durable or the present one. The
time of a file's last change gets to the disk with the change.

``without`` switches a protection off, to show that a test would notice:

- ``fdatasync``, ``directory fsync``, ``journal commit``: it returns, and nothing is durable;
- ``order``: the bytes that were synced become durable only after the journal says so;
- ``boot id``: the machine comes back as if it had not been away.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from rig.power_cut import Power, Stop, is_called_by_trio
from tiercache.journal import Journal
from tiercache.journal.pending import Change
from tiercache.staging import Disk

PIECE_BYTES: Final = 4096
_SECTOR_BYTES: Final = 512

# The calls of ``Disk`` that make files what they are, and those that make it durable.
CHANGES: Final = ("create", "open", "write", "truncate", "allocate", "copy_range", "clone", "rename", "unlink")
SYNCS: Final = ("sync_data", "sync_directory")


class _State(NamedTuple):
    """What a file held at one time."""

    data: bytes
    mtime_ns: int


class _File:
    def __init__(self, fd: int, durable_name: str | None) -> None:
        # Its bytes are needed when its last name is gone. For reading alone: who has it open otherwise may write it.
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        self.durable_name = durable_name
        self.states = [_State(b"", 0)]
        """What is durable, and all that it was since."""

    def now(self) -> _State:
        status = os.fstat(self.fd)
        return _State(os.pread(self.fd, status.st_size, 0), status.st_mtime_ns)


class LossyDisk(Disk):
    """One life of the machine, from its start to ``cut``. Directories and journal begin as the disk has them."""

    def __init__(
        self,
        root: Path,
        *,
        power: Power | None = None,
        without: str = "",
        boot_id: bytes = b"boot 1",
    ) -> None:
        self.root = root
        self.staging = root / "staging"
        self.boot_id = boot_id
        self.power = power or Power(0)
        self._without = without
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._late: list[tuple[_File, _State]] = []
        rows = root / "journal" / "data.mdb"
        self._journal = rows.read_bytes() if rows.exists() else None
        for name in (*CHANGES, *SYNCS):
            setattr(self, name, self.power.wrapped(f"disk {name}", getattr(self, name)))
        for path in self._names():
            fd = os.open(path, os.O_RDONLY)
            file = self._known(fd, str(path))
            file.states = [file.now()]
            os.close(fd)

    # -- what changes ---------------------------------------------------------------------------------------------

    def create(self, path: str) -> int:
        fd = super().create(path)
        self._known(fd, None)
        return fd

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        super().write(fd, data, offset)
        self._note(fd)

    def truncate(self, fd: int, size_bytes: int) -> None:
        super().truncate(fd, size_bytes)
        self._note(fd)

    def allocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        super().allocate(fd, mode, offset, length)
        self._note(fd)

    def copy_range(self, source_fd: int, target_fd: int, source: int, target: int, length: int) -> int:
        done = super().copy_range(source_fd, target_fd, source, target, length)
        self._note(target_fd)
        return done

    def clone(self, source_fd: int, target_fd: int) -> None:
        super().clone(source_fd, target_fd)
        self._note(target_fd)

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def _note(self, fd: int) -> None:
        with self._lock:
            file = self._known(fd, None)
            file.states.append(file.now())

    def _known(self, fd: int, durable_name: str | None) -> _File:
        with self._lock:
            inode = os.fstat(fd).st_ino
            if inode not in self._files:
                self._files[inode] = _File(fd, durable_name)
            return self._files[inode]

    # -- what makes it durable ------------------------------------------------------------------------------------

    def sync_data(self, fd: int) -> None:
        with self._lock:
            file = self._known(fd, None)
            state = file.now()
            if self._without == "order":
                self._late.append((file, state))
            elif self._without != "fdatasync":
                self._sync(file, state)

    def _sync(self, file: _File, state: _State) -> None:
        since = file.states.index(state) if state in file.states else len(file.states)
        file.states = [state, *file.states[since + 1 :]]

    def sync_directory(self, path: str) -> None:
        if self._without == "directory fsync":
            return
        with self._lock:
            present = self._present_names()
            for inode, file in self._files.items():
                names = {file.durable_name, present.get(inode)} - {None}
                if any(os.path.dirname(name) == path for name in names if name):
                    file.durable_name = present.get(inode)

    def journal(self, *arguments: Any, **options: Any) -> Journal:
        """The journal on this disk."""
        disk = self

        class LossyJournal(Journal):
            def _commit(self, *arguments: Any) -> None:
                disk.power.run("journal commit", lambda: super(LossyJournal, self)._commit(*arguments))
                if disk._without != "journal commit" or disk._journal is None:
                    disk._journal = (self.directory / "data.mdb").read_bytes()
                disk._sync_late()

            def _note(self, changes: list[Change]) -> None:
                try:
                    disk.power.run("journal note", lambda: super(LossyJournal, self)._note(changes))
                except Stop:
                    if not is_called_by_trio():
                        raise

        return LossyJournal(*arguments, boot_id=self.boot_id, **options)

    def _sync_late(self) -> None:
        if self._late:
            self.power.tick("late sync")
            with self._lock:
                for file, state in self._late:
                    self._sync(file, state)
                self._late.clear()

    # -- the end --------------------------------------------------------------------------------------------------

    def cut(self, rng: random.Random) -> bytes:
        """The power goes, and comes back: the directories hold what the disk has. Returns the id of the new boot."""
        present = self._present_names()
        for path in self._names():
            path.unlink()
        for inode in sorted(self._files, key=lambda inode: self._files[inode].fd):
            file = self._files[inode]
            name = rng.choice([file.durable_name, present.get(inode)])
            if name is not None:
                data, mtime_ns = _torn([*file.states, file.now()], rng)
                Path(name).write_bytes(data)
                os.utime(name, ns=(mtime_ns, mtime_ns))
        self.close()
        self._cut_journal(rng)
        return self.boot_id if self._without == "boot id" else self.boot_id + b"+"

    def close(self) -> None:
        """Nothing more is asked of this life."""
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()

    def _cut_journal(self, rng: random.Random) -> None:
        directory = self.root / "journal"
        if not directory.exists():
            return
        (directory / "lock.mdb").unlink(missing_ok=True)
        if self._journal is None:
            (directory / "data.mdb").unlink(missing_ok=True)
        else:
            (directory / "data.mdb").write_bytes(self._journal)
        for notes in directory.glob("pending.*"):
            os.truncate(notes, rng.randint(0, notes.stat().st_size))

    def _names(self) -> list[Path]:
        return [path for path in sorted(self.staging.rglob("*")) if path.is_file()] if self.staging.exists() else []

    def _present_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for path in self._names():
            with suppress(FileNotFoundError):  # the cache has just taken it
                names[path.stat().st_ino] = str(path)
        return names


def _torn(states: list[_State], rng: random.Random) -> _State:
    """A file of which each piece is as it was at some time since the last sync."""
    used = [rng.choice(states)]
    size_bytes = len(used[0].data)
    data = bytearray(size_bytes)
    for start in range(0, size_bytes, PIECE_BYTES):
        for begin, end in _parts(start, min(PIECE_BYTES, size_bytes - start), rng):
            state = rng.choice(states)
            data[begin:end] = state.data[begin:end].ljust(end - begin, b"\0")
            used.append(state)
    return _State(bytes(data), max(state.mtime_ns for state in used))


def _parts(start: int, length: int, rng: random.Random) -> list[tuple[int, int]]:
    """A piece is mostly written as a whole; now and then only some of its sectors were."""
    if rng.random() < 0.8:
        return [(start, start + length)]
    middle = start + min(length, _SECTOR_BYTES * rng.randint(1, PIECE_BYTES // _SECTOR_BYTES))
    return [(start, middle), (middle, start + length)]


def lossy(disk: LossyDisk) -> dict[str, Callable[..., Any] | LossyDisk]:
    """What ``Desk`` takes to work on this disk."""
    return {"disk": disk, "make_journal": disk.journal}
