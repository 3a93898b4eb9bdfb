"""The end of a command that waits, whatever it waits for: an origin, an engine that hangs, or the start of one."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tiercache.errors import TierCacheError
from tiercache.units import format_duration

GRACE_S = 5.0
"""The engine keeps the deadline itself, and then tells what is left. It has so long for that."""


class Late(TierCacheError):
    """Nobody said in time how far things have come."""


@contextmanager
def bounded(deadline_s: float) -> Iterator[None]:
    """Late when the block takes longer than the deadline and ``GRACE_S``. In the main thread only."""
    if math.isinf(deadline_s):
        yield
        return

    def late(number: int, frame: object) -> None:
        raise Late(
            f"the deadline of {format_duration(deadline_s)} has gone by, and nothing tells how far it is: the engine "
            "hangs or is busy; see its engine.log, and try tiercache status"
        )

    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, deadline_s + GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
