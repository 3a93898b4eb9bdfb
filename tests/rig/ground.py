"""The fsspec filesystem over two real origins, a file tree and an S3 server, with a real engine process: fixtures."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tiercache.bench.s3server import S3Server, client, make_bucket
from tiercache.client import connect
from tiercache.config import load_config
from tiercache.filesystem import TierCacheFileSystem

BUCKET = "filesystem"


class Ground(NamedTuple):
    """An origin to play on: our filesystem, a fresh path in it, and a way past it to the origin itself."""

    fs: TierCacheFileSystem
    path: str
    protocol: str
    options: dict[str, Any]
    direct: Any

    def read(self, name: str) -> bytes:
        """What the origin itself holds."""
        return bytes(self.direct.read(f"{self.path}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        """Put an object into the origin, past our filesystem."""
        self.direct.write(f"{self.path}/{name}", data)

    def drain(self) -> None:
        """Wait until the origin has all that was written."""
        drain(self.fs)

    @property
    def storage_options(self) -> dict[str, Any]:
        return dict(self.fs.storage_options)


class LocalDirect:
    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(path + ".new")
        temporary.write_bytes(data)
        temporary.rename(path)


class S3Direct:
    def __init__(self, server: S3Server) -> None:
        self._s3 = client(server)

    def read(self, path: str) -> bytes:
        bucket, _, key = path.partition("/")
        return bytes(self._s3.get_object(Bucket=bucket, Key=key)["Body"].read())

    def write(self, path: str, data: bytes) -> None:
        bucket, _, key = path.partition("/")
        self._s3.put_object(Bucket=bucket, Key=key, Body=data)


def drain(fs: TierCacheFileSystem) -> None:
    result = connect(fs._config).drain(deadline_s=60)
    assert not result["left"], result
    assert not result["errors"], result


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory with an engine of its own, ended with the session."""
    directory = tmp_path_factory.mktemp("cache")
    yield directory
    connect(load_config(overrides={"cache_dir": directory})).stop()


@pytest.fixture(scope="session")
def bucket(s3_server: S3Server) -> str:
    make_bucket(s3_server, BUCKET)
    return BUCKET


@pytest.fixture(params=["local", "s3"])
def ground(request: pytest.FixtureRequest, cache_dir: Path, tmp_path: Path) -> Ground:
    return make_ground(request, request.param, cache_dir, tmp_path)


@pytest.fixture
def local(request: pytest.FixtureRequest, cache_dir: Path, tmp_path: Path) -> Ground:
    return make_ground(request, "local", cache_dir, tmp_path)


@pytest.fixture
def s3(request: pytest.FixtureRequest, cache_dir: Path, tmp_path: Path) -> Ground:
    return make_ground(request, "s3", cache_dir, tmp_path)


def make_ground(request: pytest.FixtureRequest, kind: str, cache_dir: Path, tmp_path: Path, **options: Any) -> Ground:
    if kind == "local":
        fs = TierCacheFileSystem(target_protocol="file", cache_dir=str(cache_dir), **options)
        path = tmp_path / "origin"
        path.mkdir()
        return Ground(fs, str(path), "file", {}, LocalDirect())
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = request.getfixturevalue("bucket")
    target = server.options()
    fs = TierCacheFileSystem(target_protocol="s3", target_options=target, cache_dir=str(cache_dir), **options)
    return Ground(fs, f"{bucket}/{uuid.uuid4().hex}", "s3", target, S3Direct(server))
