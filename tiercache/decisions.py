"""What was decided lately of each version: let in or refused, evicted, brought ahead, failed. For ``tiercache why``."""

from __future__ import annotations

import enum
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from tiercache.model import Key, OriginId, Tier, VersionId

Subject = VersionId | tuple[OriginId, Key]
"""A version, or a name of which no version is known: nobody could describe it."""


class Topic(enum.IntEnum):
    """What a decision is about. Of a subject and a tier the last one on each topic is remembered."""

    ADMISSION = 0
    """Let in (``why`` is empty), or not and why."""
    LEAVING = 1
    """Evicted or dropped, and why; ``by``: the policy that chose it, ``other``: the version that needed the room."""
    AHEAD = 2
    """Sent for before anybody asked for it; ``why``: because of what."""
    FAILURE = 3
    """The origin did not give it; ``why``: its error."""


class Decision(NamedTuple):
    """One decision, at seconds since the epoch."""

    at_s: float
    topic: Topic
    tier: Tier | None
    why: str
    by: str
    other: VersionId | None


_Slot = tuple[Subject, Topic, Tier | None]


class Decisions:
    """The last ``entries_max`` decisions; 0 remembers none. Noting one is cheap: nothing is formatted before it is
    asked for."""

    def __init__(self, entries_max: int, clock: Callable[[], float] = time.time) -> None:
        self._entries_max = entries_max
        self._clock = clock
        self._latest: OrderedDict[_Slot, Decision] = OrderedDict()
        self.forgot = False
        """Whether something fell out that was older than all that is here."""

    def __len__(self) -> int:
        return len(self._latest)

    def note(
        self,
        subject: Subject,
        topic: Topic,
        tier: Tier | None = None,
        why: str = "",
        by: str = "",
        other: VersionId | None = None,
    ) -> None:
        """Remember a decision instead of the one before of the same kind."""
        if not self._entries_max:
            return
        slot = (subject, topic, tier)
        self._latest[slot] = Decision(self._clock(), topic, tier, why, by, other)
        self._latest.move_to_end(slot)
        if len(self._latest) > self._entries_max:
            self._latest.popitem(last=False)
            self.forgot = True

    def of(self, subject: Subject) -> list[Decision]:
        """What is remembered of it."""
        slots = ((subject, topic, tier) for topic in Topic for tier in (None, *Tier))
        return [self._latest[slot] for slot in slots if slot in self._latest]


FORGETFUL: Final = Decisions(0)
"""For parts that nobody asks why."""
