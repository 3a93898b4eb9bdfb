"""An HTTP proxy in front of the S3 server that does what networks and stores do on bad days, on request."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rig.s3_limits import ScaledLimits, ScaledStore
from rig.s3_requests import Answer, Request, error, parse
from tiercache.bench.s3server import S3Server, client

Forward = Callable[[], Answer]
Act = Callable[[Request, Forward], Answer]

_GATE_DEADLINE_S = 30.0


class Logged(NamedTuple):
    """One line of the request log."""

    operation: str
    method: str
    key: bytes
    range: str
    if_match: str
    status: int
    """0 when the connection was ended without an answer."""


class Gate:
    """Holds requests. A test waits for ``reached`` and then lets them go by ``open``."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def wait_reached(self) -> None:
        """Return once a request stands at the gate."""
        assert self._reached.wait(_GATE_DEADLINE_S), "no request came to the gate"

    def open(self) -> None:
        """Let all held and later requests pass."""
        self._open.set()

    def pass_through(self) -> None:
        self._reached.set()
        self._open.wait(_GATE_DEADLINE_S)


class FaultProxy:
    """Faults are rules; each applies to ``times`` requests (None: all) that match operation and key.

    Operations have S3's names (GetObject, HeadObject, ListObjects, UploadPart, …). Rules nest: the newest is outermost.
    The Host header goes on as the client sent it, since the signature covers it.
    """

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._s3 = client(server)
        self._upstream = urlsplit(server.endpoint).netloc
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._log: list[Logged] = []
        self._gates: list[Gate] = []
        self._in_flight = 0
        self._most_in_flight = 0
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._http = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def server(self) -> S3Server:
        """The server as clients of the proxy see it: its keys, the proxy's endpoint."""
        return self._server._replace(endpoint=self.endpoint)

    def options(self) -> dict[str, str]:
        """The s3fs-style options that lead through the proxy."""
        return self.server.options()

    def close(self) -> None:
        self.clear()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    # what tests look at

    @property
    def log(self) -> list[Logged]:
        """Every request so far, in the order of their answers."""
        with self._lock:
            return list(self._log)

    def count(self, operation: str = "", key: bytes | None = None) -> int:
        """How many requests of this kind there were."""
        return sum(
            (not operation or each.operation == operation) and (key is None or each.key == key) for each in self.log
        )

    def forget(self) -> None:
        """Empty the log."""
        with self._lock:
            self._log.clear()
            self._most_in_flight = 0

    @property
    def most_in_flight(self) -> int:
        """The largest number of requests that were under way at one time."""
        return self._most_in_flight

    # faults

    def add(self, act: Act, *, operation: str = "", key: bytes | None = None, times: int | None = None) -> None:
        """Any other fault: ``act`` gets the request and a function that forwards it."""
        with self._lock:
            self._rules.append(_Rule(act, operation, key, times))

    def clear(self) -> None:
        """End all faults and open all gates."""
        with self._lock:
            self._rules.clear()
            gates, self._gates = self._gates, []
        for gate in gates:
            gate.open()

    def answer(self, status: int, code: str = "", **which: Any) -> None:
        """Answer by an error instead of forwarding."""
        self.add(lambda request, forward: error(status, code), **which)

    def script(self, statuses: Iterable[int], **which: Any) -> None:
        """One status for each matching request in turn (200: forward it); after the last all is well."""
        turns = iter(list(statuses))

        def act(request: Request, forward: Forward) -> Answer:
            status = next(turns, 200)
            return forward() if status == 200 else error(status)

        self.add(act, **which)

    def lose_answer(self, **which: Any) -> None:
        """Do what is asked, then reset the connection: the client cannot know."""
        self.add(lambda request, forward: forward()._replace(after=0, reset=True), **which)

    def reset(self, **which: Any) -> None:
        """Reset the connection without doing anything."""
        self.add(lambda request, forward: Answer(0, (), b"", after=0, reset=True), **which)

    def cut(self, after: int, *, reset: bool = False, **which: Any) -> None:
        """End the connection after so many bytes of the body, by FIN or RST."""
        self.add(lambda request, forward: forward()._replace(after=after, reset=reset), **which)

    def delay(self, delay_s: float, **which: Any) -> None:
        """Be slow."""

        def act(request: Request, forward: Forward) -> Answer:
            time.sleep(delay_s)
            return forward()

        self.add(act, **which)

    def pause(self, **which: Any) -> Gate:
        """Hold requests before they are forwarded until the gate is opened."""
        gate = Gate()

        def act(request: Request, forward: Forward) -> Answer:
            gate.pass_through()
            return forward()

        with self._lock:
            self._gates.append(gate)
        self.add(act, **which)
        return gate

    def before(self, run: Callable[[], object], **which: Any) -> None:
        """Do something, such as replacing the object, before a request is forwarded."""

        def act(request: Request, forward: Forward) -> Answer:
            run()
            return forward()

        self.add(act, **which)

    def swap(self, bucket: str, key: str, data: bytes, *, at: int = 2) -> None:
        """Replace the object just before its GET number ``at``."""
        numbers = iter(range(1, 1 << 30))

        def run() -> None:
            if next(numbers) == at:
                self._s3.put_object(Bucket=bucket, Key=key, Body=data)

        self.before(run, operation="GetObject", key=key.encode())

    def ignore_range(self, **which: Any) -> None:
        """Answer a ranged GET by 200 and the whole body."""

        def act(request: Request, forward: Forward) -> Answer:
            answer = forward()
            if answer.status != 206:
                return answer
            whole = self._s3.get_object(Bucket=request.bucket, Key=request.key.decode())["Body"].read()
            headers = tuple((name, value) for name, value in answer.headers if name.lower() != "content-range")
            return answer._replace(status=200, headers=headers, body=whole)

        self.add(act, operation="GetObject", **which)

    def short_range(self, by: int = 1, *, honest: bool = True, **which: Any) -> None:
        """Answer a ranged GET by fewer bytes; ``honest`` says so in Content-Range."""

        def act(request: Request, forward: Forward) -> Answer:
            answer = forward()
            if answer.status != 206:
                return answer
            span, _, total = answer.header("content-range").removeprefix("bytes ").partition("/")
            first, _, last = span.partition("-")
            told = f"bytes {first}-{int(last) - by}/{total}" if honest else answer.header("content-range")
            return answer.with_headers(content_range=told)._replace(body=answer.body[:-by])

        self.add(act, operation="GetObject", **which)

    def error_document(self, code: str = "InternalError", **which: Any) -> None:
        """Answer Complete by 200 with an error in the body, as S3 does when it fails late."""
        which.setdefault("operation", "CompleteMultipartUpload")
        self.add(lambda request, forward: error(200, code), **which)

    def expire_credentials(self, access_key: str, *, after: int) -> None:
        """Refuse an access key from its request number ``after`` + 1 on."""
        numbers = iter(range(1, 1 << 30))

        def act(request: Request, forward: Forward) -> Answer:
            if f"Credential={access_key}/" in request.headers.get("authorization", "") and next(numbers) > after:
                return error(400, "ExpiredToken", "The provided token has expired.")
            return forward()

        self.add(act)

    def limit(self, limits: ScaledLimits) -> ScaledStore:
        """Enforce the store's limits, scaled down, so that "over 5 GiB" runs in a second. Add other faults after it."""
        store = ScaledStore(self._s3, limits)
        self.add(store.act)
        return store

    # the way of one request

    def handle(self, request: Request, forward: Forward) -> Answer:
        """Run a request through the rules and log it."""
        with self._lock:
            self._in_flight += 1
            self._most_in_flight = max(self._most_in_flight, self._in_flight)
            rules = [rule for rule in self._rules if rule.takes(request)]
        for rule in rules:
            forward = rule.around(request, forward)
        try:
            answer = forward()
        finally:
            with self._lock:
                self._in_flight -= 1
        headers = request.headers
        line = Logged(
            request.operation,
            request.method,
            request.key,
            headers.get("range", ""),
            headers.get("if-match", ""),
            0 if answer.after == 0 else answer.status,
        )
        with self._lock:
            self._log.append(line)
        return answer

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._upstream, timeout=60)


class _Rule:
    def __init__(self, act: Act, operation: str, key: bytes | None, times: int | None) -> None:
        self._act = act
        self._operation = operation
        self._key = key
        self._left = times

    def takes(self, request: Request) -> bool:
        """Whether the rule applies; if so it is used up by one. The caller holds the proxy's lock."""
        if self._operation and request.operation != self._operation:
            return False
        if self._key is not None and request.key != self._key:
            return False
        if self._left is not None:
            if not self._left:
                return False
            self._left -= 1
        return True

    def around(self, request: Request, forward: Forward) -> Forward:
        return lambda: self._act(request, forward)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy
    _connection: http.client.HTTPConnection | None = None

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = parse(self.command, self.path, dict(self.headers.items()), body)
        try:
            answer = self.proxy.handle(request, lambda: self._forward(body))
        except OSError:
            self.close_connection = True
            return
        with _going_away(self):
            self._send(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do

    def _forward(self, body: bytes) -> Answer:
        if self._connection is None:
            self._connection = self.proxy.connect()
        upstream = self._connection
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                upstream.putheader(name, value)
        upstream.endheaders(body or None)
        response = upstream.getresponse()
        headers = tuple(
            (n, v) for n, v in response.getheaders() if n.lower() not in ("transfer-encoding", "connection")
        )
        return Answer(response.status, headers, response.read())

    def _send(self, answer: Answer) -> None:
        if answer.after == 0 and answer.reset:
            self._end(reset=True)
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        length = answer.header("content-length") if self.command == "HEAD" else str(len(answer.body))
        if answer.status not in (204, 304):
            self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body if answer.after is None else answer.body[: answer.after])
        if answer.after is not None:
            self._end(reset=answer.reset)

    def _end(self, *, reset: bool) -> None:
        self.wfile.flush()
        self.close_connection = True
        if reset:  # linger of zero makes close() send RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        if self._connection is not None:
            self._connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """The proxy has its own log."""


@contextlib.contextmanager
def _going_away(handler: _Handler) -> Iterator[None]:
    try:
        yield
    except OSError:
        handler.close_connection = True
