"""The account of bytes in memory: what each purpose holds, what it may take, and who waits for it.

Purposes are served by rank. Those that *wait* (reads, answers, fetches, writes, uploads) have a guaranteed share that
nobody else can take, so each of them always goes on; above it they share what is free. The others (promotion,
read-ahead, overflow) never wait: they take what is free while nobody waits, or do without.

Nothing can lock up, because whoever holds bytes of one purpose waits only for a later one in this order, and the last
two wait for nobody: WRITE, REPLY, READ, then FETCH or UPLOAD.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

import trio

from tiercache.metrics import Metrics
from tiercache.units import MIB


class Purpose(enum.IntEnum):
    """What bytes are held for; the value is the rank, the lowest is served first."""

    READ = 0
    """Parts of a read that waits for the rest."""
    REPLY = 1
    """Answers on their way to clients."""
    FETCH = 2
    """What comes from an origin because somebody waits for it."""
    WRITE = 3
    """Writes of a mount that wait for room."""
    UPLOAD = 4
    PROMOTION = 5
    """Copies into the RAM tier."""
    READAHEAD = 6
    OVERFLOW = 7
    """Fetched blocks that no tier keeps. It has a guaranteed share although it never waits: an object that is streamed
    in small steps would be fetched once for each step without."""

    @property
    def label(self) -> str:
        return self.name.lower()


class Share(NamedTuple):
    """What a purpose gets of the whole."""

    guaranteed_bytes: int
    """At least so much is guaranteed."""
    guaranteed: float
    most: float
    """Parts of the whole: what is guaranteed (unless that is less than the above), and what it may hold at most."""


SHARES: Final = {
    Purpose.READ: Share(8 * MIB, 1 / 8, 1 / 4),
    Purpose.REPLY: Share(8 * MIB, 1 / 8, 1 / 4),
    Purpose.FETCH: Share(16 * MIB, 1 / 4, 1.0),
    Purpose.WRITE: Share(4 * MIB, 1 / 16, 1 / 4),
    Purpose.UPLOAD: Share(8 * MIB, 1 / 8, 1 / 4),
    Purpose.PROMOTION: Share(0, 0.0, 1 / 8),
    Purpose.READAHEAD: Share(0, 0.0, 1 / 4),
    Purpose.OVERFLOW: Share(8 * MIB, 1 / 8, 1 / 4),
}

SMALLEST_BYTES: Final = 64 * MIB
"""The least total that every purpose can work with: the guaranteed shares, and something to share above them."""


class _Waiter:
    __slots__ = ("admitted", "charge", "wake")

    def __init__(self, charge: int, wake: Callable[[], object]) -> None:
        self.charge = charge
        self.wake = wake
        self.admitted = False


class Memory:
    """One account for a whole engine; safe from any thread.

    ``limits`` are the settings that bound single purposes, in bytes. A charge is never above the guaranteed share of
    its purpose: work comes in pieces of at most ``piece_bytes``, so that it can always be done, if need be alone.
    """

    def __init__(
        self, total_bytes: int, *, limits: Mapping[Purpose, int] | None = None, metrics: Metrics | None = None
    ) -> None:
        self._limits = dict(limits or {})
        self._lock = threading.Lock()
        self._used = [0] * len(Purpose)
        self._peak_bytes = 0
        self._waiting: dict[Purpose, deque[_Waiter]] = {purpose: deque() for purpose in Purpose}
        self._guaranteed = [0] * len(Purpose)
        self._most = [0] * len(Purpose)
        self.total_bytes = 0
        self.on_pressure: Callable[[int], None] = lambda wanted_bytes: None
        """Called in the engine's thread before anybody there has to wait: give back what is only kept in case."""
        self._divide(total_bytes)
        metrics = metrics or Metrics()
        self._waits = [metrics.memory_waits.labels(purpose=purpose.label) for purpose in Purpose]
        self._shed = [metrics.memory_shed.labels(purpose=purpose.label) for purpose in Purpose]
        for purpose in Purpose:
            metrics.memory_bytes.labels(purpose=purpose.label).set_function(partial(self.used_bytes, purpose))
        metrics.memory_budget_bytes.set_function(lambda: self.total_bytes)

    # --- what there is ------------------------------------------------------------------------------------------

    def used_bytes(self, purpose: Purpose | None = None) -> int:
        """What is held now, of one purpose or in all."""
        return sum(self._used) if purpose is None else self._used[purpose]

    @property
    def peak_bytes(self) -> int:
        """The most that was ever held."""
        return self._peak_bytes

    def piece_bytes(self, purpose: Purpose) -> int:
        """The largest piece of work whose bytes are held at once."""
        return self._guaranteed[purpose] or self._most[purpose]

    def resize(self, total_bytes: int) -> None:
        """Another total from now on. What is held above it is not taken away: nothing more is given out until then."""
        with self._lock:
            self._divide(total_bytes)
            woken = self._admit()
        _wake(woken)

    def _divide(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        for purpose, share in SHARES.items():
            limit_bytes = min(self._limits.get(purpose, total_bytes), total_bytes)
            guaranteed_bytes = max(share.guaranteed_bytes, int(total_bytes * share.guaranteed))
            self._guaranteed[purpose] = min(guaranteed_bytes, limit_bytes)
            self._most[purpose] = min(max(int(total_bytes * share.most), share.guaranteed_bytes), limit_bytes)

    # --- taking -------------------------------------------------------------------------------------------------

    async def take(self, purpose: Purpose, size_bytes: int) -> int:
        """Wait in order of arrival; returns the charge, which is to be given back to ``release``."""
        charge = min(size_bytes, self._guaranteed[purpose])
        if self._take_now(purpose, charge):
            return charge
        self.on_pressure(charge)
        turn = trio.Event()
        waiter = _Waiter(charge, _setter(turn))
        if self._take_or_queue(purpose, waiter):
            return charge
        try:
            await turn.wait()
        except BaseException:
            self._leave(purpose, waiter)
            raise
        return waiter.charge

    def take_in_thread(self, purpose: Purpose, size_bytes: int) -> int:
        """As ``take``, for worker threads."""
        charge = min(size_bytes, self._guaranteed[purpose])
        turn = threading.Event()
        waiter = _Waiter(charge, turn.set)
        if not self._take_or_queue(purpose, waiter):
            turn.wait()
        return waiter.charge

    def try_take(self, purpose: Purpose, size_bytes: int) -> bool:
        """Take exactly so much of the guaranteed share, or of what is free while nobody waits; else the work is shed,
        and counted as such."""
        with self._lock:
            own = self._used[purpose] + size_bytes <= self._guaranteed[purpose]
            if own or (not any(self._waiting.values()) and self._fits(purpose, size_bytes)):
                self._add(purpose, size_bytes)
                return True
        self._shed[purpose].inc()
        return False

    def release(self, purpose: Purpose, charge: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._used[purpose] -= charge
            assert self._used[purpose] >= 0, "given back more than was taken"
            woken = self._admit()
        _wake(woken)

    @contextmanager
    def held_in_thread(self, purpose: Purpose, size_bytes: int) -> Iterator[None]:
        """Hold bytes in a worker thread, after waiting for them."""
        charge = self.take_in_thread(purpose, size_bytes)
        try:
            yield
        finally:
            self.release(purpose, charge)

    # --- inside, with the lock held -----------------------------------------------------------------------------

    def _take_now(self, purpose: Purpose, charge: int) -> bool:
        with self._lock:
            return self._add_if_fits(purpose, charge)

    def _take_or_queue(self, purpose: Purpose, waiter: _Waiter) -> bool:
        with self._lock:
            if self._add_if_fits(purpose, waiter.charge):
                return True
            self._waiting[purpose].append(waiter)
        self._waits[purpose].inc()
        return False

    def _leave(self, purpose: Purpose, waiter: _Waiter) -> None:
        with self._lock:
            if waiter.admitted:
                self._used[purpose] -= waiter.charge
            else:
                self._waiting[purpose].remove(waiter)
            woken = self._admit()
        _wake(woken)

    def _add_if_fits(self, purpose: Purpose, charge: int) -> bool:
        if self._waiting[purpose] or not self._fits(purpose, charge):
            return False
        self._add(purpose, charge)
        return True

    def _add(self, purpose: Purpose, charge: int) -> None:
        self._used[purpose] += charge
        self._peak_bytes = max(self._peak_bytes, sum(self._used))

    def _fits(self, purpose: Purpose, charge: int) -> bool:
        used = self._used[purpose] + charge
        if used <= self._guaranteed[purpose]:
            return True
        if used > self._most[purpose]:
            return False
        spoken_for = sum(map(max, self._used, self._guaranteed))
        return spoken_for - max(self._used[purpose], self._guaranteed[purpose]) + used <= self.total_bytes

    def _admit(self) -> list[_Waiter]:
        admitted: list[_Waiter] = []
        for purpose, queue in self._waiting.items():
            # A share that shrank while somebody waited must not keep them waiting for ever.
            while queue and self._fits(purpose, charge := min(queue[0].charge, self._guaranteed[purpose])):
                waiter = queue.popleft()
                waiter.charge = charge
                waiter.admitted = True
                self._add(purpose, charge)
                admitted.append(waiter)
        return admitted


def _setter(turn: trio.Event) -> Callable[[], None]:
    """What wakes a task: from its own thread at once, from another one by way of its loop."""
    token, thread = trio.lowlevel.current_trio_token(), threading.get_ident()

    def wake() -> None:
        if threading.get_ident() == thread:
            turn.set()
        else:
            with suppress(trio.RunFinishedError):  # whoever waited is gone with the loop
                token.run_sync_soon(turn.set)

    return wake


def _wake(waiters: list[_Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()
