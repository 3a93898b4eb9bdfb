"""Threads for many short requests at a time, and one wake-up of the engine for all that came back meanwhile.

What trio offers for a blocking call takes more of the one thread that everything runs in than a small object is
worth: a new context, a limiter, a wake-up for each. Here a call is put into a queue, and what has come back when the
loop turns is *landed* together, inside one transaction of the catalog.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

import outcome
import trio

from tiercache.errors import TierCacheError

LANDED_AT_ONCE: Final = 64
"""So many are landed before other tasks get a turn, for which a mount's requests wait. With an eighth of it a file
takes a quarter more processor time: threads are woken for one call each, and then wait for the interpreter."""

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)


class _Job(Generic[T, R]):
    __slots__ = ("_claims", "call", "landed", "result", "task")

    def __init__(self, call: Callable[[], T], landed: Callable[[T], R], task: trio.lowlevel.Task) -> None:
        self.call = call
        self.landed = landed
        self.task = task
        self.result: outcome.Outcome[T] | outcome.Outcome[R]
        self._claims = [True]

    def claim(self) -> bool:
        """Whether the caller is the first: the thread that runs it, or the task that does not want it any more."""
        try:
            return self._claims.pop()
        except IndexError:
            return False

    def land(self) -> None:
        """What came is landed; an error of that is the result then."""
        if isinstance(self.result, outcome.Value):
            self.result = outcome.capture(self.landed, self.result.value)


class Crew:
    """``size`` threads. ``together`` is entered around the landings of one turn; when it raises at its end (they could
    not be recorded) each caller has what it asked for all the same."""

    def __init__(self, size: int, together: Callable[[], AbstractContextManager[None]]) -> None:
        self._size = size
        self._together = together
        self._token = trio.lowlevel.current_trio_token()
        self._jobs: SimpleQueue[_Job[object, object] | None] = SimpleQueue()
        self._back: deque[_Job[object, object]] = deque()
        self._threads = 0
        self.under_way = 0
        """Calls that run or wait for a thread."""

    @property
    def spare(self) -> int:
        """How many more calls would run at once."""
        return max(0, self._size - self.under_way)

    async def run(self, call: Callable[[], T], landed: Callable[[T], R]) -> R:
        """``landed(call())``: the call in a thread, in order of arrival, the quick landing in this one.

        A call that has begun is waited for, and landed, whatever is cancelled.
        """
        job = _Job(call, landed, trio.lowlevel.current_task())
        self.under_way += 1
        if self.under_way > self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._work, name=f"tiercache-fetch-{self._threads}", daemon=True).start()
        self._jobs.put(job)  # type: ignore[arg-type]

        def abort(_: object) -> trio.lowlevel.Abort:
            if not job.claim():
                return trio.lowlevel.Abort.FAILED
            self.under_way -= 1
            return trio.lowlevel.Abort.SUCCEEDED

        result: R = await trio.lowlevel.wait_task_rescheduled(abort)
        return result

    def close(self) -> None:
        """No more calls: the threads end, each after what it does now."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.claim():
                job.result = outcome.capture(job.call)
                self._back.append(job)
                try:
                    self._token.run_sync_soon(self._land, idempotent=True)
                except trio.RunFinishedError:
                    return
                del job  # and with it the bytes

    def _land(self) -> None:
        """In trio's thread, outside any task: nothing may be raised here."""
        jobs = [self._back.popleft() for _ in range(min(len(self._back), LANDED_AT_ONCE))]
        waiting = jobs[::-1]  # taken from its end, in the order of arrival
        try:
            with self._together():
                while waiting:
                    waiting.pop().land()
        except TierCacheError as error:
            log.warning("%d fetched files could not be recorded: %s", len(jobs), error)
        except Exception:
            log.exception("%d fetched files could not be recorded", len(jobs))
        for job in waiting:  # there was no transaction to begin with: whoever waits must hear all the same
            job.land()
        for job in jobs:
            self.under_way -= 1
            trio.lowlevel.reschedule(job.task, job.result)
        if self._back:
            self._token.run_sync_soon(self._land, idempotent=True)
