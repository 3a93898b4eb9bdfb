"""A trio loop in a thread of its own, for tests that are no coroutines."""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

T = TypeVar("T")

PATIENCE_S = 20
"""Only how long a broken test takes to fail."""


class Loop:
    """Runs coroutines while the caller waits; ``nursery`` is for what goes on beside them."""

    nursery: trio.Nursery

    def __init__(self) -> None:
        self._ready: queue.SimpleQueue[trio.lowlevel.TrioToken] = queue.SimpleQueue()
        self._end = trio.Event()
        self._thread = threading.Thread(target=lambda: trio.run(self._main))
        self._thread.start()
        self._token = self._ready.get()

    async def _main(self) -> None:
        async with trio.open_nursery() as self.nursery:
            self._ready.put(trio.lowlevel.current_trio_token())
            await self._end.wait()
            self.nursery.cancel_scope.cancel()

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        async def bounded() -> T:
            with trio.fail_after(PATIENCE_S):
                return await function(*args)

        return trio.from_thread.run(bounded, trio_token=self._token)

    def close(self) -> None:
        trio.from_thread.run_sync(self._end.set, trio_token=self._token)
        self._thread.join()
