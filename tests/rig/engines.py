"""A real engine process on a small cache, an origin whose answers a test can hold back, waiting without sleeping."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tiercache.client import Client, connect
from tiercache.config import Config, load_config
from tiercache.engine.lock import owner_pid
from tiercache.errors import TierCacheError

PATIENCE_S = 30.0
"""Only how long a broken test takes to fail."""


def small_config(directory: Path, **settings: Any) -> Config:
    """A cache of a few hundred megabytes, all of it below ``directory``."""
    sizes = {
        "ram.capacity": "64MiB",
        "ram.directory": str(directory / "ram"),
        "nvme.capacity": "256MiB",
        "nvme.free_space_floor": "0",
        "staging.capacity": "128MiB",
        "engine.stop_drain_s": 0,
        "fetch.retry_deadline_s": 2,
        "scan.files_max": 0,  # what is fetched is counted
    }
    return load_config(None, {"cache_dir": str(directory / "cache"), **sizes, **settings})


class Ended:
    """Waits for the end of a process that is not our child."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def wait(self, timeout_s: float = PATIENCE_S) -> bool:
        ended = bool(select.select([self._descriptor], [], [], timeout_s)[0])
        os.close(self._descriptor)
        return ended


def stop_engine(config: Config, client: Client | None = None) -> None:
    """End the engine of a cache directory, if there is one, and wait for its end."""
    pid = owner_pid(config.cache_dir)
    if not pid or pid == os.getpid():
        return
    with suppress(ProcessLookupError):
        ended = Ended(pid)
        asking = client or Client(config, mode="attach")
        with suppress(TierCacheError):
            asking.stop()
        if client is None:
            asking.close()
        assert ended.wait(), (config.cache_dir / "engine.log").read_text()


@contextmanager
def stopped(cache_dir: Path) -> Iterator[None]:
    """An engine that is not dead, and answers nothing."""
    pid = owner_pid(cache_dir)
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def attached_client(config: Config) -> Iterator[Client]:
    """A client of an engine that ends with it."""
    client = Client(config)
    try:
        yield client
    finally:
        # On a connection that exists: a new one might be over a limit that the test has set.
        stop_engine(config, client)
        client.close()


def status_pid(settings: dict[str, Any], together: Any, results: Any) -> None:
    """In a process of its own: ask for the engine at the same moment as others."""
    client = Client(Config.model_validate(settings))
    together.wait()
    results.put(client.status()["engine"]["pid"])


class HttpOrigin:
    """Serves bytes by name; requests for a held name wait until it is released."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self._held: dict[str, threading.Event] = {}
        self._asked: dict[str, threading.Event] = {}
        origin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, *, body: bool) -> None:
                name = self.path.strip("/")
                data = origin.objects.get(name)
                if body:
                    origin.requests[name] += 1
                    origin.wait_if_held(name)
                if data is None:
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                total = len(data)
                self.send_response(206 if "Range" in self.headers else 200)
                if "Range" in self.headers:
                    first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                    end = int(last) if last else total - 1
                    data = data[int(first) : end + 1]
                    self.send_header("Content-Range", f"bytes {first}-{int(first) + len(data) - 1}/{total}")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("ETag", f'"{hash(origin.objects[name]) & 0xFFFFFFFF:08x}"')
                self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
                self.send_header("Accept-Ranges", "bytes")
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def hold(self, name: str) -> None:
        self._asked[name] = threading.Event()
        self._held[name] = threading.Event()

    def wait_until_asked(self, name: str) -> None:
        assert self._asked[name].wait(PATIENCE_S)

    def release(self, name: str) -> None:
        self._held.pop(name).set()

    def wait_if_held(self, name: str) -> None:
        held = self._held.get(name)
        if held is not None:
            self._asked[name].set()
            held.wait(PATIENCE_S)

    def close(self) -> None:
        for held in self._held.values():
            held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def read_and_write(directory: str, tree: str, name: str) -> bytes:
    """In a worker process: what a data loader's worker does."""
    origin = connect(small_config(Path(directory))).attach(tree)
    with origin.create(origin.root + b"/" + name.encode()) as writer:
        writer.write(name.encode())
    return origin.cat(origin.root + b"/picture")
