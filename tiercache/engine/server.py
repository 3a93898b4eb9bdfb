"""The engine's end of the socket: accepts clients, bounds their number, knows when there are none."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from tiercache import ipc
from tiercache.engine.requests.registry import Shared
from tiercache.engine.session import Session
from tiercache.errors import EngineUnreachable

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

BACKLOG: Final = 128

log = logging.getLogger("tiercache.engine")


class Server:
    """Listens on ``cache_dir/engine.sock`` for the one engine that holds its lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clients = 0
        self._shared = Shared(engine, lambda: self._clients)
        self._deserted = trio.Event()
        self._deserted.set()
        self._arrived = trio.Event()

    @property
    def clients(self) -> int:
        """How many connections there are."""
        return self._clients

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started when clients can connect. The socket's name goes when it ends."""
        cache_dir = self._engine.config.cache_dir
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(ipc.listening_socket(cache_dir, BACKLOG)))
        try:
            async with trio.open_nursery() as changes:
                self._changes = changes
                await changes.start(trio.serve_listeners, self._serve, [listener])
                task_status.started()
        finally:
            with suppress(FileNotFoundError):
                os.unlink(cache_dir / ipc.SOCKET_NAME)

    async def _serve(self, stream: trio.SocketStream) -> None:
        limit = self._engine.config.engine.max_clients
        if self._clients >= limit:
            await self._refuse(stream, limit)
            return
        self._enter()
        try:
            await Session(stream, self._shared, self._changes).run()
        finally:
            self._leave()

    def _enter(self) -> None:
        self._clients += 1
        if self._clients == 1:
            self._deserted = trio.Event()
            self._arrived.set()

    def _leave(self) -> None:
        self._clients -= 1
        if not self._clients:
            self._arrived = trio.Event()
            self._deserted.set()

    async def _refuse(self, stream: trio.SocketStream, limit: int) -> None:
        text = f"the engine (pid {os.getpid()}) has {limit} clients already: raise engine.max_clients"
        error = EngineUnreachable(text)
        log.warning("%s", error)
        with trio.move_on_after(1.0), suppress(trio.BrokenResourceError):
            await stream.send_all(ipc.pack(ipc.error_frame(ipc.NOTICE, error)))
        await trio.aclose_forcefully(stream)

    async def wait_deserted(self) -> None:
        """Return when no client is connected."""
        await self._deserted.wait()

    async def wait_arrival(self) -> None:
        """Return when a client connects, at once if one is connected."""
        await self._arrived.wait()
