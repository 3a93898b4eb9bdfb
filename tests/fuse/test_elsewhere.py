"""A mount that another mount namespace has too, as containers do: unmounted here, it is served there until it ends."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.mounts import (
    WATCHDOG_S,
    EngineProcess,
    Source,
    clean_up,
    is_mounted,
    make_source,
    refused,
    umount_when_free,
    wait_for,
    wait_until_gone,
)
from rig.namespaces import OtherNamespace
from tiercache.engine.supervisor.letting_go import LostMount, let_go
from tiercache.errors import MountError
from tiercache.fuse.kernel import mounting
from tiercache.fuse.options import MountOptions
from tiercache.fuse.place import CONNECTIONS, Place

DATA = os.urandom(300_000)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    """It does not wait long for the end of a mount, of which these tests know that it does not come."""
    process = EngineProcess(tmp_path / "cache", **{"engine.umount_wait_s": 0.1, "engine.request_timeout_s": 30})
    # What hangs in another mount namespace cannot be aborted from here.
    watchdog = threading.Timer(WATCHDOG_S, process.kill)
    watchdog.start()
    yield process
    watchdog.cancel()
    process.stop()


@pytest.fixture
def other_source(request: pytest.FixtureRequest) -> Source:
    return make_source("posix", request)


@pytest.fixture
def mount(engine: EngineProcess, posix: Source, driver: str, mountpoint: Path) -> Callable[[], None]:
    posix.put("old", DATA)
    return lambda: engine.mount(posix, mountpoint, mount_options={"driver": driver})


def mounts(engine: EngineProcess) -> list[dict[str, Any]]:
    found = engine.client.status()["mounts"]
    assert isinstance(found, list)
    return found


def test_it_is_served_there_until_it_ends(
    engine: EngineProcess, posix: Source, mount: Callable[[], None], mountpoint: Path
) -> None:
    mount()
    with OtherNamespace() as other:
        assert engine.umount(mountpoint)["elsewhere"] == []
        assert not is_mounted(mountpoint)
        there = other.path(mountpoint)
        assert (there / "old").read_bytes() == DATA
        (there / "new").write_bytes(DATA)
        (there / "new").rename(there / "renamed")
        assert sorted(os.listdir(there)) == ["old", "renamed"]
        assert [found["elsewhere"] for found in mounts(engine)] == [True]
        engine.drain()
        assert posix.get("renamed") == DATA
        posix.put("later", b"by somebody else")
        wait_for((there / "later").exists)  # a listing is believed for a second
        assert (there / "later").read_bytes() == b"by somebody else"
        other.end()
        wait_for(lambda: not mounts(engine))


def test_files_that_are_open_there_go_on(
    engine: EngineProcess, posix: Source, mount: Callable[[], None], mountpoint: Path
) -> None:
    mount()
    with OtherNamespace() as other:
        there = other.path(mountpoint)
        with open(there / "old", "rb") as old, open(there / "new", "wb", buffering=0) as new:
            new.write(b"before ")
            answer = engine.umount(mountpoint)
            assert (len(answer["left"]), answer["elsewhere"]) == (1, [])  # it is being written
            new.write(b"after")
            assert old.read() == DATA
        engine.drain()
        assert posix.get("new") == b"before after"


def test_its_place_can_be_mounted_again_and_keeps_what_is_there(
    engine: EngineProcess, mount: Callable[[], None], other_source: Source, mountpoint: Path
) -> None:
    mount()
    other_source.put("another", b"another")
    with OtherNamespace() as other:
        engine.umount(mountpoint)
        engine.mount(other_source, mountpoint, mount_options={"driver": "kernel"})
        assert os.listdir(mountpoint) == ["another"]
        assert (other.path(mountpoint) / "old").read_bytes() == DATA
        asked = engine.client.request("status_path", path=str(mountpoint / "another"))
        assert asked["size_bytes"] == len(b"another")
        other.end()
        wait_for(lambda: len(mounts(engine)) == 1)
    assert (mountpoint / "another").read_bytes() == b"another"
    umount_when_free(engine, mountpoint)
    assert not mounts(engine)


def test_what_others_mount_at_its_place_stays(
    engine: EngineProcess, mount: Callable[[], None], mountpoint: Path
) -> None:
    mount()
    with OtherNamespace() as other:
        engine.umount(mountpoint)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mountpoint], check=True, timeout=30)
        try:
            other.end()
            wait_for(lambda: not mounts(engine))
            assert is_mounted(mountpoint)
        finally:
            clean_up(mountpoint)


def test_an_unmount_by_others_frees_its_place_too(
    engine: EngineProcess, mount: Callable[[], None], other_source: Source, mountpoint: Path
) -> None:
    mount()
    with OtherNamespace() as other:
        subprocess.run(["umount", mountpoint], check=True, timeout=30)
        engine.mount(other_source, mountpoint, mount_options={"driver": "kernel"})
        assert (other.path(mountpoint) / "old").read_bytes() == DATA
        umount_when_free(engine, mountpoint)


def test_an_engine_that_ends_brings_what_was_written_there_home_and_ends_it(
    engine: EngineProcess, posix: Source, mount: Callable[[], None], mountpoint: Path
) -> None:
    mount()
    with OtherNamespace() as other:
        engine.umount(mountpoint)
        there = other.path(mountpoint)
        (there / "new").write_bytes(DATA)
        pid = engine.pid
        os.kill(pid, signal.SIGTERM)
        wait_until_gone(pid)
        assert posix.get("new") == DATA
        with refused(errno.ENOTCONN):
            os.listdir(there)


def test_lazily_it_is_ended_there_too(engine: EngineProcess, mount: Callable[[], None], mountpoint: Path) -> None:
    mount()
    with OtherNamespace() as other:
        assert engine.umount(mountpoint, lazy=True)["elsewhere"] is None
        assert not mounts(engine)
        with refused(errno.ENOTCONN):
            os.listdir(other.path(mountpoint))


@pytest.mark.parametrize("driver", ["kernel"])
@pytest.mark.parametrize("how", ["killed", "replaced"])
def test_the_next_engine_serves_it_there(
    engine: EngineProcess, posix: Source, mount: Callable[[], None], mountpoint: Path, how: str
) -> None:
    mount()
    with OtherNamespace() as other:
        engine.umount(mountpoint)
        there = other.path(mountpoint)
        with open(there / "new", "wb", buffering=0) as new:
            new.write(b"before ")
            pid = engine.pid
            if how == "killed":
                os.kill(pid, signal.SIGKILL)
            else:
                engine.client.request("restart")
            wait_until_gone(pid)
            new.write(b"after")
        assert (there / "old").read_bytes() == DATA
        assert [found["elsewhere"] for found in mounts(engine)] == [True]
        mount()  # its place is free for this engine as well
        assert (mountpoint / "new").read_bytes() == b"before after"
        engine.drain()
        assert posix.get("new") == b"before after"
        other.end()
        wait_for(lambda: len(mounts(engine)) == 1)
        umount_when_free(engine, mountpoint)


def test_a_bind_mount_of_it_is_named(
    engine: EngineProcess, mount: Callable[[], None], mountpoint: Path, tmp_path: Path
) -> None:
    mount()
    second = tmp_path / "second"
    second.mkdir()
    subprocess.run(["mount", "--bind", mountpoint, second], check=True, timeout=30)
    try:
        assert engine.umount(mountpoint)["elsewhere"] == [str(second)]
        assert (second / "old").read_bytes() == DATA
    finally:
        clean_up(second)
    wait_for(lambda: not mounts(engine))


def test_what_is_mounted_over_it_is_not_taken_away_instead(
    engine: EngineProcess, mount: Callable[[], None], mountpoint: Path
) -> None:
    mount()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mountpoint], check=True, timeout=30)
    with pytest.raises(MountError, match="a tmpfs filesystem is mounted over it"):
        engine.umount(mountpoint)
    subprocess.run(["umount", mountpoint], check=True, timeout=30)
    assert (mountpoint / "old").read_bytes() == DATA
    umount_when_free(engine, mountpoint)


def test_a_supervisor_that_gives_up_leaves_what_others_mounted_at_the_place(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True, timeout=30)
    try:
        let_go([LostMount(str(tmp_path), "0:0", ())], lambda text: None)
        assert is_mounted(tmp_path)
    finally:
        clean_up(tmp_path)


@pytest.fixture
def control() -> Iterator[None]:
    """The kernel's control of FUSE connections, which not every machine has mounted."""
    there = os.path.ismount(CONNECTIONS)
    if not there:
        subprocess.run(["mount", "-t", "fusectl", "fusectl", CONNECTIONS], check=True, timeout=30)
    yield
    if not there:
        subprocess.run(["umount", "--lazy", CONNECTIONS], check=True, timeout=30)


@pytest.mark.usefixtures("control")
def test_an_abort_ends_this_connection_and_none_that_has_its_number_later(tmp_path: Path) -> None:
    def is_over(descriptor: int) -> bool:
        poll = select.poll()
        poll.register(descriptor, 0)
        return bool(poll.poll(0))

    descriptor = mounting.mount(str(tmp_path), MountOptions())
    place = Place.of(str(tmp_path))
    assert not is_over(descriptor)
    place.abort()
    assert is_over(descriptor)
    place.unmount()
    os.close(descriptor)
    descriptor = mounting.mount(str(tmp_path), MountOptions())
    later = Place.of(str(tmp_path))
    place.abort()
    assert later.device != place.device or not is_over(descriptor)
    later.unmount()
    os.close(descriptor)
    place.close()
    later.close()
