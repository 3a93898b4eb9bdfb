"""The engine's end of the channel to its supervisor: what shall outlive it is handed over, and taken back."""

from __future__ import annotations

import logging
import socket
from typing import Any, NamedTuple

import trio

from tiercache.engine.supervisor.channel import Message, close_all, receive, send

RELEASE_TIMEOUT_S = 5.0
"""How long the supervisor may take to give a mount's descriptors up."""

log = logging.getLogger("tiercache.engine")


class Inherited(NamedTuple):
    """A mount that an earlier engine made. Its descriptors belong to whoever takes it."""

    id: str
    description: Message
    descriptors: tuple[int, ...]


class Keeper:
    """Knows whether there is a supervisor. Without one (an engine in a user's process) nothing is kept."""

    def __init__(self, channel: socket.socket | None = None, *, supervisor_pid: int = 0, restarts: int = 0) -> None:
        self._channel = channel
        self._released: dict[str, trio.Event] = {}
        self.supervisor_pid = supervisor_pid
        """0 when there is none (any more)."""
        self.restarts = restarts
        """How many engines this supervisor has replaced."""
        self.inherited: list[Inherited] = []
        """What the engine before this one left; whoever adopts a mount takes it out."""

    @classmethod
    def on(cls, descriptor: int) -> Keeper:
        """Read what the supervisor says at an engine's start."""
        channel = socket.socket(fileno=descriptor)
        channel.set_inheritable(False)
        keeper = cls(channel)
        while True:
            received = receive(channel)
            if received is None:
                keeper._lost()
                return keeper
            message, descriptors = received
            match message.pop("kind", None):
                case "hello":
                    keeper.supervisor_pid = message["supervisor"]
                    keeper.restarts = message["restarts"]
                case "mount":
                    keeper.inherited.append(Inherited(message.pop("id"), message, descriptors))
                case "begin":
                    channel.setblocking(False)
                    return keeper
                case _:
                    close_all(descriptors)

    @property
    def keeps(self) -> bool:
        """Whether what is handed over outlives this engine."""
        return self._channel is not None

    async def run(self) -> None:
        """Listen until the supervisor ends: then the engine goes on without."""
        while self._channel is not None:
            await trio.lowlevel.wait_readable(self._channel)
            try:
                received = receive(self._channel, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            if received is None:
                log.warning(
                    "the supervisor (pid %d) has ended: the mounts go on, but would not outlive this engine any more; "
                    "to get another one, stop this engine when it suits",
                    self.supervisor_pid,
                )
                self._lost()
                return
            message, descriptors = received
            close_all(descriptors)
            if message.get("kind") == "released":
                waiting = self._released.pop(message["id"], None)
                if waiting is not None:
                    waiting.set()

    def ready(self) -> None:
        """Tell that this engine came up: the next one is started at once if it crashes."""
        self._send({"kind": "ready"})

    def hold(self, mount: str, description: dict[str, Any], descriptors: tuple[int, ...] = ()) -> bool:
        """Hand a mount over, or change what is known of it; False when it will not outlive this engine. The caller
        keeps its own descriptors."""
        return self._send({"kind": "hold", "id": mount, **description}, descriptors)

    async def release(self, mount: str) -> None:
        """Take a mount back; returns when the supervisor has closed its descriptors, so that ours are the last."""
        released = self._released[mount] = trio.Event()
        if self._send({"kind": "release", "id": mount}):
            with trio.move_on_after(RELEASE_TIMEOUT_S) as patience:
                await released.wait()
            if patience.cancelled_caught:
                log.error("the supervisor (pid %d) does not answer", self.supervisor_pid)
        self._released.pop(mount, None)

    def _send(self, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
        if self._channel is None:
            return False
        try:
            send(self._channel, message, descriptors)
        except (OSError, ValueError, TypeError) as error:
            log.warning("the supervisor (pid %d) could not be told: %s", self.supervisor_pid, error)
            return False
        return True

    def _lost(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        self.supervisor_pid = 0
        for waiting in self._released.values():
            waiting.set()

    def close(self) -> None:
        """Give up what nobody adopted."""
        for mount in self.inherited:
            close_all(mount.descriptors)
        self.inherited.clear()
