"""Fixtures of real mounts: an engine process, an origin under it, and a watchdog that no test can hang behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.mounts import (
    BUCKET,
    WATCHDOG_S,
    EngineProcess,
    Mounted,
    Source,
    Watchdog,
    clean_up,
    is_mounted,
    make_source,
    mounted_for,
)
from rig.seaweedfs import S3Server, client, make_bucket


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One engine for all tests that do not harm it."""
    process = EngineProcess(tmp_path_factory.mktemp("cache"))
    yield process
    process.stop()


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[EngineProcess]:
    """An engine that the test may kill."""
    process = EngineProcess(tmp_path / "own-cache")
    yield process
    process.stop()


@pytest.fixture(scope="session")
def bucket_client(s3_server: S3Server) -> Any:
    make_bucket(s3_server, BUCKET)
    return client(s3_server)


@pytest.fixture(params=["posix", "s3"])
def source(request: pytest.FixtureRequest) -> Source:
    return make_source(request.param, request)


@pytest.fixture
def posix(request: pytest.FixtureRequest) -> Source:
    return make_source("posix", request)


@pytest.fixture
def s3(request: pytest.FixtureRequest) -> Source:
    return make_source("s3", request)


@pytest.fixture(params=["pyfuse3", "kernel"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mountpoint(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory to mount at; whatever is mounted there at the end is taken away, and the test fails."""
    path = tmp_path / "mount"
    path.mkdir()
    # A test with a timeout of its own has much to do. The abort comes first: what hangs in a mount cannot be ended.
    own = request.node.get_closest_marker("timeout")
    with Watchdog(path, limit_s=own.args[0] / 2 if own else WATCHDOG_S) as watchdog:
        yield path
    left = is_mounted(path)
    clean_up(path)
    assert not watchdog.fired, "the mount hung and was aborted"
    assert not left, "the test left its mount behind"


@pytest.fixture
def mounted(engine: EngineProcess, source: Source, driver: str, mountpoint: Path) -> Iterator[Mounted]:
    """Every origin under every driver."""
    yield from mounted_for(engine, source, mountpoint, driver)


@pytest.fixture
def on_posix(engine: EngineProcess, posix: Source, driver: str, mountpoint: Path) -> Iterator[Mounted]:
    yield from mounted_for(engine, posix, mountpoint, driver)


@pytest.fixture
def on_s3(engine: EngineProcess, s3: Source, driver: str, mountpoint: Path) -> Iterator[Mounted]:
    yield from mounted_for(engine, s3, mountpoint, driver)


@pytest.fixture
def root(mounted: Mounted) -> Path:
    """The directory that users see."""
    return mounted.path
