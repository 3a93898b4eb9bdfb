"""Threads that many batches of work share: whichever falls free takes from the batch that has waited longest."""

from __future__ import annotations

import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tiercache.errors import Busy

T = TypeVar("T")
R = TypeVar("R")


class FairPool:
    """Each batch has its turn for one item after the other, so one of ten items never waits for one of ten thousand."""

    def __init__(self, threads: int, name: str) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, name)
        self._changed = threading.Condition()
        self._ring: deque[_Batch[object, object]] = deque()
        """Batches with items that nobody has taken yet; the first is next."""
        self._closed = False

    def map(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """``call`` for each item, in their order. After the first error no further item is begun; it is raised when
        those under way have ended."""
        batch = _Batch(call, items)
        with self._changed:
            if self._closed:
                raise Busy("closed")
            if items:
                self._ring.append(batch)  # type: ignore[arg-type]
            for _ in items:
                self._executor.submit(self._work)
            self._changed.wait_for(batch.is_through)
        if batch.error is not None:
            raise batch.error
        return [batch.results[number] for number in range(len(items))]

    def close(self) -> None:
        """Items that were not begun are not going to be: Busy."""
        with self._changed:
            self._closed = True
            for batch in self._ring:
                batch.give_up(Busy("closed"))
            self._ring.clear()
            self._changed.notify_all()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _work(self) -> None:
        """Do one item, of whichever batch has its turn: there is one call of this for each item at least."""
        with self._changed:
            if not self._ring:
                return  # its batch was given up
            batch = self._ring.popleft()
            number = batch.take()
            if batch.has_more():
                self._ring.append(batch)
        error: BaseException | None = None
        try:
            batch.results[number] = batch.call(batch.items[number])
        except BaseException as raised:
            error = raised
        with self._changed:
            batch.running -= 1
            if error is not None:
                batch.give_up(error)
                if batch in self._ring:
                    self._ring.remove(batch)
            self._changed.notify_all()


class _Batch(Generic[T, R]):
    def __init__(self, call: Callable[[T], R], items: Sequence[T]) -> None:
        self.call = call
        self.items = items
        self.results: dict[int, R] = {}
        self.error: BaseException | None = None
        self.running = 0
        self._next = 0
        self._end = len(items)

    def take(self) -> int:
        number = self._next
        self._next += 1
        self.running += 1
        return number

    def has_more(self) -> bool:
        return self._next < self._end

    def give_up(self, error: BaseException) -> None:
        """Begin no further item; the first error counts."""
        self.error = self.error or error
        self._end = self._next

    def is_through(self) -> bool:
        return not self.running and not self.has_more()
