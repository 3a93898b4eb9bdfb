"""A budget of bytes that tasks wait for in order of arrival."""

from __future__ import annotations

from collections import deque

import trio


class ByteBudget:
    """First come, first served, so that a large request is never starved by small ones.

    A request above the whole budget is taken as the whole budget: it runs alone instead of never.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    @property
    def contended(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    async def acquire(self, size_bytes: int) -> int:
        """Wait for room; returns what to give back to ``release``."""
        charge = min(size_bytes, self.total_bytes)
        if not self._waiting and self.used_bytes + charge <= self.total_bytes:
            self.used_bytes += charge
            return charge
        turn = trio.Event()
        self._waiting.append((charge, turn))
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.release(charge)
            else:
                self._waiting.remove((charge, turn))
                self._wake()
            raise
        return charge

    def release(self, charge: int) -> None:
        self.used_bytes -= charge
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.used_bytes + self._waiting[0][0] <= self.total_bytes:
            charge, turn = self._waiting.popleft()
            self.used_bytes += charge
            turn.set()
