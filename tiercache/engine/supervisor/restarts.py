"""When a crashed engine is replaced, and when its supervisor gives up: a pure decision, no clock of its own."""

from __future__ import annotations

from typing import Final

DELAY_MAX_S: Final = 10.0
"""Longest back-off between two attempts."""


class Restarts:
    """An engine that had come up is replaced at once; one that had not, after a delay that doubles."""

    def __init__(self, limit: int, window_s: float, backoff_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._backoff_s = backoff_s
        self._attempts: list[float] = []
        self._failures = 0
        self.total = 0
        """Engines started after the first one, for whatever reason."""

    def after_crash(self, now_s: float, *, was_ready: bool) -> float | None:
        """Seconds to wait before the next attempt; None after ``limit`` attempts within ``window_s``."""
        self._attempts = [at_s for at_s in self._attempts if now_s - at_s < self._window_s]
        if len(self._attempts) >= self._limit:
            return None
        self._attempts.append(now_s)
        self.total += 1
        self._failures = 0 if was_ready else self._failures + 1
        if not self._failures:
            return 0.0
        return min(DELAY_MAX_S, self._backoff_s * 2.0 ** min(self._failures - 1, 32))

    def on_request(self) -> None:
        """An engine asked to be replaced: that is no crash."""
        self.total += 1
        self._failures = 0
