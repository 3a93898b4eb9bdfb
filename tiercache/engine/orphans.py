"""Files that lost their name while programs have them open: a second name for their bytes, for the next engine.

Without it a crash of the engine would take the bytes away from under the programs. Each has two files in
``cache_dir/open/``: a hard link to the bytes, named by the inode id, and beside it the attributes. They go with the
last handle, and at the start of an engine that finds nobody who has the file open.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import trio

from tiercache.catalog.codec import decode_entry, encode_entry
from tiercache.model import Entry

DIRECTORY_NAME = "open"

_STAGED = b"s"
_CLEAN = b"c"

log = logging.getLogger("tiercache.engine")


class Orphan(NamedTuple):
    """What is kept of one file."""

    path: str
    entry: Entry
    staged: bool
    """Its bytes may be written; else they are those of a version."""


class Orphans:
    """Keeps at most what is open. A file that cannot be kept is told in the log: it would not survive a crash."""

    def __init__(self, cache_dir: Path) -> None:
        self._directory = cache_dir / DIRECTORY_NAME
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._kept = {int(name) for name in os.listdir(self._directory) if name.isdigit()}

    async def keep(self, inode: int, path: str, entry: Entry, *, staged: bool) -> None:
        """Give the file at ``path`` a second name, or copy it where it lies on another disk. What was kept of the inode
        before is replaced."""
        try:
            self._write(inode, entry, staged=staged)
            try:
                self._link(path, f"{inode}.new")
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                await trio.to_thread.run_sync(shutil.copyfile, path, self._path(inode) + ".new")
            os.replace(self._path(inode) + ".new", self._path(inode))
            with suppress(FileNotFoundError):  # where both names were the same file already, rename(2) leaves both
                os.unlink(self._path(inode) + ".new")
        except OSError as error:
            log.warning("inode %d has no name any more, and would not survive a crash of the engine: %s", inode, error)
            return
        self._kept.add(inode)

    def _link(self, path: str, name: str) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            # With a directory descriptor it is linkat(2), which follows /proc/self/fd to the file itself.
            os.link(path, name, dst_dir_fd=directory, follow_symlinks=True)
        finally:
            os.close(directory)

    def update(self, inode: int, entry: Entry) -> None:
        """It has new attributes."""
        kept = self.find(inode)
        if kept is not None:
            try:
                self._write(inode, entry, staged=kept.staged)
            except OSError as error:
                log.warning("inode %d: its new attributes would not survive a crash of the engine: %s", inode, error)

    def find(self, inode: int) -> Orphan | None:
        """What is kept of an inode."""
        if inode not in self._kept:
            return None
        try:
            data = Path(self._path(inode) + ".entry").read_bytes()
        except OSError:
            return None
        return Orphan(self._path(inode), decode_entry(data[1:]), data[:1] == _STAGED)

    def drop(self, inode: int) -> None:
        """Nobody has it open any more."""
        if inode in self._kept:
            self._kept.discard(inode)
            for path in (self._path(inode), self._path(inode) + ".entry"):
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def sweep(self, wanted: set[int]) -> None:
        """Drop all but these."""
        for inode in self._kept - wanted:
            self.drop(inode)

    def _path(self, inode: int) -> str:
        return str(self._directory / str(inode))

    def _write(self, inode: int, entry: Entry, *, staged: bool) -> None:
        path = self._path(inode) + ".entry"
        Path(path + ".new").write_bytes((_STAGED if staged else _CLEAN) + encode_entry(entry))
        os.replace(path + ".new", path)
