"""A real engine in the test's own trio loop, over a file tree and over an S3 server."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from tiercache.bench.s3server import S3Server
from tiercache.config import Config
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent
from tiercache.model import Key, Kind
from tiercache.origins import Origin, Source, Upload, open_origin


@dataclass
class Ground:
    """Where a test plays: an origin that can be changed past the engine, and engines on one cache directory."""

    url: str
    options: dict[str, Any]
    cache_dir: Path
    scratch: Path
    direct: Origin
    root: Key
    settings: dict[str, Any] = field(default_factory=dict)

    def key(self, name: str) -> Key:
        return self.root + b"/" + os.fsencode(name)

    def path(self, name: str) -> str:
        """Where a file tree has the file."""
        return "/" + os.fsdecode(self.key(name))

    @asynccontextmanager
    async def started(self, **settings: Any) -> AsyncIterator[Engine]:
        """A started engine that nobody has attached an origin to; stopped, not drained, at the end."""
        config = Config.model_validate(
            {
                "cache_dir": self.cache_dir,
                "ram": {"capacity": "8MiB", "directory": self.scratch / "ram"},
                "nvme": {"capacity": "256MiB", "free_space_floor": 0},
                "staging": {"capacity": "256MiB"},
                "engine": {"stop_drain_s": 0},
                "checkpoints": {"settle_s": 0},
                "scan": {"files_max": 0},  # what is fetched is counted
                **self.settings,
                **settings,
            }
        )
        engine = Engine(config)
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            try:
                yield engine
            finally:
                engine.stop()

    @asynccontextmanager
    async def engine(self, profile: str = "general", **settings: Any) -> AsyncIterator[tuple[Engine, Namespace]]:
        """The same, and the namespace of the origin."""
        async with self.started(**settings) as engine:
            namespace, _ = await engine.attach(self.url, options=self.options, profile=profile)
            yield engine, namespace

    def put(self, name: str, data: bytes) -> None:
        """Write past the engine."""
        source = self.scratch / uuid.uuid4().hex
        source.write_bytes(data)
        self.direct.write(self.key(name), Upload(Source(str(source), len(data))))
        source.unlink()

    def get(self, name: str) -> bytes:
        """Read past the engine."""
        stat = self.direct.stat(self.key(name))
        return bytes(self.direct.read(self.key(name), 0, stat.size_bytes, stat.etag)) if stat.size_bytes else b""

    def names(self) -> list[str]:
        """All files that the origin has, past the engine."""
        prefix = len(self.root) + 1
        try:
            return sorted(os.fsdecode(s.key[prefix:]) for s in self.direct.walk(self.root) if s.kind is Kind.FILE)
        except Absent:
            return []


@pytest.fixture(params=["posix", "s3"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return make_ground(request.param, request, tmp_path)


@pytest.fixture
def s3_ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return make_ground("s3", request, tmp_path)


@pytest.fixture
def posix_ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return make_ground("posix", request, tmp_path)


def make_ground(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    if kind == "posix":
        (tmp_path / "origin").mkdir()
        url, options = str(tmp_path / "origin"), {}
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        url, options = f"s3://{request.getfixturevalue('s3_bucket').name}/{uuid.uuid4().hex}", dict(server.options())
    direct, root = open_origin(url, options=options)
    request.addfinalizer(direct.close)
    return Ground(url, options, tmp_path / "cache", scratch, direct, root)


async def write_file(namespace: Namespace, key: Key, data: bytes, *, mode: int = 0o644) -> None:
    """create, write, close: as a mount does it."""
    _, handle = await namespace.create(key, mode=mode, uid=os.getuid(), gid=os.getgid(), truncate=True)
    try:
        if data:
            await handle.write(0, data)
        await handle.flush()
    finally:
        await handle.close()


async def read_file(namespace: Namespace, key: Key) -> bytes:
    handle = await namespace.open((await namespace.lookup(key)).inode)
    try:
        parts = []
        while part := bytes(await handle.read(sum(map(len, parts)), 1 << 20)):
            parts.append(part)
        return b"".join(parts)
    finally:
        await handle.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what comes by itself."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await trio.sleep(0.001)


Scenario = Callable[[], Awaitable[None]]


def run(scenario: Scenario, *, limit_s: float = 60.0) -> None:
    """Run an asynchronous test; one that hangs fails."""

    async def bounded() -> None:
        with trio.fail_after(limit_s):
            await scenario()

    trio.run(bounded)
