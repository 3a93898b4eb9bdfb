"""End an engine that was started on demand once nobody needs it any more."""

from __future__ import annotations

import logging
from typing import Protocol

import trio

log = logging.getLogger("tiercache.engine")


class Clients(Protocol):
    """Who is connected; ``Server`` is one."""

    async def wait_deserted(self) -> None:
        """Return when no client is connected."""

    async def wait_arrival(self) -> None:
        """Return when a client connects, at once if one is connected."""


class Worker(Protocol):
    """What may have work left; ``Engine`` is one."""

    def holds_work(self) -> bool:
        """Whether something is mounted, or staged bytes still have to reach an origin."""

    def stop(self) -> None: ...


async def stop_when_idle(worker: Worker, clients: Clients, idle_timeout_s: float) -> None:
    """Stop ``worker`` after ``idle_timeout_s`` in one piece without clients, mounts and dirty files."""
    while True:
        await clients.wait_deserted()
        with trio.move_on_after(idle_timeout_s) as quiet:
            await clients.wait_arrival()
        if quiet.cancelled_caught and not worker.holds_work():
            log.info("idle for %g s: ending", idle_timeout_s)
            worker.stop()
            return
