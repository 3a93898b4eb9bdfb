"""The account of staged bytes: writers wait, in order, while it is full.

Invariant I4: what ``reserve`` granted and nobody gave back never exceeds the capacity.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Set

import trio

from tiercache.errors import NoSpace
from tiercache.units import format_size

PATIENCE_S = 60.0
"""How long a writer waits in vain, with nothing going up, for others to close their files."""


class Hope(enum.IntEnum):
    """Whether waiting for room makes sense."""

    NONE = 0
    """Nothing goes up, and every other writer waits as well."""
    OPEN_FILES = 1
    """Somebody may close a file, which then goes up."""
    UPLOADS = 2
    """Files are on their way."""


class _Waiter:
    __slots__ = ("amount_bytes", "event", "hurried", "refused", "staged_id")

    def __init__(self, staged_id: int, amount_bytes: int, *, hurried: bool) -> None:
        self.staged_id = staged_id
        self.amount_bytes = amount_bytes
        self.hurried = hurried
        self.event = trio.Event()
        self.refused = False


class Budget:
    """Bytes granted against a capacity. ``hope`` is told which staged files wait for room and answers whether that
    makes sense; without hope a writer is refused instead of hanging for ever."""

    def __init__(self, capacity_bytes: int, *, patience_s: float = PATIENCE_S) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.hope: Callable[[Set[int]], Hope] = lambda waiting: Hope.UPLOADS
        self.on_wait: Callable[[], None] = lambda: None
        self._patience_s = patience_s
        self._waiters: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self._waiters)

    async def reserve(self, amount_bytes: int, *, staged_id: int = 0, hurried: bool = False) -> None:
        """Take bytes from the budget; waits behind earlier callers until there is room.
        NoSpace if they can never fit, or if it is full and there is no hope; ``hurried``: unless files are on their
        way."""
        if amount_bytes <= 0:
            return
        if amount_bytes > self.capacity_bytes:
            raise self._full(amount_bytes)
        if self.reserve_now(amount_bytes):
            return
        waiter = _Waiter(staged_id, amount_bytes, hurried=hurried)
        self._waiters.append(waiter)
        self.recheck()
        if not waiter.refused:
            self.on_wait()
        await self._wait(waiter)

    def reserve_now(self, amount_bytes: int) -> bool:
        """Take bytes if there is room and nobody waits for some; else False, and nothing is taken."""
        if self._waiters or self.used_bytes + amount_bytes > self.capacity_bytes:
            return False
        self.used_bytes += amount_bytes
        return True

    async def _wait(self, waiter: _Waiter) -> None:
        try:
            while not waiter.event.is_set():
                with trio.move_on_after(self._patience_s):
                    await waiter.event.wait()
                if not waiter.event.is_set() and self._hope() is not Hope.UPLOADS:
                    self._refuse(waiter)
        except trio.Cancelled:
            if not waiter.event.is_set():
                self._waiters.remove(waiter)
                self._wake()
            elif not waiter.refused:
                self.release(waiter.amount_bytes)
            raise
        if waiter.refused:
            raise self._full(waiter.amount_bytes)

    def charge(self, amount_bytes: int) -> None:
        """Account for bytes that are there already, without asking; negative when they turned out to be fewer."""
        self.used_bytes += amount_bytes
        assert self.used_bytes >= 0, "more was given back than was taken"
        if amount_bytes < 0:
            self._wake()

    def release(self, amount_bytes: int) -> None:
        """Give bytes back; the longest waiting callers that now fit go on."""
        self.charge(-amount_bytes)

    def recheck(self) -> None:
        """The state of the uploads changed: if all wait in vain now, refuse the latest, so that the others may go on
        when it gives its bytes back."""
        while self._waiters and self._hope() is Hope.NONE:
            self._refuse(self._waiters[-1])
        if any(waiter.hurried for waiter in self._waiters) and self._hope() is not Hope.UPLOADS:
            for waiter in [waiter for waiter in self._waiters if waiter.hurried]:
                if not waiter.event.is_set():
                    self._refuse(waiter)

    def _hope(self) -> Hope:
        return self.hope({waiter.staged_id for waiter in self._waiters})

    def _refuse(self, waiter: _Waiter) -> None:
        self._waiters.remove(waiter)
        waiter.refused = True
        waiter.event.set()
        self._wake()

    def _wake(self) -> None:
        while self._waiters and self.used_bytes + self._waiters[0].amount_bytes <= self.capacity_bytes:
            waiter = self._waiters.popleft()
            self.used_bytes += waiter.amount_bytes
            waiter.event.set()

    def _full(self, amount_bytes: int) -> NoSpace:
        return NoSpace(
            f"staging is full: {format_size(self.used_bytes)} of {format_size(self.capacity_bytes)} wait for their "
            f"upload, {format_size(amount_bytes)} more do not fit; see tiercache status, or raise staging.capacity"
        )
