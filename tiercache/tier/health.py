"""Whether a tier's disk works: after several failures in a row it rests, and its reads and fills are misses."""

from __future__ import annotations

from collections.abc import Callable

FAILURES_BEFORE_REST = 3
REST_S = 10.0


class Health:
    """Working → (three failures in a row) → resting for a while → working; one success forgets the failures."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._rests_until = 0.0

    @property
    def resting(self) -> bool:
        return self._rests_until > 0.0 and self._clock() < self._rests_until

    def worked(self) -> None:
        self._failures = 0

    def failed(self) -> bool:
        """Count a failure; True when it was the one that sends the tier to rest."""
        self._failures += 1
        if self._failures < FAILURES_BEFORE_REST:
            return False
        self._failures = 0
        self._rests_until = self._clock() + REST_S
        return True
