"""When a failed upload is tried again, and which failures waiting alone does not cure."""

from __future__ import annotations

import random
from typing import NamedTuple

from tiercache.errors import (
    Absent,
    ConfigError,
    Denied,
    InvalidArgument,
    InvalidName,
    IsDirectory,
    NameTooLong,
    NotDirectory,
    ReadOnly,
    Unsupported,
)

_PERMANENT = (
    Absent,
    ConfigError,
    Denied,
    InvalidArgument,
    InvalidName,
    IsDirectory,
    NameTooLong,
    NotDirectory,
    ReadOnly,
    Unsupported,
)


class Failure(NamedTuple):
    """What is remembered, in memory, of a file's failed uploads."""

    times: int
    permanent: bool
    """Somebody has to do something; tried again at the slowest rate, for credentials and buckets do get mended."""
    due_s: float


def is_permanent(error: BaseException) -> bool:
    """Whether only a change of settings, rights or names can help."""
    return isinstance(error, _PERMANENT)


class Backoff:
    """Exponential with full jitter and a cap; never gives up."""

    def __init__(self, base_s: float, cap_s: float, rng: random.Random) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._rng = rng

    def next(self, before: Failure | None, error: BaseException, now_s: float) -> Failure:
        """The failure after ``before``."""
        times = before.times + 1 if before is not None else 1
        permanent = is_permanent(error)
        ceiling_s = self._cap_s if permanent else min(self._cap_s, self._base_s * 2.0 ** min(times - 1, 30))
        # Not below half of it: a retry that follows at once helps nobody.
        delay_s = ceiling_s if permanent else ceiling_s * self._rng.uniform(0.5, 1.0)
        return Failure(times, permanent, now_s + delay_s)
