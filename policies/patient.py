"""Hold what is here as long as it is read: the best for random epochs, and it ends when another data set comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiercache.policies.base import CacheKey, nothing_pinned
from tiercache.policies.miniature import apart
from tiercache.policies.queues import SizedQueue

_PATIENCE: Final = 2
"""So many times the longest silence, or absence, of late is waited for."""
_SILENCE_MIN: Final = 64
_SILENCE_SHARE: Final = 64
"""A silence is at least so many reads, and one for so many resident keys."""
_ABSENCE_MIN: Final = 8
"""An absence, and the silence of a cache that nobody has read since it was filled, are at least so many reads for each
resident key."""


class PatientHold:
    """Full, it admits nothing, unless nobody reads what is here. Then what was not read for the longest time makes way.

    Time is counted in reads, those of one key in a row once. Two signs tell that keys are of no use any more, each
    after twice the longest time that it took of late. *Absence*: a key is not read. *Silence*: no resident key is read,
    so all are given up. What comes in then is on trial: it goes first when one of those given up is read after all, as
    after a scan in a pause of training. A cache that nobody has read since it was filled is given much more time, and
    twice as much each time that this was in vain, so that a long loop is held at last.
    """

    name = "patient"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._settled = SizedQueue(capacity_bytes)
        self._on_trial = SizedQueue(capacity_bytes)  # both in the order of the last reads
        self._read_at: dict[CacheKey, int] = {}
        self._unread: set[CacheKey] = set()  # since they came in
        self._now = 0
        self._last_key: CacheKey | None = None
        self._hit_at = 0
        self._came_at = 0
        """When the last key came in."""
        self._given_up_at = -1
        """What was not read since may go."""
        self._trial_failed = False
        self._in_vain = 0
        """How often all was given up since the last hit."""
        self._silence = _RecentMaximum()
        self._absence = _RecentMaximum()

    def access(self, key: CacheKey) -> None:
        if key not in self._read_at:
            return
        self._tick(key)
        read_at = self._read_at[key]
        if key in self._unread:
            if self._now - read_at <= apart(len(self)):
                return  # it belongs to the reading that brought it
            self._unread.remove(key)
        if read_at <= self._given_up_at:
            self._given_up_at = -1
            self._trial_failed = True
        self._learn(key, read_at)
        self._hit_at = self._now
        self._in_vain = 0
        self._renew(key)

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        self._tick(key)
        used_bytes = self._settled.used_bytes + self._on_trial.used_bytes - self._size_bytes(key)
        if used_bytes + size_bytes <= self._capacity_bytes:
            return True
        return size_bytes <= self._capacity_bytes and self._makes_way()

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        if key in self._read_at:
            (self._on_trial if key in self._on_trial else self._settled).push(key, size_bytes)
            return
        (self._on_trial if self._given_up_at >= 0 else self._settled).push(key, size_bytes)
        self._read_at[key] = self._came_at = self._now
        self._unread.add(key)

    def evict(self, pinned: Callable[[CacheKey], bool] = nothing_pinned) -> CacheKey | None:
        for _ in range(len(self)):
            key = self._next_victim()
            if not pinned(key):
                self.remove(key)
                return key
            self._renew(key)
        return None

    def remove(self, key: CacheKey) -> None:
        if self._read_at.pop(key, None) is not None:
            (self._on_trial if key in self._on_trial else self._settled).remove(key)
            self._unread.discard(key)

    def __len__(self) -> int:
        return len(self._read_at)

    def _tick(self, key: CacheKey) -> None:
        if key != self._last_key:
            self._now += 1
            self._last_key = key

    def _learn(self, key: CacheKey, read_at: int) -> None:
        period = self._absence.value
        # Before the first hit nothing could be read again, and only a loop is as silent once more.
        if self._hit_at or key == self._next_victim():
            since = self._hit_at if read_at <= self._hit_at else self._came_at
            self._silence.saw(self._now - since, self._now, period)
        self._absence.saw(self._now - read_at, self._now, period)

    def _renew(self, key: CacheKey) -> None:
        """What is read, or in use, has passed its trial."""
        size_bytes = self._size_bytes(key)
        (self._on_trial if key in self._on_trial else self._settled).remove(key)
        self._settled.push(key, size_bytes)
        self._read_at[key] = self._now

    def _size_bytes(self, key: CacheKey) -> int:
        return self._settled.sizes.get(key) or self._on_trial.sizes.get(key, 0)

    def _next_victim(self) -> CacheKey:
        if not self._on_trial or not self._settled:
            return (self._on_trial or self._settled).head()
        newer, older = self._on_trial.head(), self._settled.head()
        return newer if self._trial_failed or self._read_at[newer] < self._read_at[older] else older

    def _makes_way(self) -> bool:
        """Whether the next victim may go."""
        if not self._on_trial:
            self._trial_failed = False
        read_at = self._read_at[self._next_victim()]
        if self._trial_failed or read_at <= self._given_up_at:
            return True
        if self._is_silent(read_at):
            self._given_up_at = self._now - 1
            return True
        return self._now - read_at > max(_PATIENCE * self._absence.value, _ABSENCE_MIN * len(self))

    def _is_silent(self, read_at: int) -> bool:
        known = _PATIENCE * self._silence.value
        if read_at <= self._hit_at:
            return self._now - self._hit_at > max(known, _SILENCE_MIN, len(self) // _SILENCE_SHARE)
        if self._now - self._came_at <= max(known, _ABSENCE_MIN * len(self) << self._in_vain):
            return False
        self._in_vain += 1
        return True


class _RecentMaximum:
    """The largest value of the current period and the one before."""

    def __init__(self) -> None:
        self._current = self._before = self._since = 0

    @property
    def value(self) -> int:
        return max(self._current, self._before)

    def saw(self, value: int, now: int, period: int) -> None:
        if now - self._since > period:
            self._before, self._current, self._since = self._current, 0, now
        self._current = max(self._current, value)
