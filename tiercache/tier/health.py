"""Whether the disk of a tier can be used: one that fails or is slow is taken out, probed, and taken back.

HEALTHY ──failure──▶ SUSPECT ──three in a minute──▶ OUT ──pause──▶ PROBING ──works──▶ HEALTHY
   ▲                    │                            ▲                │
   └──a minute without──┘        fatal, or slow ─────┴────fails───────┘

That something works in between says little: a write ends in the page cache, and many reads begin there.

The pause before a probe doubles from one to the next, up to a cap; it begins anew for a disk that worked for a while.
"""

from __future__ import annotations

import enum
import errno
import math
import os
import statistics
from collections import deque
from collections.abc import Callable

FAILURES_BEFORE_OUT = 3
FORGOTTEN_AFTER_S = 60.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
RELIABLE_AFTER_S = 600.0
"""Who fails again within this time after it came back is probed less often."""
WINDOW = 16
"""So many operations tell whether a disk is slow: their median does, so that single ones do not count."""
PROBE_BYTES = 4096

NO_ILLNESS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Want of room or descriptors, which the disk is not to blame for."""
FATAL = frozenset({errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESTALE, errno.EUCLEAN})
"""What no second try makes better."""


class DiskState(enum.IntEnum):
    """The values are those of ``tiercache_tier_state``."""

    HEALTHY = 0
    SUSPECT = 1
    OUT = 2
    PROBING = 3


class Health:
    """Of one disk; pure, but for the clock that it is given."""

    def __init__(self, clock: Callable[[], float], *, slow_s: float = math.inf) -> None:
        self.state = DiskState.HEALTHY
        self._clock = clock
        self._slow_s = slow_s
        self._failed_at: deque[float] = deque(maxlen=FAILURES_BEFORE_OUT)
        self._took_s: deque[float] = deque(maxlen=WINDOW)
        self._pause_s = FIRST_PAUSE_S
        self._probe_at = 0.0
        self._back_since: float | None = None

    @property
    def usable(self) -> bool:
        return self.state in (DiskState.HEALTHY, DiskState.SUSPECT)

    @property
    def probe_is_due(self) -> bool:
        return self.state is DiskState.OUT and self._clock() >= self._probe_at

    def worked(self) -> None:
        """An operation went well."""
        if self.state is DiskState.SUSPECT and self._clock() - self._failed_at[-1] > FORGOTTEN_AFTER_S:
            self.state = DiskState.HEALTHY

    def failed(self, code: int | None) -> bool:
        """An operation failed with this errno; True when that takes the disk out."""
        if code in NO_ILLNESS or not self.usable:
            return False
        self._failed_at.append(self._clock())
        often = len(self._failed_at) == FAILURES_BEFORE_OUT
        if code not in FATAL and not (often and self._failed_at[-1] - self._failed_at[0] <= FORGOTTEN_AFTER_S):
            self.state = DiskState.SUSPECT
            return False
        self._take_out()
        return True

    def took(self, seconds: float) -> bool:
        """How long a block took to be read or written; True when that takes the disk out."""
        if not self.usable:
            return False
        self._took_s.append(seconds)
        if seconds <= self._slow_s or len(self._took_s) < WINDOW or statistics.median(self._took_s) <= self._slow_s:
            return False
        self._take_out()
        return True

    def begin_probe(self) -> None:
        self.state = DiskState.PROBING

    def probed(self, took_s: float | None) -> bool:
        """A probe took so long, or failed (None); True when the disk is back."""
        if took_s is None or took_s > self._slow_s:
            self._pause()
            return False
        self.state = DiskState.HEALTHY
        self._back_since = self._clock()
        return True

    def _take_out(self) -> None:
        self._failed_at.clear()
        self._took_s.clear()
        if self._back_since is None or self._clock() - self._back_since > RELIABLE_AFTER_S:
            self._pause_s = FIRST_PAUSE_S
        self._pause()

    def _pause(self) -> None:
        self.state = DiskState.OUT
        self._probe_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


def probe(directory: str) -> None:
    """Write a small file, sync it, and read it back from the disk; blocking. OSError if that fails."""
    path = os.path.join(directory, ".probe")
    data = os.urandom(PROBE_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(fd, data, 0)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.pread(fd, PROBE_BYTES, 0) != data:
            raise OSError(errno.EIO, "read back other bytes than were written", path)
    finally:
        os.close(fd)
        os.unlink(path)
