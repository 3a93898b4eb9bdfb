"""The tries that are under way, and the files that may not go before these have ended."""

from __future__ import annotations

from contextlib import suppress

from tiercache.errors import TierCacheError
from tiercache.staging import Staging
from tiercache.writeback.attempt import Attempt


class Attempts:
    """By staged id, the newest last: after a rename the one to the old name may still be ending."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._attempts: dict[int, list[Attempt]] = {}
        # Files of cancelled records whose upload still reads them: removed when it ends.
        self._unwanted: set[int] = set()

    def begin(self, attempt: Attempt) -> Attempt:
        self._attempts.setdefault(attempt.record.id, []).append(attempt)
        return attempt

    def ended(self, attempt: Attempt) -> None:
        staged_id = attempt.record.id
        self._attempts[staged_id].remove(attempt)
        if self._attempts[staged_id]:
            return
        del self._attempts[staged_id]
        if staged_id in self._unwanted:
            self._unwanted.discard(staged_id)
            with suppress(TierCacheError):
                self._staging.unlink(staged_id)

    def get(self, staged_id: int) -> Attempt | None:
        """The upload of this file that is under way."""
        attempts = self._attempts.get(staged_id)
        return attempts[-1] if attempts else None

    def stop(self, staged_id: int) -> None:
        """Stop what is under way for this file, without a word about what comes next."""
        for attempt in self._attempts.get(staged_id, ()):
            attempt.cancel()

    def unlink_when_idle(self, staged_id: int) -> None:
        """Remove the file's name now, or when the upload that reads it has ended."""
        if staged_id in self._attempts:
            self._unwanted.add(staged_id)
        else:
            self._staging.unlink(staged_id)
