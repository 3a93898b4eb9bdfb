"""The engine's end of the socket, spoken to in plain frames."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.engines import PATIENCE_S, HttpOrigin, attached_client, small_config
from tiercache import ipc
from tiercache.client import Client
from tiercache.client.connection import Connection
from tiercache.config import Config
from tiercache.engine.requests import OPERATIONS, Call
from tiercache.engine.thread import stop_all
from tiercache.errors import EngineUnreachable


class Peer:
    """A client without manners."""

    def __init__(self, client: Client) -> None:
        sock = ipc.connect(client.cache_dir, PATIENCE_S)
        assert sock is not None
        self.socket = sock
        self._frames = ipc.FrameReader()

    def send(self, request: int, op: str, **arguments: Any) -> None:
        self.socket.sendall(ipc.pack({"id": request, "op": op, **arguments}))

    def receive(self) -> dict[str, Any] | None:
        """The next message, None at the end of the stream."""
        while (message := self._frames.next()) is None:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._frames.feed(data)
        return message

    def ask(self, request: int, op: str, **arguments: Any) -> Any:
        self.send(request, op, **arguments)
        message = self.receive()
        assert message is not None
        assert message["id"] == request
        return message.get("ok", message)

    def attach(self, url: str) -> tuple[int, bytes]:
        answer = self.ask(1, "attach", url=url, client="obstore", options={}, profile="general")
        return answer["namespace"], answer["root"]


@pytest.fixture
def peer(client: Client) -> Iterator[Peer]:
    client.status()  # the engine runs
    peer = Peer(client)
    yield peer
    peer.socket.close()


def test_hello_tells_who_and_where(peer: Peer, client: Client) -> None:
    hello = peer.ask(1, "hello", version=ipc.PROTOCOL_VERSION)
    assert hello["version"] == ipc.PROTOCOL_VERSION
    assert hello["pid"] != os.getpid()
    assert Path(hello["catalog"]).is_dir()
    assert hello["staging"] == str(client.cache_dir / "staging")


def test_an_unknown_operation_is_an_error_and_the_connection_lives(peer: Peer) -> None:
    assert peer.ask(1, "explode")["error"] == "Unsupported"
    assert peer.ask(2, "status")["engine"]


def test_wrong_arguments_are_an_error_and_the_connection_lives(peer: Peer) -> None:
    assert peer.ask(1, "lookup", colour="red")["error"] == "Broken"
    assert peer.ask(2, "lookup", namespace=10**6, key=b"x")["error"] == "Broken"
    assert peer.ask(3, "status")["engine"]


@pytest.mark.parametrize(
    "noise",
    [struct.pack("<I", 2**31), struct.pack("<I", 3) + b"\xc1\xc1\xc1", struct.pack("<I", 1) + b"\x01"],
    ids=["too long", "no msgpack", "no map"],
)
def test_a_malformed_frame_ends_that_connection_only(peer: Peer, client: Client, noise: bytes) -> None:
    other = Peer(client)
    peer.socket.sendall(noise)
    assert peer.receive() is None
    assert other.ask(1, "status")["engine"]
    other.socket.close()


def test_a_waiting_request_delays_no_other_of_its_connection(peer: Peer, http: HttpOrigin) -> None:
    http.objects.update(slow=b"s" * 100, fast=b"f" * 100)
    number, _ = peer.attach(http.url)
    http.hold("slow")
    peer.send(10, "open", namespace=number, key=b"slow")
    http.wait_until_asked("slow")
    assert peer.ask(11, "open", namespace=number, key=b"fast")["entry"]
    http.release("slow")
    message = peer.receive()
    assert message is not None
    assert message["id"] == 10
    assert message["ok"]["entry"]


def test_a_connection_has_a_bounded_number_of_requests_in_flight(peer: Peer, client: Client, http: HttpOrigin) -> None:
    """The request over the bound is not even read: a client that asks without end does not fill the engine."""
    names = [f"n{i}" for i in range(ipc.IN_FLIGHT_MAX)]
    http.objects.update(dict.fromkeys(names, b"x"))
    number, _ = peer.attach(http.url)
    for name in names:
        http.hold(name)
    for request, name in enumerate(names, 100):
        peer.send(request, "open", namespace=number, key=name.encode())
    for name in names:
        http.wait_until_asked(name)
    peer.send(999, "status")
    other = Peer(client)
    assert other.ask(1, "status")["engine"]
    other.socket.close()
    http.release(names[0])
    first = peer.receive()
    assert first is not None
    assert first["id"] == 100
    for name in names[1:]:
        http.release(name)
    rest = {message["id"] for _ in names if (message := peer.receive())}
    assert rest == {*range(101, 100 + len(names)), 999}


def test_a_client_that_takes_no_answers_keeps_nobody_waiting(client: Client, tree: Path) -> None:
    """Answers of megabytes that nobody reads fill this connection's own buffers and go no further."""
    lazy = Peer(client)
    lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    number, root = lazy.attach(str(tree))
    entry = lazy.ask(2, "open", namespace=number, key=root + b"/many")["entry"]
    where = {"namespace": number, "key": root + b"/many", "etag": ipc.entry_of(entry).etag, "size": 17_000_001}
    for request in range(10, 10 + ipc.IN_FLIGHT_MAX):
        lazy.send(request, "read", **where, offset=0, length=ipc.DATA_CHUNK_BYTES, reader=b"")
    other = Peer(client)
    assert other.ask(1, "status")["engine"]
    other.socket.close()
    for _ in range(ipc.IN_FLIGHT_MAX):
        message = lazy.receive()
        assert message is not None
        assert len(message["ok"]) == ipc.DATA_CHUNK_BYTES
    lazy.socket.close()


def test_a_notice_is_never_answered(peer: Peer) -> None:
    peer.send(ipc.NOTICE, "touched", ids=[b"x" * 16], tiers=b"\x01")
    peer.send(ipc.NOTICE, "explode")
    assert peer.ask(5, "status")["engine"]


def test_what_a_connection_staged_and_did_not_publish_goes_with_it(peer: Peer, client: Client, tree: Path) -> None:
    number, root = peer.attach(str(tree))
    made = peer.ask(2, "create", namespace=number, key=root + b"/new", exclusive=False, keep=False)
    Path(made["path"]).write_bytes(b"unfinished")
    other = Peer(client)
    assert other.ask(1, "publish", staged=made["staged"])["error"] == "Absent"
    other.socket.close()
    peer.socket.close()
    # Requests after the end of a connection are served after its clean-up has begun; drain waits for nothing of it.
    watcher = Peer(client)
    while Path(made["path"]).exists():
        watcher.ask(1, "status")
    watcher.socket.close()
    assert not (tree / "new").exists()


def test_a_listing_arrives_in_parts(peer: Peer, tmp_path: Path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for name in range(ipc.PART_ENTRIES + 10):
        (many / f"{name:05}").touch()
    number, root = peer.attach(str(many))
    peer.send(2, "list", namespace=number, key=root)
    names: list[bytes] = []
    parts = 0
    while (message := peer.receive()) is not None and "ok" not in message:
        parts += 1
        names += [name for name, _ in message["part"]]
    assert message is not None
    assert message["ok"] == len(names) == len(set(names)) == ipc.PART_ENTRIES + 10
    assert parts == 2


def test_clients_over_the_limit_are_told_so(tmp_path: Path) -> None:
    config = small_config(tmp_path, **{"engine.max_clients": 2})
    with attached_client(config) as client:
        client.status()
        second = Peer(client)
        other = Client(config)
        with second.socket:
            second.ask(1, "status")
            with pytest.raises(EngineUnreachable, match=r"has 2 clients already: raise engine.max_clients"):
                other.status()


def test_a_refusal_is_told_also_when_the_engine_closes_before_the_client_has_spoken(tmp_path: Path) -> None:
    ours, engines = socket.socketpair()
    with ours:
        with engines:
            engines.sendall(ipc.pack(ipc.error_frame(ipc.NOTICE, EngineUnreachable("it has 2 clients already"))))
        with pytest.raises(EngineUnreachable, match=r"^it has 2 clients already$"):
            Connection(ours, tmp_path, PATIENCE_S)


def test_an_engine_of_an_earlier_release_is_told_with_what_to_do(
    config: Config, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It speaks the same protocol, so that commands can replace it, and lacks what clients need by now."""
    now = OPERATIONS["attach"]

    async def attach(call: Call, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await now.handler(call, **arguments)
        del answer["promises"]
        return answer

    monkeypatch.setitem(OPERATIONS, "attach", now._replace(handler=attach))
    client = Client(config, mode="inprocess")
    with pytest.raises(EngineUnreachable, match="of an earlier release: replace it with `tiercache restart"):
        client.attach(str(tree))
    client.close()
    stop_all()
