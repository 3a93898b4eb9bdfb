"""The copies of versions: the catalog's records and the tiers' files, kept in step.

Order that keeps a crash honest: a record is written after the bytes, and removed before the file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice

import trio

from tiercache.cache.open_files import OpenFile, OpenFiles
from tiercache.cache.records import Records, copy_in
from tiercache.cache.residency import Residency
from tiercache.cache.state import VersionState
from tiercache.cache.words import Location, VersionRef
from tiercache.catalog import Catalog, Copy, VersionRecord
from tiercache.decisions import Decisions, Topic
from tiercache.metrics import Metrics
from tiercache.model import Tier, VersionId
from tiercache.tier import FileIdentity, FileTier
from tiercache.tier.files import open_for_read

log = logging.getLogger(__name__)

DISTRUSTED_AT_ONCE = 1000
"""Records changed between two chances for other tasks to run."""

NVME_FILES = 16
"""Descriptors of NVMe copies beside those of faster ones."""


class Copies:
    """Finds, records and drops copies. ``on_lost`` is told when the NVMe file of a version is gone."""

    def __init__(
        self,
        catalog: Catalog,
        tiers: Mapping[Tier, FileTier],
        *,
        decisions: Decisions,
        metrics: Metrics,
        run_id: int,
        trusted: bool,
    ) -> None:
        self.records = Records(catalog)
        self.tiers = tiers
        self.run_id = run_id
        self.stamp = run_id if trusted else 0
        """What a copy that we wrote or checked is stamped with. With ``verify="read"`` nothing is ever trusted, so that
        no client reads a file by itself."""
        self.on_lost: Callable[[VersionId], None] = lambda version: None
        self.files = OpenFiles()
        self._nvme_files = OpenFiles(NVME_FILES)
        """NVMe copies of versions whose faster copy is in ``files``."""
        self._batched: set[VersionId] | None = None
        """What was recorded in the batch that is open."""
        self._metrics = metrics
        self._decisions = decisions
        for tier in tiers.values():
            tier.on_evict = partial(self._unrecord, tier=tier.tier)

    # --- finding ------------------------------------------------------------------------------------------------

    def locate(self, version: VersionRef, *, tier: Tier | None = None) -> Location | None:
        """A complete copy, the fastest or that of one tier, whose bytes this run has checked and whose file is
        unchanged since."""
        record = self.records.find(version.id)
        if record is None or not record.complete:
            return None
        for copy in record.copies:
            if copy.verified_run != self.run_id or not self._usable(copy.tier) or tier not in (None, copy.tier):
                continue
            path = self.tiers[copy.tier].path(version.id)
            if self._unchanged(version, copy, path):
                return Location(path, copy.inode, copy.tier)
        return None

    def open(self, version: VersionRef) -> OpenFile | None:
        """A descriptor of a located copy; it stays ours and is good until the next call of this object."""
        file = self.files.get(version.id)
        if file is not None:
            if file.complete and os.fstat(file.fd).st_ctime_ns == file.identity.ctime_ns:
                return file
            self.close_files(version.id)
        location = self.locate(version)
        return None if location is None else self._open(version, location, complete=True)

    def open_nvme(self, version: VersionRef) -> OpenFile | None:
        """The same of the copy on the NVMe tier, although a faster one may be there."""
        file = self.open(version)
        if file is None or file.tier is Tier.NVME:
            return file
        file = self._nvme_files.get(version.id)
        if file is not None and os.fstat(file.fd).st_ctime_ns == file.identity.ctime_ns:
            return file
        location = self.locate(version, tier=Tier.NVME)
        return None if location is None else self._open(version, location, complete=True, files=self._nvme_files)

    def close_files(self, version: VersionId) -> None:
        """Close what is open of a version's copies."""
        self.files.close(version)
        self._nvme_files.close(version)

    def close(self) -> None:
        """Close all descriptors."""
        self.files.close_all()
        self._nvme_files.close_all()

    def open_partial(self, version: VersionRef, state: VersionState) -> OpenFile | None:
        """A descriptor of the file that is being filled, None (and doubts raised) when it is not as we left it."""
        file = self.files.get(version.id)
        if file is None:
            file = self._open(version, self.partial_location(version, state), complete=False)
        if file is None:
            return None
        found = FileIdentity.of(os.fstat(file.fd))
        if found.inode != state.inode:
            self.damaged(version.id, Tier.NVME, "another file is in its place")
            return None
        if not state.in_flight and state.written_ns and found.ctime_ns != state.written_ns:
            state.doubt()
            return None
        return file

    def partial_location(self, version: VersionRef, state: VersionState) -> Location:
        return Location(self.tiers[Tier.NVME].path(version.id), state.inode, Tier.NVME)

    def is_complete(self, version: VersionId) -> bool:
        """Whether a complete copy is recorded, checked or not."""
        record = self.records.find(version)
        return record is not None and record.complete and any(self._usable(copy.tier) for copy in record.copies)

    def _usable(self, tier: Tier) -> bool:
        """A tier whose disk is out is one that misses; its copies stay, for the time when it is back."""
        return tier in self.tiers and self.tiers[tier].works

    def first_complete(self, version: VersionRef) -> tuple[Tier, Residency] | None:
        """The fastest complete copy, checked or not, with the checksums to check it."""
        record = self.records.find(version.id)
        if record is None or not record.complete or record.size_bytes != version.size_bytes:
            return None
        tier = next((copy.tier for copy in record.copies if self._usable(copy.tier)), None)
        if tier is None:
            return None
        return tier, Residency.recorded(version.size_bytes, complete=True, blocks=b"", checksums=record.checksums)

    def load(self, version: VersionRef) -> VersionState:
        """The state of a version as its record tells it; a file that cannot be the recorded one is dropped.

        Each fill changes the ctime of an incomplete file and the record follows a moment later, so after a crash only
        its inode and size can be compared; its blocks, like those of every file of an earlier run, are checked by
        checksum at their first use.
        """
        state = VersionState(version.size_bytes)
        record = self.records.find(version.id)
        copy = copy_in(record, Tier.NVME)
        if record is None or copy is None or not self._usable(Tier.NVME):
            return state
        found = self._identity(self.tiers[Tier.NVME].path(version.id), Tier.NVME)
        if not self._usable(Tier.NVME):
            return state
        fits = found is not None and found.size_bytes == version.size_bytes == record.size_bytes
        if found is None or not fits or not (record.complete or found.inode == copy.inode):
            self.damaged(version.id, Tier.NVME, "its file is gone, cut or replaced")
            return state
        state.residency = Residency.recorded(
            version.size_bytes, complete=record.complete, blocks=record.blocks, checksums=record.checksums
        )
        state.inode = found.inode
        state.unverified = record.complete and self.stamp != 0
        if state.residency.empty and version.size_bytes:
            self.damaged(version.id, Tier.NVME, "its checksums are unknown")
            state.reset()
        return state

    # --- recording ----------------------------------------------------------------------------------------------

    def record(self, version: VersionRef, *, complete: bool, residency: Residency, copies: list[Copy]) -> bool:
        """Write down new copies; a copy in another tier is kept as long as all are complete. False if it failed."""
        old = self.records.find(version.id)
        if old is not None and complete and old.complete:
            copies = copies + [copy for copy in old.copies if copy.tier not in {new.tier for new in copies}]
        new = VersionRecord(
            origin=version.origin_id,
            key=version.key,
            etag=version.etag,
            size_bytes=version.size_bytes,
            complete=complete,
            copies=tuple(sorted(copies)),
            blocks=b"" if complete else residency.blocks,
            checksums=residency.checksums,
        )
        if complete:
            self.close_files(version.id)  # it remembers the identity of the file while it was filled
        if self._batched is not None:
            self._batched.add(version.id)
        return self.records.put(version.id, new)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Record what happens inside in one transaction. When that fails its copies have no record: their files go."""
        batched = self._batched = set()
        try:
            with self.records.batch():
                yield
        except BaseException:
            for version in batched:
                self.drop(version)
            raise
        finally:
            self._batched = None

    def verified(self, version: VersionId, identity: FileIdentity) -> None:
        """All bytes of the complete NVMe copy were compared with their checksums."""
        record = self.records.find(version)
        if record is None or not record.complete:
            return
        checked = Copy(Tier.NVME, identity.inode, identity.ctime_ns, self.stamp)
        others = [copy for copy in record.copies if copy.tier != Tier.NVME]
        self.records.put(version, record._replace(copies=tuple(sorted([*others, checked]))))
        self.close_files(version)

    # --- dropping -----------------------------------------------------------------------------------------------

    def unreadable(self, version: VersionId, tier: Tier, error: OSError) -> None:
        """A file could not be opened or read: drop the copy. Its absence is no illness of the disk."""
        if isinstance(error, FileNotFoundError):
            self.damaged(version, tier, "its file is gone")
            return
        self.tiers[tier].failed(error, "reading a file")
        if self._usable(tier):
            self._decisions.note(version, Topic.LEAVING, tier, f"it could not be read: {error.strerror or error}")
            self.drop_copy(version, tier)

    def damaged(self, version: VersionId, tier: Tier, why: str) -> None:
        """A copy has wrong bytes: drop it, count it; the next read fetches it again."""
        self._metrics.damaged.labels(tier=tier.label).inc()
        self._decisions.note(version, Topic.LEAVING, tier, why)
        log.warning("%s tier: dropped the copy %s: %s", tier.label, version.hex(), why)
        self.drop_copy(version, tier)

    def drop_copy(self, version: VersionId, tier: Tier) -> None:
        """Forget one copy and remove its file."""
        self._unrecord(version, tier)
        if tier in self.tiers:
            self.tiers[tier].drop(version)

    def drop(self, version: VersionId) -> None:
        """Forget a version in every tier."""
        self.records.drop(version)
        self.close_files(version)
        self.on_lost(version)
        for tier in self.tiers.values():
            tier.drop(version)

    # --- inside -------------------------------------------------------------------------------------------------

    def _unrecord(self, version: VersionId, tier: Tier) -> None:
        record = self.records.find(version)
        if record is not None:
            left = tuple(copy for copy in record.copies if copy.tier != tier)
            if left and record.complete:
                self.records.put(version, record._replace(copies=left))
            else:
                self.records.drop(version)
        file = self.files.get(version)
        if file is not None and file.tier == tier:
            self.close_files(version)
        if tier == Tier.NVME:
            self._nvme_files.close(version)
            self.on_lost(version)

    def _unchanged(self, version: VersionRef, copy: Copy, path: str) -> bool:
        found = self._identity(path, copy.tier)
        if not self._usable(copy.tier):
            return False
        if found == (copy.inode, copy.ctime_ns, version.size_bytes):
            return True
        if found is None or copy.tier == Tier.RAM or found.size_bytes != version.size_bytes:
            self.damaged(version.id, copy.tier, "its file is gone, cut or replaced")
        else:
            # Somebody touched the file (a backup, chmod, or worse): its checksums decide.
            self._distrust(version.id)
        return False

    async def distrust_all(self) -> None:
        """Nothing on the NVMe tier's disk counts as checked any more, for clients neither."""
        records = self.records.all()
        while portion := list(islice(records, DISTRUSTED_AT_ONCE)):
            with self.records.batch():
                for version, record in portion:
                    copy = copy_in(record, Tier.NVME)
                    if copy is not None and copy.verified_run:
                        self._distrust(version)
            await trio.lowlevel.checkpoint()

    def _distrust(self, version: VersionId) -> None:
        record = self.records.find(version)
        if record is not None:
            copies = (copy._replace(verified_run=0) if copy.tier == Tier.NVME else copy for copy in record.copies)
            self.records.put(version, record._replace(copies=tuple(copies)))

    def _identity(self, path: str, tier: Tier) -> FileIdentity | None:
        try:
            return FileIdentity.of(os.lstat(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.tiers[tier].failed(error, "looking at a file")
            return None

    def _open(
        self, version: VersionRef, location: Location, *, complete: bool, files: OpenFiles | None = None
    ) -> OpenFile | None:
        try:
            fd = open_for_read(location.path)
        except OSError as error:
            self.unreadable(version.id, location.tier, error)
            return None
        file = OpenFile(fd, FileIdentity.of(os.fstat(fd)), location.tier, complete)
        if file.identity.inode != location.inode:
            os.close(fd)
            self.damaged(version.id, location.tier, "another file is in its place")
            return None
        (self.files if files is None else files).put(version.id, file)
        return file
