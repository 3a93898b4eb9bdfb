"""Reading without open: a read-only mount can spare the kernel the round trips of open and release.

The kernel then names the inode alone, so what an open file would know is kept here for a while, within bounds.
"""

from __future__ import annotations

import os
from collections import OrderedDict

from tiercache.cache import VersionRef
from tiercache.engine.handle import Handle
from tiercache.engine.namespace import Namespace
from tiercache.fuse.expected import EXPECTED_BYTES, ExpectedReads
from tiercache.model import Entry, Key

MAX_VERSIONS = 4096
"""Inodes whose version is remembered; the catalog answers for the others."""

BUFFER_BYTES = 1024 * 1024
"""As much as the kernel asks for at a time."""

MAX_READERS = 64
"""Files that are being fetched and read at a time with a read-ahead window of their own."""


class Openless:
    """Finds the bytes of an inode. What changes is forgotten by ``forget``, which the mount's listener calls."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._versions: OrderedDict[int, VersionRef] = OrderedDict()
        self._readers: OrderedDict[int, Handle] = OrderedDict()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._expected = ExpectedReads()

    def read_now(self, inode: int, offset: int, size_bytes: int) -> bytes | memoryview | None:
        """Bytes of a complete local copy or of a staged file, good until the next call; None where somebody has to
        wait."""
        self._expected.came(inode)
        staged = self._namespace.staged_of(inode)
        if staged is not None:
            return staged.pread(size_bytes, offset)
        version = self._versions.get(inode) or self._find(inode)
        if version is None:
            return None
        fd = self._namespace.files.readable(version)
        if fd is None:
            return None
        if not offset:
            self._namespace.files.note_opened(version)
        try:
            if size_bytes > BUFFER_BYTES:
                return os.pread(fd, size_bytes, offset)
            # Into memory that is there: that of a new object of this size comes page by page from the kernel.
            return self._buffer[: os.preadv(fd, [self._buffer[:size_bytes]], offset)]
        except OSError:
            return None  # a tier that fails is a tier that misses; the cache notices it when it is asked

    def _find(self, inode: int) -> VersionRef | None:
        version = self._namespace.known_version(inode)
        if version is not None:
            self._remember(inode, version)
        return version

    def looked_up(self, key: Key, entry: Entry) -> None:
        """A name was told to the kernel: a read of it is likely to follow."""
        if entry.version and not entry.staged:
            version = self._namespace.tree.version_ref(key, entry)
            self._remember(entry.inode, version)
            self._expected.looked_up(entry.inode, version)

    def begin_expected(self) -> None:
        """Nothing is asked right now: let the disk begin with what probably is asked next. The kernel sends the read
        of a file only after the answer to its lookup has gone two ways between processes."""
        version = self._expected.take()
        if version is not None and version.size_bytes:
            self._namespace.files.expect_read(version, min(version.size_bytes, EXPECTED_BYTES))

    def _remember(self, inode: int, version: VersionRef) -> None:
        self._versions[inode] = version
        if len(self._versions) > MAX_VERSIONS:
            self._versions.popitem(last=False)

    async def read(self, inode: int, offset: int, size_bytes: int) -> bytes | memoryview:
        """Bytes from wherever they are; one version's, Changed (ESTALE) when the rest of it is gone."""
        data = self.read_now(inode, offset, size_bytes)
        if data is not None:
            return bytes(data)
        reader = self._readers.get(inode)
        if reader is None:
            reader = await self._namespace.open(inode)
            if inode in self._readers:  # another read was faster
                reader.close_reader()
                reader = self._readers[inode]
        self._keep(inode, reader)
        return await reader.read(offset, size_bytes)

    def _keep(self, inode: int, reader: Handle) -> None:
        self._readers[inode] = reader
        self._readers.move_to_end(inode)
        if len(self._readers) > MAX_READERS:
            self._readers.popitem(last=False)[1].close_reader()

    def forget(self, inode: int) -> None:
        """The inode has other bytes, or the kernel dropped it."""
        self._versions.pop(inode, None)
        reader = self._readers.pop(inode, None)
        if reader is not None:
            reader.close_reader()

    def close(self) -> None:
        """Close what is open."""
        while self._readers:
            self._readers.popitem()[1].close_reader()
