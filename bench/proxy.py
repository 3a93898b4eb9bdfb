"""A slow line: a TCP proxy in a process of its own, which every target's requests go through alike.

It delays what clients send by the latency (a connection's first packet too) and lets all connections share one
bandwidth, both directions together. It knows nothing of HTTP but that client and server take turns and how a request
begins, so that it can count requests by their kind. What the server answers stays in the kernel (splice): the line
is to cost a machine of few cores less than the client and the server do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import trio

from tiercache.bench.slowness import Slowness
from tiercache.errors import ConfigError, TierCacheError

_CHUNK_BYTES = 256 * 1024
_IN_FLIGHT_CHUNKS = 256
"""What a delayed line holds for one connection."""
_START_DEADLINE_S = 30.0
_REQUEST_LINE_BYTES = 4096
"""Of a request so much is looked at."""


class Traffic(NamedTuple):
    """What went through since the start."""

    requests: int
    sent_bytes: int
    """From clients."""
    received_bytes: int
    gets: int = 0
    heads: int = 0
    lists: int = 0
    """Of an object store: requests for the keys below a prefix."""

    def since(self, before: Traffic) -> Traffic:
        return Traffic(*(now - then for now, then in zip(self, before, strict=True)))


class SlowLine:
    """The proxy's process; a context manager. ``endpoint`` is what clients use instead of the server's."""

    def __init__(self, endpoint: str, slowness: Slowness) -> None:
        """ConfigError if the endpoint is not plain HTTP: a TLS server would see a foreign host name."""
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(
                f"--simulate-origin: {endpoint or 'AWS'} cannot be slowed down; it works with a local S3 server, "
                "an http:// endpoint and a directory"
            )
        context = multiprocessing.get_context("spawn")
        self._counts = context.Array("Q", len(Traffic._fields))
        self._latency_s = context.Value("d", slowness.latency_s)
        self._ready, child = context.Pipe(duplex=False)
        arguments = (parts.hostname, parts.port or 80, slowness, self._latency_s, self._counts, child)
        self._process = context.Process(target=_run, args=arguments, daemon=True, name="tiercache-slow-line")
        self.endpoint = ""

    def __enter__(self) -> SlowLine:
        self._process.start()
        if not self._ready.poll(_START_DEADLINE_S):
            raise TierCacheError("the simulated line did not start")
        self.endpoint = f"http://127.0.0.1:{self._ready.recv()}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()
        self._ready.close()

    def set_latency(self, latency_s: float) -> None:
        """From now on."""
        self._latency_s.value = latency_s

    def traffic(self) -> Traffic:
        """The counts so far."""
        return Traffic(*self._counts[:])


class _Link:
    """One bandwidth for everything."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def carry(self, size_bytes: int) -> None:
        if self._bytes_per_s:
            self._free_at_s = max(self._free_at_s, trio.current_time()) + size_bytes / self._bytes_per_s
            await trio.sleep_until(self._free_at_s)


class _Proxy:
    def __init__(self, host: str, port: int, slowness: Slowness, latency_s: Any, counts: Any) -> None:
        self._host = host
        self._port = port
        self._latency_s = latency_s
        self._link = _Link(slowness.bandwidth_bytes_per_s)
        self._counts = counts

    async def serve(self, client: trio.SocketStream) -> None:
        try:
            await trio.sleep(self._latency_s.value)  # the handshake is a round trip of its own
            server = await trio.open_tcp_stream(self._host, self._port)
            async with client, server:
                await _Pair(client, server).run(self._forward_requests, self._forward_answers)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one of the two has gone

    async def _forward_requests(self, pair: _Pair) -> None:
        entry, exit_ = trio.open_memory_channel[tuple[float, bytes]](_IN_FLIGHT_CHUNKS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_when_due, exit_, pair.server)
            async with entry:
                async for data in _chunks(pair.client):
                    if pair.clients_turn():
                        self._count(data)
                    self._counts[1] += len(data)
                    await entry.send((trio.current_time() + self._latency_s.value, data))

    def _count(self, request: bytes) -> None:
        self._counts[0] += 1
        kind = kind_of(request)
        if kind:
            self._counts[Traffic._fields.index(kind)] += 1

    async def _send_when_due(self, exit_: trio.MemoryReceiveChannel[tuple[float, bytes]], server: Stream) -> None:
        async for due_s, data in exit_:
            await trio.sleep_until(due_s)
            await self._link.carry(len(data))
            await server.send_all(data)

    async def _forward_answers(self, pair: _Pair) -> None:
        with _Pipe() as pipe:
            while size_bytes := await pipe.fill(pair.server):
                pair.servers_turn()
                self._counts[2] += size_bytes
                await self._link.carry(size_bytes)
                await pipe.drain(pair.client, size_bytes)


Stream = trio.SocketStream


def kind_of(request: bytes) -> str:
    """The field of Traffic that counts a request by its kind; empty if there is none."""
    method, _, rest = request[:_REQUEST_LINE_BYTES].partition(b" ")
    target = rest.partition(b" ")[0]
    if method == b"HEAD":
        return "heads"
    if method != b"GET":
        return ""
    query = target.partition(b"?")[2]
    return "lists" if any(part.startswith((b"list-type=", b"prefix=")) for part in query.split(b"&")) else "gets"


class _Pipe:
    """Bytes on their way from one socket to another that this process never sees."""

    def __enter__(self) -> _Pipe:
        self._out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._out)
        os.close(self._in)

    async def fill(self, source: Stream) -> int:
        """Take what is there, at least one byte; 0 at the end."""
        while True:
            try:
                return os.splice(source.socket.fileno(), self._in, _CHUNK_BYTES, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(source.socket)

    async def drain(self, target: Stream, size_bytes: int) -> None:
        """Send all of it."""
        while size_bytes:
            try:
                size_bytes -= os.splice(self._out, target.socket.fileno(), size_bytes, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(target.socket)


class _Pair:
    """The two ends of one connection, and whose turn it is."""

    def __init__(self, client: Stream, server: Stream) -> None:
        self.client = client
        self.server = server
        self._answered = True

    def clients_turn(self) -> bool:
        """True for the first bytes of a request."""
        begins, self._answered = self._answered, False
        return begins

    def servers_turn(self) -> None:
        self._answered = True

    async def run(self, *forwarders: Callable[[_Pair], Awaitable[None]]) -> None:
        """Until one side ends."""
        async with trio.open_nursery() as nursery:

            async def run_one(forward: Callable[[_Pair], Awaitable[None]]) -> None:
                await forward(self)
                nursery.cancel_scope.cancel()

            for forward in forwarders:
                nursery.start_soon(run_one, forward)


async def _chunks(stream: Stream) -> Any:
    while data := await stream.receive_some(_CHUNK_BYTES):
        yield data


def _run(host: str, port: int, slowness: Slowness, latency_s: Any, counts: Any, ready: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us when it is done
    trio.run(_serve, _Proxy(host, port, slowness, latency_s.get_obj(), counts.get_obj()), ready)


async def _serve(proxy: _Proxy, ready: Connection) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    ready.send(listeners[0].socket.getsockname()[1])
    ready.close()
    async with trio.open_nursery() as nursery:
        await trio.serve_listeners(proxy.serve, listeners, handler_nursery=nursery)
