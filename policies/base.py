"""The contract of an eviction policy: which resident version goes first, and what is let in at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

CacheKey = bytes


def nothing_pinned(key: CacheKey) -> bool:
    """The default of ``Policy.evict``: every resident key may go."""
    return False


class Policy(Protocol):
    """A pure, synchronous object: no I/O, no clock, no randomness but a seeded one. Sizes are in bytes.

    The owner keeps the accounts and drives it: ``access`` for a hit; for a miss ``admits``, then while
    ``used + size > capacity`` ``evict``, then ``insert``. The same object runs in the engine, the simulator and tests.
    """

    name: str

    def access(self, key: CacheKey) -> None:
        """A resident key was read. Unknown keys are ignored."""
        ...

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        """Whether a missed key may enter at all."""
        ...

    def insert(self, key: CacheKey, size_bytes: int) -> None:
        """A missed key is resident now. Inserting a resident key only updates its size."""
        ...

    def evict(self, pinned: Callable[[CacheKey], bool] = ...) -> CacheKey | None:
        """Choose the next victim that is not pinned, forget it as resident and return it; None if there is none
        (empty, or all pinned)."""
        ...

    def remove(self, key: CacheKey) -> None:
        """A resident key left for another reason (deleted, damaged). Unknown keys are ignored."""
        ...

    def __len__(self) -> int:
        """Number of resident keys."""
        ...
