"""Room on the disk for staged bytes, where the budget has some and the disk has none: others fill it.

Cached bytes can be had again, written ones cannot. So the cache gives up versions first, then writers wait for uploads
(which make staged bytes cached ones), and only then the program gets ENOSPC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from tiercache.errors import DiskFull
from tiercache.metrics import Metrics
from tiercache.staging.budget import Budget, Hope

WAIT_MAX_S = 300.0
RETRY_S = 0.25
"""Others free the disk without telling us, so who waits looks again this often."""

Result = TypeVar("Result")


class Room:
    """``give`` asks the cache to evict that many bytes, and answers whether it gave up any."""

    def __init__(self, budget: Budget, metrics: Metrics, wait_max_s: float = WAIT_MAX_S) -> None:
        self.give: Callable[[int], bool] = lambda wanted_bytes: False
        self.wait_max_s = wait_max_s
        self._budget = budget
        self._count_waits = metrics.disk_full_waits.inc

    def found(self, call: Callable[[], Result], wanted_bytes: int) -> Result:
        """The result of ``call``, which is made again while the disk is full and the cache gives room."""
        while True:
            try:
                return call()
            except DiskFull:
                if not self.give(wanted_bytes):
                    raise

    async def found_in_thread(self, call: Callable[[], Result], wanted_bytes: int) -> Result:
        """The same with ``call`` in a worker thread."""
        while True:
            try:
                return await trio.to_thread.run_sync(call)
            except DiskFull:
                if not self.give(wanted_bytes):
                    raise

    async def waited_for(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of ``call``, which is made again while the disk is full and files are on their way."""
        deadline_s: float | None = None
        while True:
            try:
                return await call()
            except DiskFull:
                now_s = trio.current_time()
                if self._budget.hope(set()) is not Hope.UPLOADS:
                    raise
                if deadline_s is None:
                    deadline_s = now_s + self.wait_max_s
                    self._count_waits()
                if now_s >= deadline_s:
                    raise
            await trio.sleep(RETRY_S)
