"""The account of staged bytes: writers wait, in order, while it is full.

Invariant I4: what ``reserve`` granted and nobody gave back never exceeds the capacity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from tiercache.errors import NoSpace
from tiercache.units import format_size


class _Waiter:
    __slots__ = ("amount_bytes", "event", "refused")

    def __init__(self, amount_bytes: int) -> None:
        self.amount_bytes = amount_bytes
        self.event = trio.Event()
        self.refused = False


class Budget:
    """Bytes granted against a capacity. ``can_drain`` says whether uploads may still make room: without that hope a
    writer that would have to wait is refused instead of hanging for ever."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.can_drain: Callable[[], bool] = lambda: True
        self.on_wait: Callable[[], None] = lambda: None
        self._waiters: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self._waiters)

    async def reserve(self, amount_bytes: int) -> None:
        """Take bytes from the budget; waits behind earlier callers until there is room.
        NoSpace if they can never fit, or if it is full and nothing is on its way out."""
        if amount_bytes <= 0:
            return
        if amount_bytes > self.capacity_bytes:
            raise self._full(amount_bytes)
        if not self._waiters and self.used_bytes + amount_bytes <= self.capacity_bytes:
            self.used_bytes += amount_bytes
            return
        if not self.can_drain():
            raise self._full(amount_bytes)
        self.on_wait()
        await self._wait(_Waiter(amount_bytes))

    async def _wait(self, waiter: _Waiter) -> None:
        self._waiters.append(waiter)
        try:
            await waiter.event.wait()
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
        """The state of the uploads changed: refuse those who wait if they wait in vain."""
        if self._waiters and not self.can_drain():
            for waiter in self._waiters:
                waiter.refused = True
                waiter.event.set()
            self._waiters.clear()

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
