"""When what was written starts its way to the origin: at the last close, or at each that waits for the origin."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rig.faultproxy import FaultProxy
from rig.mounts import EngineProcess, Mounted, Source, mounted_for

MIB = 1024 * 1024


@contextmanager
def mounted_with(
    tmp_path: Path, s3: Source, proxy: FaultProxy, mountpoint: Path, driver: str, **profile: Any
) -> Iterator[Mounted]:
    """A mount that reaches its store through the proxy, of an engine with a small staging budget."""
    engine = EngineProcess(tmp_path / "own", profiles={"general": profile}, **{"staging.capacity": "1MiB"})
    try:
        yield from mounted_for(engine, s3._replace(options=proxy.options()), mountpoint, driver)
    finally:
        engine.stop()


def puts(proxy: FaultProxy, s3: Source, name: str) -> int:
    return proxy.count("PutObject", f"{s3.prefix}/{name}".encode())


@pytest.fixture(params=[False, True], ids=["room", "hardly any room"])
def taken_bytes(request: pytest.FixtureRequest) -> int:
    """Of the staging budget. With little room left the kernel driver lends nothing, and writes come to the engine."""
    return MIB * 9 // 10 if request.param else 0


def test_a_closed_copy_of_a_descriptor_sends_no_half_of_a_file(
    tmp_path: Path, s3: Source, s3_proxy: FaultProxy, mountpoint: Path, driver: str, taken_bytes: int
) -> None:
    """C18: what the origin shows on the way counts, not only what it has at the end."""
    with (
        mounted_with(tmp_path, s3, s3_proxy, mountpoint, driver) as mounted,
        open(mountpoint / "filler", "wb") as filler,
    ):
        filler.write(bytes(taken_bytes))
        filler.flush()
        first = os.open(mountpoint / "file", os.O_WRONLY | os.O_CREAT)
        second = os.dup(first)
        os.write(first, b"one ")
        os.close(first)
        os.set_inheritable(second, True)
        subprocess.run(["true"], close_fds=False, check=True, timeout=30)  # a child closes it
        mounted.engine.client.drain(deadline_s=30)  # does not wait for what is open
        assert puts(s3_proxy, s3, "file") == 0
        assert mounted.state("file") == "staged"
        os.write(second, b"two")
        os.close(second)
        filler.truncate(0)
        filler.close()
        mounted.drain()
        assert puts(s3_proxy, s3, "file") == 1
        assert s3.get("file") == b"one two"


def test_where_close_waits_for_the_origin_each_close_brings_what_is_there(
    tmp_path: Path, s3: Source, s3_proxy: FaultProxy, mountpoint: Path, driver: str
) -> None:
    with mounted_with(tmp_path, s3, s3_proxy, mountpoint, driver, ack="origin", sync_on_close=True) as mounted:
        first = os.open(mountpoint / "file", os.O_WRONLY | os.O_CREAT)
        second = os.dup(first)
        third = os.open(mountpoint / "file", os.O_WRONLY)
        os.write(first, b"one ")
        os.close(first)
        assert s3.get("file") == b"one "
        os.write(second, b"two ")
        os.close(second)
        assert s3.get("file") == b"one two "
        os.pwrite(third, b"three", 8)
        os.close(third)
        assert s3.get("file") == b"one two three"
        assert puts(s3_proxy, s3, "file") == 3
        assert mounted.state("file") == "clean"


def test_a_close_that_syncs_does_not_wait_for_other_descriptors_and_sends_nothing(
    tmp_path: Path, s3: Source, s3_proxy: FaultProxy, mountpoint: Path, driver: str, taken_bytes: int
) -> None:
    with (
        mounted_with(tmp_path, s3, s3_proxy, mountpoint, driver, sync_on_close=True) as mounted,
        open(mountpoint / "filler", "wb") as filler,
    ):
        filler.write(bytes(taken_bytes))
        filler.flush()
        first = os.open(mountpoint / "file", os.O_WRONLY | os.O_CREAT)
        second = os.open(mountpoint / "file", os.O_WRONLY)
        os.write(first, b"one ")
        os.close(first)
        path = str(mountpoint / "file")
        assert mounted.engine.client.request("status_path", path=path)["durable"] == "local"
        mounted.engine.client.drain(deadline_s=30)
        assert puts(s3_proxy, s3, "file") == 0
        os.pwrite(second, b"two", 4)
        os.close(second)
        filler.truncate(0)
        filler.close()
        mounted.drain()
        assert puts(s3_proxy, s3, "file") == 1
        assert s3.get("file") == b"one two"
