"""A plan: the order in which one reader will read files, and how far it is. Pure bookkeeping, no I/O, no clock.

A plan may have millions of entries, and names may come again; only the entries near the reader are in memory.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from tiercache.model import Key, VersionId

NO_VERSION: Final = VersionId(b"")

HORIZON_ENTRIES: Final = 8192
"""So far ahead of its reader a plan is known by name: what is read further on counts as not planned."""

LAG_ENTRIES: Final = 2048
"""Workers of one reader overtake each other, and what the kernel has in its page cache is read without our knowing. An
entry that stays behind the foremost read by more than this is not waited for."""


BEHIND_ENTRIES: Final = 1024
"""A loader hands its workers a batch each, and some in advance: the foremost is so much ahead of the hindmost. What is
behind the foremost and not read is what somebody comes to next."""

TRIES_MAX: Final = 8
"""A file that fails so often is left to its reader."""


class Read(enum.Enum):
    """How a plan stood when one of its files was read."""

    READY = "ready"
    """It was there: brought ahead, or kept from before."""
    LATE = "late"
    """It was on its way."""
    MISSED = "missed"
    """Nobody had sent for it yet."""


class Step:
    """One entry near the reader."""

    __slots__ = ("failures", "key", "position", "pushed", "read", "ready", "sent", "size_bytes", "version")

    def __init__(self, position: int, key: Key) -> None:
        self.position = position
        self.key = key
        self.sent = False
        self.ready = False
        self.pushed = False
        """It is where it may be read without our knowing."""
        self.read = False
        self.size_bytes = 0
        """What it holds of the budget: from when it is ready until it is read."""
        self.version = NO_VERSION
        self.failures = 0


class Plan:
    """Keys in the order in which they will be read, from the entry number ``position`` on. ``keys_from`` gives those
    from any number on."""

    def __init__(
        self, keys_from: Callable[[int], Iterator[Key]], *, position: int = 0, horizon: int = HORIZON_ENTRIES
    ) -> None:
        self._keys_from = keys_from
        self._keys = keys_from(position)
        self._horizon = horizon
        self._next = position
        """Number of the next entry of ``_keys``."""
        self._steps: deque[Step] = deque()
        """The entries from the hindmost that is waited for up to the horizon."""
        self._by_key: dict[Key, deque[Step]] = {}
        """Those of them that were not read, in their order."""
        self._by_version: dict[VersionId, Step] = {}
        """Those that are ready, as far as they were not read."""
        self._unsent: deque[Step] = deque()
        self.front = position
        """Number of the entry after the foremost that was read."""
        self.held_bytes = 0
        """Of what was brought and not read yet."""
        self.skipped = 0
        """Entries that were brought, and left behind unread."""
        self.ended = False
        """Whether ``_keys`` has no more."""
        self._look_ahead()

    @property
    def finished(self) -> bool:
        """Whether all was read or left behind."""
        return self.ended and not self._steps

    @property
    def lead(self) -> int:
        """How many entries ahead of the reader were sent for."""
        unsent = self._peek()
        foremost = self._next if unsent is None else unsent.position
        return max(0, foremost - self.front)

    @property
    def can_take(self) -> bool:
        """Whether ``take`` would give an entry."""
        return self._peek() is not None

    def next_use(self, key: Key) -> Step | None:
        """The entry that reads a name next; None where there is none within the horizon."""
        steps = self._by_key.get(key)
        return steps[0] if steps else None

    @property
    def known_until(self) -> int:
        """Number of the first entry beyond the horizon."""
        return self._next

    def take(self) -> Step | None:
        """The next entry to send for; None when there is none within the horizon."""
        step = self._peek()
        if step is not None:
            self._unsent.popleft()
            step.sent = True
        return step

    def _peek(self) -> Step | None:
        hindmost = self.front - BEHIND_ENTRIES
        while self._unsent and (self._unsent[0].read or self._unsent[0].position < hindmost):
            self._unsent.popleft()  # whoever reads it fetches it
        return self._unsent[0] if self._unsent else None

    def waiting(self) -> Iterator[Step]:
        """What is here for its reader."""
        return (step for step in self._steps if step.ready and not step.read)

    def brought(self, step: Step, version: VersionId, size_bytes: int) -> None:
        """What was sent for is here, as the bytes of a version."""
        step.ready = True
        if not step.read:
            step.version, step.size_bytes = version, size_bytes
            self._by_version[version] = step
            self.held_bytes += size_bytes

    def failed(self, step: Step, *, again: bool) -> None:
        """It could not be had: whoever reads it meets the error. ``again``: unless a later try comes before."""
        step.sent = False
        step.failures += 1
        if again and step.failures < TRIES_MAX:
            self._unsent.appendleft(step)

    def read(self, key: Key) -> Read | None:
        """The reader opened a file. None if that is not planned here."""
        steps = self._by_key.get(key)
        if not steps:
            return None
        step = steps.popleft()
        if not steps:
            del self._by_key[key]
        self._settle(step)
        self._advance(step.position + 1)
        return Read.READY if step.ready else Read.LATE if step.sent else Read.MISSED

    def read_version(self, version: VersionId) -> Read | None:
        """The same, for a file that was brought, by its version."""
        step = self._by_version.get(version)
        return None if step is None else self.read(step.key)

    def reached(self, position: int) -> int:
        """The reader says that it has come to this entry: all before it are read, or about to be. Of how many of them
        we hear nothing else, because they are where they are read without our knowing."""
        unseen = 0
        for step in self._steps:
            if step.position >= position:
                break
            if step.pushed and not step.read:
                self._settle(step)
                self._forget(step)
                unseen += 1
        self._advance(position)
        return unseen

    def give_up(self) -> None:
        """The reader reads no more of it."""
        self._keys, self.ended = iter(()), True
        self._leave_behind(self._next)

    def _advance(self, front: int) -> None:
        if front > self.front:
            self.front = front
            self._leave_behind(front - LAG_ENTRIES)
        while self._steps and self._steps[0].read:
            self._steps.popleft()
        self._look_ahead()

    def _leave_behind(self, position: int) -> None:
        while self._steps and self._steps[0].position < position:
            step = self._steps.popleft()
            if not step.read:
                self.skipped += step.ready
                self._settle(step)
                self._forget(step)

    def _settle(self, step: Step) -> None:
        step.read = True
        if self._by_version.get(step.version) is step:
            del self._by_version[step.version]
        self.held_bytes -= step.size_bytes
        step.size_bytes = 0

    def _forget(self, step: Step) -> None:
        steps = self._by_key.get(step.key)
        if steps is not None:
            steps.remove(step)
            if not steps:
                del self._by_key[step.key]

    def _look_ahead(self) -> None:
        if self._next < self.front - LAG_ENTRIES and not self.ended:  # perhaps by millions: it begins in mid-epoch
            self._next = self.front - LAG_ENTRIES
            self._keys = self._keys_from(self._next)
        while not self.ended and self._next < self.front + self._horizon:
            key = next(self._keys, None)
            if key is None:
                self.ended = True
                return
            step = Step(self._next, key)
            self._steps.append(step)
            self._by_key.setdefault(key, deque()).append(step)
            if step.position >= self.front:  # it leapt over the others
                self._unsent.append(step)
            self._next += 1
