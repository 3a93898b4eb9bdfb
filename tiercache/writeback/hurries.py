"""Who waits for which files to go up: those, and what has to go up before them, wait for no time of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tiercache.journal import Journal, StagedRecord
from tiercache.writeback.heirs import Heirs
from tiercache.writeback.order import Order
from tiercache.writeback.turns import Turns

Meant = Callable[[StagedRecord], bool]
"""Whether somebody who is in a hurry means a file."""


class Hurries:
    """What nobody waits for keeps its delay, and the pause after a failure, however much of the rest is hurried."""

    def __init__(self, journal: Journal, order: Order, heirs: Heirs, turns: Turns) -> None:
        self._journal = journal
        self._order = order
        self._heirs = heirs
        self._turns = turns
        self._meant: list[Meant] = []
        self._ahead: set[int] = set()
        """Files that nobody means, and that have to go up before one that somebody does."""

    @contextmanager
    def hurrying(self, meant: Meant | None) -> Iterator[None]:
        """Inside the block nothing that is meant waits for its delay, nor for the next try; None: nothing at all,
        retractions included."""
        meant = meant or _everything
        self._meant.append(meant)
        try:
            if meant is _everything:
                self._turns.hurry()
            else:
                self._hurry([record for record in self._journal.records() if meant(record)])
            yield
        finally:
            self._meant.remove(meant)
            if not self._meant:
                self._ahead.clear()

    def concern(self, record: StagedRecord) -> bool:
        """Whether somebody waits for a file, or for another one that it has to precede."""
        return record.id in self._ahead or any(meant(record) for meant in self._meant)

    def held(self, record: StagedRecord) -> None:
        """A file that has its turn has others ahead: when it is hurried, so are they."""
        if self._meant and self.concern(record):
            self._hurry_ahead([record])

    def _hurry(self, records: list[StagedRecord]) -> None:
        self._turns.hurry({record.id for record in records})
        self._hurry_ahead(records)

    def _hurry_ahead(self, records: list[StagedRecord]) -> None:
        pending = list(records)
        while pending:
            record = pending.pop()
            ahead = [*self._order.all_ahead_of(record), *self._heirs.all_ahead_of(record)]
            ids = {other.id for other in ahead} - self._ahead
            self._ahead |= ids
            self._turns.hurry(ids)
            pending += [other for i in ids if (other := self._journal.get(i)) is not None]


def _everything(record: StagedRecord) -> bool:
    return True
