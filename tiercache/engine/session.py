"""One client's connection as the engine serves it: bounded, in any order, and nothing of it left when it ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import trio

from tiercache import ipc
from tiercache.engine.namespace import Namespace
from tiercache.engine.requests import OPERATIONS, Call, Nature
from tiercache.engine.requests.files import discard_all
from tiercache.engine.requests.registry import Shared
from tiercache.errors import Broken, Busy, NoSpace, TierCacheError, Unsupported, errno_of
from tiercache.ipc import Message
from tiercache.memory import Purpose

RECEIVE_BYTES: Final = 64 * 1024

SEND_TIMEOUT_S: Final = 60.0
"""A client that does not take a reply for this long is given up."""

log = logging.getLogger("tiercache.engine")


class Session:
    """Serves one connection. At most ``IN_FLIGHT_MAX`` requests and as many replies exist at a time."""

    def __init__(self, stream: trio.abc.Stream, shared: Shared, changes: trio.Nursery) -> None:
        self._stream = stream
        self._shared = shared
        self._changes = changes
        """The server's nursery: a change that has begun is finished there even when its client leaves."""
        self._slots = trio.Semaphore(ipc.IN_FLIGHT_MAX)
        self._sending = trio.Lock()
        self._served: set[int] = set()
        """Ids of the requests in flight."""
        self.staged: dict[int, Namespace] = {}
        self.afterwards: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Serve until the client leaves or breaks the protocol; never raises for what a client does."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heartbeat)
                async for message in self._messages():
                    await self._slots.acquire()
                    self._served.add(message["id"])
                    nursery.start_soon(self._serve, message)
                nursery.cancel_scope.cancel()
        except* ipc.ProtocolError as errors:
            log.warning("a client broke the protocol: %s", errors.exceptions[0])
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            log.debug("a client left while it was served")
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)
                await self._discard_staged()

    async def _discard_staged(self) -> None:
        try:
            await discard_all(list(self.staged.items()))
        except TierCacheError as error:
            log.warning("what a client left unpublished could not be discarded: %s", error)

    async def _messages(self) -> AsyncIterator[Message]:
        frames = ipc.FrameReader(ipc.MAX_REQUEST_BYTES)
        while True:
            while (message := frames.next()) is not None:
                yield message
            data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                return
            frames.feed(data)

    async def _serve(self, message: Message) -> None:
        request = message.pop("id")
        charges: list[int] = []
        try:
            reply = await self._answer(request, message, charges)
            if request != ipc.NOTICE:
                await self._send(reply)
            while self.afterwards:
                self.afterwards.pop()()
        finally:
            self._served.discard(request)
            self._slots.release()
            for charge in charges:
                self._shared.engine.memory.release(Purpose.REPLY, charge)

    async def _answer(self, request: int, message: Message, charges: list[int]) -> Message:
        name = message.pop("op", None)
        try:
            return {"id": request, "ok": await self._perform(request, name, message, charges)}
        except TierCacheError as error:
            return ipc.error_frame(request, error)
        except OSError as error:
            kind = NoSpace if errno_of(error) == errno_of(NoSpace()) else Broken
            return ipc.error_frame(request, kind(f"the engine failed in {name}: {error}"))
        except Exception as error:
            known = _domain_error(error)
            if known is None:
                log.exception("a bug showed itself in %s", name)
                known = Broken(f"the engine failed in {name} ({type(error).__name__}: {error}): see its log")
            return ipc.error_frame(request, known)

    async def _perform(self, request: int, name: object, arguments: dict[str, Any], charges: list[int]) -> Any:
        operation = OPERATIONS.get(name) if isinstance(name, str) else None
        if operation is None:
            raise Unsupported(f"the engine knows no operation {name!r}")

        async def send(kind: str, value: Any) -> None:
            await self._send({"id": request, kind: value})

        call = Call(self._shared, self, send, charges)
        match operation.nature:
            case Nature.LONG:
                return await operation.handler(call, **arguments)
            case Nature.CHANGE:
                answer = await self._finish(lambda: operation.handler(call, **arguments))
                # Whoever is answered may look at a mount at once.
                await self._shared.engine.mounts.told()
                return answer
            case Nature.READ:
                limit_s = self._shared.engine.config.engine.request_timeout_s
                with trio.move_on_after(limit_s):
                    return await operation.handler(call, **arguments)
                raise Busy(f"{name} did not end within {limit_s:g} s (engine.request_timeout_s)")

    async def _finish(self, change: Any) -> Any:
        """Run a change where the end of this connection does not cancel it half-way."""
        done = trio.Event()
        result: Any = None
        failure: Exception | None = None

        async def run() -> None:
            nonlocal result, failure
            try:
                result = await change()
            except Exception as error:
                failure = error
            finally:
                done.set()

        self._changes.start_soon(run)
        # Shielded: the files that this connection leaves behind are discarded when no change works on them any more.
        with trio.CancelScope(shield=True):
            await done.wait()
        if failure is not None:
            raise failure
        return result

    async def _send(self, message: Message) -> None:
        try:
            frame = ipc.pieces(message)
        except ValueError as error:
            if "part" in message and len(message["part"]) > 1:
                middle = len(message["part"]) // 2
                await self._send({**message, "part": message["part"][:middle]})
                await self._send({**message, "part": message["part"][middle:]})
                return
            frame = ipc.pieces(ipc.error_frame(message["id"], Broken(f"the answer is too long: {error}")))
        async with self._sending:
            with trio.fail_after(SEND_TIMEOUT_S):
                for piece in frame:
                    await self._stream.send_all(piece)

    async def _heartbeat(self) -> None:
        """Long requests are no silence: a client that hears nothing knows that the engine hangs."""
        while True:
            await trio.sleep(ipc.HEARTBEAT_S)
            for request in list(self._served):
                if request != ipc.NOTICE:
                    await self._send({"id": request, "progress": {}})


def _domain_error(error: Exception) -> TierCacheError | None:
    """The first error of the domain inside a group that some nursery made."""
    if isinstance(error, TierCacheError):
        return error
    if isinstance(error, ExceptionGroup):
        return next(filter(None, map(_domain_error, error.exceptions)), None)
    return None
