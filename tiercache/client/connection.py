"""One blocking connection to the engine: a request at a time, or a short pipeline of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from tiercache import ipc
from tiercache.errors import EngineUnreachable
from tiercache.ipc import Message

RECEIVE_BYTES: Final = 256 * 1024


class ConnectionLost(EngineUnreachable):
    """The engine went away while it may have been serving the request."""


class NotSent(ConnectionLost):
    """The engine was gone before it could have seen the request: it is safe to send it to the next one."""


class Hello(NamedTuple):
    """What the engine says of itself when a connection begins."""

    run_id: int
    pid: int
    catalog: str
    staging: str
    tiers: tuple[str, ...]
    """Directory of each tier by its number."""
    verify: str


class Connection:
    """A socket whose frames are in step: after a broken exchange it closes itself."""

    def __init__(self, sock: socket.socket, cache_dir: Path, timeout_s: float) -> None:
        self._sock = sock
        self._cache_dir = cache_dir
        self._timeout_s = timeout_s
        self._frames = ipc.FrameReader()
        self._last_id = ipc.NOTICE
        self.closed = False
        sock.settimeout(timeout_s)
        try:
            self.hello = self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> Hello:
        try:
            reply = self.request("hello", {"version": ipc.PROTOCOL_VERSION})
        except ConnectionLost as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
            raise NotSent(str(error)) from error  # it was about to end when we came
        if reply["version"] != ipc.PROTOCOL_VERSION:
            raise EngineUnreachable(
                f"the engine of {self._cache_dir} (pid {reply['pid']}) is of another release: end it with "
                f"`tiercache stop --cache-dir {self._cache_dir}` and try again"
            )
        return Hello(
            run_id=reply["run_id"],
            pid=reply["pid"],
            catalog=reply["catalog"],
            staging=reply["staging"],
            tiers=tuple(reply["tiers"]),
            verify=reply["verify"],
        )

    def request(
        self,
        op: str,
        arguments: Message,
        *,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        on_part: Callable[[list[Any]], None] | None = None,
    ) -> Any:
        """Send one request and wait for its answer.

        The engine's domain errors are raised as they are; ConnectionLost when it ends or stays silent for the
        request timeout. It says every few seconds that it is still at work, so a long request is no silence.
        """
        return self.receive(self.send(op, arguments), on_progress=on_progress, on_part=on_part)

    def send(self, op: str, arguments: Message) -> int:
        """Send a request and return its id for ``receive``. At most ``2 * IN_FLIGHT_MAX`` may be unanswered."""
        self._last_id += 1
        frame = ipc.pack({"id": self._last_id, "op": op, **arguments})
        try:
            self._sock.sendall(frame)
        except ConnectionError as error:
            try:
                self._check_last_words()
            finally:
                self.close()
            raise NotSent(f"the engine of {self._cache_dir} has ended") from error
        except OSError as error:
            self.close()
            raise ConnectionLost(self._silence(op)) from error
        except BaseException:
            self.close()
            raise
        return self._last_id

    def receive(
        self,
        request: int,
        *,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        on_part: Callable[[list[Any]], None] | None = None,
    ) -> Any:
        """Wait for the answer to one sent request; answers to earlier ones that nobody fetched are dropped."""
        while True:
            try:
                message = self._next_message()
                if message["id"] != request:
                    self._check_refusal(message)
                    continue
                if "progress" in message:
                    if on_progress is not None and message["progress"]:
                        on_progress(message["progress"])
                    continue
                if "part" in message:
                    if on_part is not None:
                        on_part(message["part"])
                    continue
            except BaseException:
                self.close()
                raise
            if "error" in message:
                raise ipc.error_of(message)
            return message.get("ok")

    def _check_refusal(self, message: Message) -> None:
        # An error that belongs to no request is about the connection (too many clients).
        if message["id"] == ipc.NOTICE and "error" in message:
            raise ipc.error_of(message)

    def _check_last_words(self) -> None:
        # Whom the engine refuses, it tells so and closes, which may be before the client has sent anything.
        with suppress(ConnectionLost):
            while True:
                self._check_refusal(self._next_message())

    def _next_message(self) -> Message:
        while True:
            try:
                message = self._frames.next()
                if message is not None:
                    return message
                data = self._sock.recv(max(RECEIVE_BYTES, self._frames.pending_bytes()))
            except ipc.ProtocolError as error:
                raise ConnectionLost(f"the engine of {self._cache_dir} sent nonsense: {error}") from error
            except TimeoutError as error:
                raise ConnectionLost(self._silence("a request")) from error
            except OSError as error:
                raise ConnectionLost(f"the connection to the engine of {self._cache_dir} broke: {error}") from error
            if not data:
                raise ConnectionLost(f"the engine of {self._cache_dir} ended while it served a request")
            self._frames.feed(data)

    def notify(self, op: str, arguments: Message) -> bool:
        """Send a notice if that is possible without waiting; it is never answered and may be dropped."""
        frame = ipc.pack({"id": ipc.NOTICE, "op": op, **arguments})
        try:
            # A stream socket takes a frame of this size whole or not at all.
            sent = self._sock.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        if sent != len(frame):
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close this process's end; what it staged and did not publish is discarded by the engine."""
        self.closed = True
        with suppress(OSError):
            self._sock.close()

    def _silence(self, op: str) -> str:
        return f"the engine of {self._cache_dir} did not answer {op} within {self._timeout_s:g} s"
