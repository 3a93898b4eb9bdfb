"""One change of a name at a time: what a change holds, nobody else changes, nor anything below or above it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tiercache.model import Key, is_below
from tiercache.writeback.bell import Bell


class NameLocks:
    """Names of one origin. First come, first served, so that the move of a busy directory gets its turn.

    Origin, journal and catalog cannot change in one step: whoever is half through holds the name, also across calls of
    the origin. Readers hold nothing. Nor do uploads, because changes wait for their end: what an upload brings about
    has to be looked at again after each await.
    """

    def __init__(self) -> None:
        self._claims: dict[int, tuple[Key, ...]] = {}
        self._last = 0
        self._freed = Bell()

    @asynccontextmanager
    async def hold(self, *names: Key) -> AsyncIterator[None]:
        """Wait for the names, and keep them until the block ends. Not to be nested."""
        self._last += 1
        claim = self._last
        self._claims[claim] = names
        try:
            while self._must_wait(claim):
                await self._freed.heard()
            yield
        finally:
            del self._claims[claim]
            self._freed.ring()

    def are_free(self, *names: Key) -> bool:
        """Whether ``hold`` would not have to wait: who asks may change the names at once, without holding them."""
        return not any(
            is_below(a, b) or is_below(b, a) for others in self._claims.values() for a in names for b in others
        )

    def _must_wait(self, claim: int) -> bool:
        names = self._claims[claim]
        for earlier, others in self._claims.items():
            if earlier == claim:
                return False
            if any(is_below(a, b) or is_below(b, a) for a in names for b in others):
                return True
        return False
