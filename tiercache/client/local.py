"""The hit path: what the catalog and the local disks answer without the engine.

Everything here is a cache of a cache: when in doubt it says None, and the engine is asked.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

from tiercache.catalog import CatalogReader, VersionRecord
from tiercache.client.connection import Hello
from tiercache.errors import EngineUnreachable, InvalidName, NoSpace
from tiercache.model import Entry, Key, Kind, OriginId, Tier, VersionId

CLOCK_BACK_NS: Final = 1_000_000_000
"""A clock that was set back by more than this must not make an entry fresh for ever."""

FOREVER_NS: Final = 30 * 365 * 86_400 * 1_000_000_000
"""For how long at most a name is believed: less than the age of one that is in doubt (checked at 0)."""

_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC
_new = tuple.__new__


class Attachment(NamedTuple):
    """What the engine answered to ``attach``; valid for one run of it."""

    run_id: int
    number: int
    origin: OriginId
    root: Key
    capabilities: int
    read_only: bool
    ttl_ns: float
    negative_ttl_ns: float


class Found(NamedTuple):
    """An open local file that holds all bytes of a name's newest version."""

    descriptor: int
    size_bytes: int
    entry: Entry
    tier: Tier | None
    """None for a staged file."""


class Copied(NamedTuple):
    """An open local file that holds all bytes of one version."""

    descriptor: int
    size_bytes: int
    version: VersionId
    tier: Tier | None
    """None for a staged file."""


class LocalCopies:
    """Reads one run's catalog and opens its files. Shared by all threads; a forked child goes on using it."""

    def __init__(self, hello: Hello) -> None:
        self.run_id = hello.run_id
        self._reader = CatalogReader(hello.catalog)
        self._staging = hello.staging + "/"
        self._tiers = tuple(directory + "/" for directory in hello.tiers)
        # With verify = "read" each block is checked at each read: the engine does that.
        self._direct = hello.verify == "open"

    def open_copy(self, attachment: Attachment, key: Key) -> Copied | None:
        """As ``open``, without the entry: the shortest way, for a hit on the first copy of a clean file."""
        try:
            hit = self._reader.hit(attachment.origin, key)
        except (EngineUnreachable, NoSpace, InvalidName):
            return None
        if hit is not None and self._direct:
            version, checked_ns, size_bytes, tier, inode, ctime_ns, run = hit
            if run == self.run_id and -CLOCK_BACK_NS < time.time_ns() - checked_ns < attachment.ttl_ns:
                descriptor = self._open_version(version, tier, inode, ctime_ns, size_bytes)
                if descriptor is not None:
                    return _new(Copied, (descriptor, size_bytes, version, tier))
        found = self.open(attachment, key)
        return None if found is None else Copied(found.descriptor, found.size_bytes, found.entry.version, found.tier)

    def open(self, attachment: Attachment, key: Key) -> Found | None:
        """Open the newest bytes of ``key`` if they are here, fresh and checked. The caller closes the descriptor."""
        try:
            found = self._reader.resolve(attachment.origin, key)
        except (EngineUnreachable, NoSpace, InvalidName):
            return None
        if found is None:
            return None
        entry, record = found
        if entry.staged:
            return self._open_staged(entry)
        if record is None or not record.complete or not self._direct:
            return None
        age_ns = time.time_ns() - entry.checked_ns
        if not -CLOCK_BACK_NS < age_ns < attachment.ttl_ns:
            return None
        return self._open_copy(entry, record)

    def holds(self, attachment: Attachment, key: Key) -> bool:
        """Whether ``open`` would find the newest bytes here."""
        found = self.open(attachment, key)
        if found is None:
            return False
        os.close(found.descriptor)
        return True

    def _open_staged(self, entry: Entry) -> Found | None:
        try:
            descriptor = os.open(self._staging + str(entry.staged), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None  # its upload was just committed
        # While a mount writes it, the file is longer than the catalog says.
        return Found(descriptor, os.fstat(descriptor).st_size, entry, None)

    def _open_copy(self, entry: Entry, record: VersionRecord) -> Found | None:
        for copy in record.copies:
            if copy.verified_run != self.run_id:
                continue
            descriptor = self._open_version(entry.version, copy.tier, copy.inode, copy.ctime_ns, record.size_bytes)
            if descriptor is not None:
                return Found(descriptor, record.size_bytes, entry, copy.tier)
        return None

    def _open_version(self, version: VersionId, tier: Tier, inode: int, ctime_ns: int, size_bytes: int) -> int | None:
        """A descriptor of the version's file, if that still is the one that was verified."""
        name = version.hex()
        try:
            descriptor = os.open(f"{self._tiers[tier]}{name[:2]}/{name}", _OPEN_FLAGS)
        except OSError:
            return None
        status = os.fstat(descriptor)
        if status.st_ino == inode and status.st_ctime_ns == ctime_ns and status.st_size == size_bytes:
            return descriptor
        os.close(descriptor)
        return None

    def entry(self, attachment: Attachment, key: Key) -> Entry | None:
        """The entry of ``key`` while it is fresh (an ABSENT one too), else None."""
        try:
            entry = self._reader.entry(attachment.origin, key)
            if entry is None:
                return None
            if entry.staged:
                # The catalog does not follow each write of a mount.
                return entry._replace(size_bytes=os.stat(self._staging + str(entry.staged)).st_size)
        except (EngineUnreachable, NoSpace, InvalidName, FileNotFoundError):
            return None
        ttl_ns = attachment.negative_ttl_ns if entry.kind is Kind.ABSENT else attachment.ttl_ns
        return entry if -CLOCK_BACK_NS < time.time_ns() - entry.checked_ns < ttl_ns else None

    def children(self, attachment: Attachment, directory: Key) -> list[tuple[bytes, Entry]] | None:
        """The children of a directory that was listed recently enough, else None."""
        try:
            age_ns = time.time_ns() - self._reader.listed_ns(attachment.origin, directory)
            if not -CLOCK_BACK_NS < age_ns < attachment.ttl_ns:
                return None
            children = self._reader.children(attachment.origin, directory)
        except (EngineUnreachable, NoSpace, InvalidName):
            return None
        # Files being written have their true sizes in the engine only.
        return None if any(entry.staged for _, entry in children) else children

    def resident(self, version: VersionId, inode: int) -> bytes | None:
        """Bitmap of the blocks that are resident in the file ``inode``; None for all, b"" when it is another file."""
        try:
            record = self._reader.version(version)
        except (EngineUnreachable, NoSpace):
            return b""
        if record is None or all(copy.inode != inode for copy in record.copies):
            return b""
        return None if record.complete else record.blocks

    def close(self) -> None:
        """Give the catalog back."""
        self._reader.close()
