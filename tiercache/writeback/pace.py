"""How fast uploads may go: a token bucket for all of them together, and the hours that have their own rate."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from tiercache.config import UploadConfig
from tiercache.config.windows import parse_window, rate_at
from tiercache.metrics import Metrics

BURST_S = 1.0
"""What was not used for so long may be used at once."""

SLICE_BYTES = 1024 * 1024
"""Uploads have their turn for so many bytes each: a small file does not wait until a large part is paid for."""

_CHECK_S = 1.0
"""Whoever waits looks this often whether it still wants to, and whether another rate counts by now."""


class Bucket:
    """Pure: the clock and the rate are arguments. What was taken is a debt that is paid off at the rate."""

    def __init__(self) -> None:
        self._debt_bytes = 0.0
        self._at_s = 0.0

    def take(self, size_bytes: int, now_s: float, bytes_s: float) -> float:
        """0: the bytes may go, and are charged. Else nothing has happened: seconds until it is worth asking again."""
        if math.isinf(bytes_s):
            self._debt_bytes = 0.0
        else:
            paid_bytes = bytes_s * (now_s - self._at_s)
            self._debt_bytes = max(self._debt_bytes - paid_bytes, -bytes_s * BURST_S)
        self._at_s = now_s
        if self._debt_bytes > 0:
            return self._debt_bytes / bytes_s
        self._debt_bytes += size_bytes
        return 0.0


class Pace:
    """For the threads that send. Who comes first goes first, slice by slice."""

    def __init__(
        self,
        bytes_s: Callable[[], float],
        *,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[threading.Condition, float], object] = threading.Condition.wait,
    ) -> None:
        self.bytes_s = bytes_s
        """The rate that counts now; infinity: as fast as it goes."""
        self._metrics = metrics
        self._clock = clock
        self._pause = pause
        self._bucket = Bucket()
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        if metrics is not None:
            metrics.upload_bandwidth_max_bytes.set_function(lambda: self.limit_bytes_s or 0)

    @classmethod
    def of(cls, config: UploadConfig, metrics: Metrics) -> Pace:
        windows = [parse_window(text) for text in config.windows]

        def bytes_s() -> float:
            now = time.localtime()
            return rate_at(60 * now.tm_hour + now.tm_min, windows, config.bandwidth_max)

        return cls(bytes_s, metrics=metrics)

    @property
    def limit_bytes_s(self) -> int | None:
        """The rate that counts now, None if there is no limit."""
        bytes_s = self.bytes_s()
        return None if math.isinf(bytes_s) else int(bytes_s)

    def wait(self, size_bytes: int, check: Callable[[], None]) -> None:
        """Return when so many bytes may go. ``check`` may end it by an exception."""
        began_s = self._clock()
        for offset in range(0, size_bytes, SLICE_BYTES):
            if math.isinf(self.bytes_s()):
                break
            self._wait_turn(min(SLICE_BYTES, size_bytes - offset), check)
        if self._metrics is not None:
            self._metrics.upload_paced_seconds.inc(max(0.0, self._clock() - began_s))

    def _wait_turn(self, size_bytes: int, check: Callable[[], None]) -> None:
        ticket = object()
        with self._changed:
            self._line.append(ticket)
        try:
            while True:
                check()
                with self._changed:
                    wait_s = _CHECK_S
                    if self._line[0] is ticket:
                        wait_s = self._bucket.take(size_bytes, self._clock(), self.bytes_s())
                    if not wait_s:
                        return
                    self._pause(self._changed, min(wait_s, _CHECK_S))
        finally:
            with self._changed:
                self._line.remove(ticket)
                self._changed.notify_all()
