"""Passthrough: local files lent to the kernel, which then reads, writes and maps them without us."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)


class FileId(NamedTuple):
    """One local file, whatever its name. It cannot be used again while the kernel has the file."""

    device: int
    inode: int


class Lender(Protocol):
    """A driver that can hand a file to the kernel."""

    def lend(self, fd: int) -> int:
        """A backing id for an open file. OSError where the kernel refuses it."""
        ...

    def take_back(self, backing_id: int) -> None:
        """No further open will name this id; those that did keep the file."""
        ...


class Backing:
    """A file that the kernel has, and how many opens use it."""

    __slots__ = ("file", "id", "users")

    def __init__(self, backing_id: int, file: FileId) -> None:
        self.id = backing_id
        self.file = file
        self.users = 0


class Backings:
    """Lends files through the mount's driver. Without a lender (another driver, an old kernel, no CAP_SYS_ADMIN)
    nothing is lent and the bytes go through us."""

    def __init__(self) -> None:
        self.lender: Lender | None = None

    def lend(self, fd: int) -> Backing | None:
        """Lend an open file for one more open; None where that is not possible."""
        if self.lender is None:
            return None
        try:
            backing = Backing(self.lender.lend(fd), file_id(fd))
        except OSError as error:
            # A filesystem that cannot be stacked upon, or a lost capability: it will not get better.
            log.warning("files are read and written through the engine from now on: passthrough refused: %s", error)
            self.lender = None
            return None
        return backing

    def take_back(self, backing: Backing) -> None:
        """The last open of a lent file is gone."""
        if self.lender is not None:
            try:
                self.lender.take_back(backing.id)
            except OSError as error:
                log.warning("a backing file could not be taken back: %s", error)


def file_id(fd: int) -> FileId:
    """Which file a descriptor has open."""
    status = os.fstat(fd)
    return FileId(status.st_dev, status.st_ino)
