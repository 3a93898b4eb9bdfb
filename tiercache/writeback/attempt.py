"""One try to bring one file to the origin, and the way to stop it."""

from __future__ import annotations

import threading

from tiercache.journal import StagedRecord
from tiercache.origins.base import Origin


class UploadCancelled(Exception):
    """Raised inside ``Origin.write`` by the progress callback, so that the origin cleans up and ends."""


class Attempt:
    """Shared by the engine's thread (cancels, reads progress) and the origin's threads (report progress)."""

    def __init__(self, record: StagedRecord) -> None:
        self.record = record
        self.origin: Origin | None = None
        """Where it goes, once it is under way."""
        self.sent_bytes = 0
        self.cancelled = False
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Stop at the next report of progress. A write that is through by then has happened."""
        self.cancelled = True

    def check(self) -> None:
        if self.cancelled:
            raise UploadCancelled

    def progress(self, sent_bytes: int) -> None:
        self.check()
        with self._lock:
            self.sent_bytes += sent_bytes
