"""One try to bring one file to the origin, and the way to stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import xxhash

from tiercache.journal import StagedRecord
from tiercache.model import PartedUpload
from tiercache.origins.base import Origin, Suspended
from tiercache.writeback.pace import Pace


class UploadCancelled(Exception):
    """Raised inside ``Origin.write`` by the progress callback, so that the origin cleans up and ends."""


def digest_of(record: StagedRecord, checksums: bytes) -> bytes:
    """What the parts of an upload are of: parts of other bytes or another seal are none of it."""
    return xxhash.xxh3_128_digest(record.upload_id.encode() + checksums)


class Attempt:
    """Shared by the engine's thread (cancels, reads progress) and the origin's threads (report progress). To these it
    is the ``Resume`` of the write."""

    def __init__(
        self,
        record: StagedRecord,
        *,
        save: Callable[[Attempt], None] = lambda attempt: None,
        note: Callable[[Attempt], None] = lambda attempt: None,
        pace: Pace | None = None,
    ) -> None:
        """``save``: what the store has is in the journal on return; ``note``: soon. Both from other threads."""
        self.record = record
        self.origin: Origin | None = None
        """Where it goes, once it is under way."""
        self.sent_bytes = 0
        self.cancelled = False
        self.suspended = False
        self.parted = record.parted
        """What the store has in parts, of these bytes (``parted_digest``) or of earlier ones."""
        self.parted_digest = record.parted_digest
        self.digest = b""
        self._save = save
        self._note = note
        self._pace = pace
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Stop at the next report of progress. A write that is through by then has happened."""
        self.cancelled = True

    def suspend(self) -> None:
        """The same, but a later attempt goes on with the parts that the store has by then."""
        self.suspended = True

    def check(self) -> None:
        if self.cancelled:
            raise UploadCancelled
        if self.suspended:
            raise Suspended

    def pace(self, size_bytes: int) -> None:
        """Wait until so many bytes may go."""
        if self._pace is not None:
            self._pace.wait(size_bytes, self.check)

    def progress(self, sent_bytes: int) -> None:
        self.check()
        with self._lock:
            self.sent_bytes += sent_bytes

    # -- parts ----------------------------------------------------------------------------------------------------

    def begun(self, parted: PartedUpload) -> None:
        self.parted, self.parted_digest = parted, self.digest
        self._save(self)

    def confirmed(self, parted: PartedUpload) -> None:
        self.parted = parted
        self._note(self)

    def ended(self) -> None:
        self.parted, self.parted_digest = None, b""
        self._note(self)
