"""A broadcast: wakes all who wait for the next change."""

from __future__ import annotations

import trio


class Bell:
    """Whoever waits checks a condition first, waits for the bell, and checks again."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        event, self._event = self._event, trio.Event()
        event.set()

    async def heard(self) -> None:
        await self._event.wait()
