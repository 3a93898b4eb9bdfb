"""Fixtures of the tests of programs: each runs on our own driver over both origins, and on pyfuse3 over one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.mount_fixtures import bucket_client, engine, mountpoint, root
from rig.mounts import EngineProcess, Mounted, make_source, mounted_for

__all__ = ["bucket_client", "engine", "mounted", "mountpoint", "on_posix", "root"]


@pytest.fixture(params=["posix-kernel", "s3-kernel", "posix-pyfuse3"])
def mounted(request: pytest.FixtureRequest, engine: EngineProcess, mountpoint: Path) -> Iterator[Mounted]:
    """A mount of an empty place."""
    origin, _, driver = request.param.partition("-")
    yield from mounted_for(engine, make_source(origin, request), mountpoint, driver)


@pytest.fixture(params=["kernel", "pyfuse3"])
def on_posix(request: pytest.FixtureRequest, engine: EngineProcess, mountpoint: Path) -> Iterator[Mounted]:
    """The same over a file tree only."""
    yield from mounted_for(engine, make_source("posix", request), mountpoint, request.param)
