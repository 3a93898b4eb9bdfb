"""Files that wait until others have gone up, and what is told of those for whom waiting alone does not help."""

from __future__ import annotations

import logging

import trio

from tiercache.journal import Journal, StagedRecord
from tiercache.model import StagedState
from tiercache.writeback.bell import Bell
from tiercache.writeback.order import Order
from tiercache.writeback.retry import Failure
from tiercache.writeback.succession import shown

log = logging.getLogger(__name__)

HELD_BACK = "held back: "
STUCK = {StagedState.CONFLICT: "in conflict with another writer's", StagedState.LOST: "lost"}
"""What waits for somebody to see to it, in words."""


class HeldBack:
    """``failures`` are those of the uploader, which whoever waits for a file is told."""

    def __init__(self, journal: Journal, order: Order, failures: dict[int, Failure], changed: Bell) -> None:
        self._journal = journal
        self._order = order
        self._failures = failures
        self._changed = changed
        self.forget = order.forget

    def has_others_ahead(self, record: StagedRecord) -> bool:
        """Whether a file has to wait for its turn until another one has gone up."""
        other = self._order.ahead_of(record)
        if other is not None and other.state in STUCK:
            self._tell(record, f"{HELD_BACK}{shown(other)}, which goes up before it, is {STUCK[other.state]}")
        elif record.last_error.startswith(HELD_BACK):
            self._tell(record, "")
        return other is not None

    def _tell(self, record: StagedRecord, reason: str) -> None:
        """Why waiting alone will not bring a file up; that it will now, where there is no reason any more."""
        if record.last_error == reason and (record.id in self._failures) == bool(reason):
            return
        self._failures.pop(record.id, None)
        if reason:
            self._failures[record.id] = Failure(0, permanent=True, due_s=trio.current_time())
            log.warning("%s is %s", shown(record), reason)
        self._journal.put_later(put=[record._replace(last_error=reason)])
        self._changed.ring()
