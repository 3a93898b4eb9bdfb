"""Notices to the kernel that a name or file changed, sent off the request path by a thread of their own."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import trio

from tiercache.fuse.notices import Change

log = logging.getLogger(__name__)

QUEUE_LIMIT = 65_536
"""Notices that wait; past it they are dropped, and the kernel's timeouts do their work."""

PATIENCE_S = 1.0
"""How long a client's change waits until the kernel knows of it: a notice may wait for a request that hangs."""


class NoticeSender(Protocol):
    """A driver's way to reach the kernel. Both may block while a request on the same name is under way."""

    def invalidate_attributes(self, node: int) -> None: ...

    def invalidate_name(self, parent: int, name: bytes) -> None: ...


class Invalidator:
    """Never blocks the engine: the kernel may make a notice wait for a request that the engine still has to answer."""

    def __init__(self, sender: NoticeSender) -> None:
        self._sender = sender
        self._queue: queue.Queue[Change | Callable[[], None] | None] = queue.Queue(QUEUE_LIMIT)
        self._armed = True
        self._thread = threading.Thread(target=self._run, name="tiercache-notices", daemon=True)
        self._thread.start()

    def post(self, change: Change) -> None:
        """Queue a notice."""
        try:
            self._queue.put_nowait(change)
        except queue.Full:
            log.warning("too many changes at once: a notice to the kernel is dropped; its timeouts apply")

    async def told(self) -> None:
        """Return when the kernel has taken every notice posted before this call, or its patience ends."""
        if not self._armed:
            return
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()
        try:
            self._queue.put_nowait(lambda: token.run_sync_soon(done.set))
        except queue.Full:
            return
        with trio.move_on_after(PATIENCE_S):
            await done.wait()

    def disarm(self) -> None:
        """Send nothing more: the session is about to end, and a notice to a dying one can block for ever."""
        self._armed = False
        with contextlib.suppress(queue.Full):  # the thread looks at the flag after each of them
            self._queue.put_nowait(None)

    def _run(self) -> None:
        while self._armed:
            change = self._queue.get()
            if change is None or not self._armed:
                return
            if not isinstance(change, Change):
                with contextlib.suppress(trio.RunFinishedError):
                    change()
                continue
            try:
                self._send(change)
            except OSError as error:
                log.debug("notice for %r: %s; the kernel's timeouts apply", change, error)

    def _send(self, change: Change) -> None:
        for node in (change.node, change.parent):
            with contextlib.suppress(FileNotFoundError):  # the kernel does not know it, or forgot it
                self._sender.invalidate_attributes(node)
        if not change.in_use:
            with contextlib.suppress(FileNotFoundError):
                self._sender.invalidate_name(change.parent, change.name)
