"""A mount outlives its engine: killed or replaced under programs that read and write, no error reaches them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.mount_load import Load, digest, make_tree
from rig.mounts import (
    EngineProcess,
    Source,
    Watchdog,
    clean_up,
    is_mounted,
    refused,
    umount_when_free,
    wait_for,
    wait_until_gone,
)
from tiercache.errors import MountError, Unsupported

READERS, WRITERS = 8, 4

PATIENCE_S = 400.0
"""Only how long a broken test takes to fail, on a machine that does much else."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mount"
    path.mkdir()
    with Watchdog(path, limit_s=PATIENCE_S) as watchdog:
        yield path
    left = is_mounted(path)
    clean_up(path)
    assert not watchdog.fired, "the mount hung and was aborted"
    assert not left, "the test left its mount behind"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path / "cache", **{"engine.restart_limit": 100})
    yield process
    process.stop()


def mount(engine: EngineProcess, source: Source, place: Path) -> None:
    engine.mount(source, place, mount_options={"driver": "kernel"})


def replaced(engine: EngineProcess, old: int) -> int:
    """The pid of the engine that took the place of ``old``."""
    wait_until_gone(old)
    return engine.pid


def kill(engine: EngineProcess) -> int:
    old = engine.pid
    os.kill(old, signal.SIGKILL)
    return replaced(engine, old)


def restart(engine: EngineProcess) -> int:
    old = engine.pid
    engine.client.request("restart")
    return replaced(engine, old)


@contextlib.contextmanager
def loads(place: Path) -> Iterator[tuple[list[Load], list[Load]]]:
    make_tree(place / "tree")
    for number in range(WRITERS):
        (place / f"w{number}").mkdir()
    readers = [Load("reader", place / "tree", number) for number in range(READERS)]
    writers = [Load("writer", place / f"w{number}", number) for number in range(WRITERS)]
    try:
        yield readers, writers
    finally:
        for load in (*readers, *writers):
            load.kill()


def check(engine: EngineProcess, source: Source, place: Path, readers: list[Load], writers: list[Load]) -> None:
    """Every byte is right: in the mount, and after a drain at the origin, where there is nothing else."""
    for reader in readers:
        reader.end(PATIENCE_S)
    expected = {
        f"w{number}/{name}": wanted
        for number, writer in enumerate(writers)
        for name, wanted in writer.end(PATIENCE_S).items()
    }
    assert {name: digest((place / name).read_bytes()) for name in expected} == expected
    engine.drain()
    assert {name: digest(source.get(name)) for name in source.names() if not name.startswith("tree/")} == expected
    assert source.directories() == {"tree", *(f"w{number}" for number in range(WRITERS))}


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(
    ("way", "times"),
    [
        ("killed", 4),
        ("restarted", 2),
        pytest.param("killed", 20, marks=pytest.mark.exhaustive),
        pytest.param("restarted", 4, marks=pytest.mark.exhaustive),
    ],
)
def test_no_error_reaches_readers_and_writers_while_the_engine_is_replaced_again_and_again(
    engine: EngineProcess, source: Source, place: Path, way: str, times: int
) -> None:
    """Killed as the out-of-memory killer does it, or replaced by ``tiercache restart``."""
    mount(engine, source, place)
    with loads(place) as (readers, writers):
        pids = {engine.pid}
        for _ in range(times):
            for load in (*readers, *writers):
                load.wait_for_rounds(1, PATIENCE_S)
            pids.add(kill(engine) if way == "killed" else restart(engine))
        assert len(pids) == times + 1
        assert engine.client.status()["engine"]["restarts"] == times
        check(engine, source, place, readers, writers)
    umount_when_free(engine, place)


def test_open_files_stay_what_they_were(engine: EngineProcess, source: Source, place: Path) -> None:
    """Read, written, appended to, removed, renamed and a directory that is read half: all go on after a kill."""
    source.put("old", b"o" * 300_000)
    mount(engine, source, place)
    with contextlib.ExitStack() as files:

        def opened(name: str, flags: int) -> int:
            descriptor = os.open(place / name, flags, 0o640)
            files.callback(os.close, descriptor)
            return descriptor

        old = opened("old", os.O_RDONLY)
        assert os.pread(old, 10, 0) == b"o" * 10
        written = opened("written", os.O_RDWR | os.O_CREAT)
        assert os.write(written, b"first ") == 6
        log = opened("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, b"one\n")
        gone = opened("gone", os.O_RDWR | os.O_CREAT)
        os.write(gone, b"without a name")
        os.unlink(place / "gone")
        removed = opened("old", os.O_RDWR)
        os.rename(place / "written", place / "renamed")
        os.unlink(place / "old")
        os.fchmod(gone, 0o600)
        for number in range(300):
            (place / f"n{number}").touch()
        names = os.scandir(place)
        half = {next(names).name for _ in range(20)}

        kill(engine)

        os.unlink(place / "n299")
        rest = {entry.name for entry in names}
        assert not half & rest
        assert {f"n{number}" for number in range(299)} | {"renamed", "log"} <= half | rest
        assert os.pread(old, 1_000_000, 0) == b"o" * 300_000
        assert os.pread(removed, 1_000_000, 0) == b"o" * 300_000
        os.pwrite(removed, b"new", 1)
        assert os.pread(removed, 5, 0) == b"onewo"
        assert os.write(written, b"second") == 6
        assert os.pread(written, 100, 0) == b"first second"
        os.write(log, b"two\n")
        assert os.pread(gone, 100, 0) == b"without a name"
        os.write(gone, b" and more")
        assert os.fstat(gone).st_mode & 0o777 == 0o600
        assert os.fstat(gone).st_nlink == 0

        kill(engine)

        assert os.pread(gone, 100, 0) == b"without a name and more"
        assert os.pread(removed, 5, 0) == b"onewo"
    umount_when_free(engine, place)
    engine.drain()
    assert source.get("renamed") == b"first second"
    assert source.get("log") == b"one\ntwo\n"
    assert source.names() == {"renamed", "log", *(f"n{number}" for number in range(299))}
    assert os.listdir(engine.config.cache_dir / "open") == []


def test_files_go_on_without_passthrough_too(tmp_path: Path, source: Source, place: Path) -> None:
    """The engine itself reads and writes them, and some are not in the cache."""
    source.put("read", b"r" * 9_000_000)
    engine = EngineProcess(tmp_path / "checking", verify="read")
    mount(engine, source, place)
    with open(place / "read", "rb", buffering=0) as read, open(place / "new", "w+b", buffering=0) as new:
        assert read.read(5) == b"rrrrr"
        new.write(b"n" * 100_000)
        kill(engine)
        assert read.read(9_000_000) == b"r" * 8_999_995
        new.write(b"m")
        assert os.pread(new.fileno(), 10, 99_995) == b"nnnnnm"
    umount_when_free(engine, place)
    engine.drain()
    assert source.get("new") == b"n" * 100_000 + b"m"
    engine.stop()


BUG = """
import sys
if "tiercache.engine" in sys.orig_argv:
    class Finder:
        def find_spec(self, name, path, target=None):
            if name == "tiercache.engine.service":
                sys.meta_path.remove(self)
                import os, trio
                from tiercache.engine.engine import Engine
                async def fail_when_told(self):
                    while not os.path.exists(self.config.cache_dir / "fail"):
                        await trio.sleep(0.01)
                    os.unlink(self.config.cache_dir / "fail")
                    raise RuntimeError("a bug")
                Engine._sync_catalog = fail_when_told
    sys.meta_path.insert(0, Finder())
"""


def test_an_engine_that_ends_by_a_bug_is_replaced_too(
    tmp_path: Path, posix: Source, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has time to tidy up, and must not take the mount along."""
    (tmp_path / "bug").mkdir()
    (tmp_path / "bug" / "sitecustomize.py").write_text(BUG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "bug"), prepend=os.pathsep)
    engine = EngineProcess(tmp_path / "cache")
    mount(engine, posix, place)
    with open(place / "file", "wb", buffering=0) as file:
        file.write(b"before ")
        old = engine.pid
        (engine.config.cache_dir / "fail").touch()
        replaced(engine, old)
        file.write(b"after")
    assert "RuntimeError: a bug" in engine.log()
    assert "the engine ended with status 1: it is replaced" in engine.log()
    assert (place / "file").read_bytes() == b"before after"
    umount_when_free(engine, place)
    engine.stop()


def test_a_mount_whose_engine_cannot_come_up_is_given_up(tmp_path: Path, posix: Source, place: Path) -> None:
    settings = {"engine.restart_limit": 3, "engine.restart_backoff_s": 0.01}
    engine = EngineProcess(tmp_path / "cache", **settings)
    mount(engine, posix, place)
    supervisor = engine.client.status()["engine"]["supervisor_pid"]
    staging = engine.config.cache_dir / "staging"
    file = os.open(place / "file", os.O_WRONLY | os.O_CREAT)
    os.write(file, b"x")
    pid = engine.pid
    staging.rename(staging.with_name("aside"))
    staging.write_bytes(b"in the way")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is compared below
        os.fsync(file)  # waits until it is decided
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    with refused(errno.ENOTCONN):
        os.fsync(file)
    with refused(errno.ENOTCONN):
        os.close(file)
    wait_until_gone(supervisor)
    assert not is_mounted(place)
    log = engine.log()
    assert "too often: its mounts are given up (see engine.restart_limit)" in log
    assert f"{place}: given up; programs get errors from it" in log
    assert log.count("it is replaced") == 3
    staging.unlink()
    staging.with_name("aside").rename(staging)
    mount(engine, posix, place)
    assert (place / "file").read_bytes() == b"x"
    assert engine.client.status()["engine"]["restarts"] == 0
    umount_when_free(engine, place)
    engine.stop()


def test_a_mount_goes_on_without_its_supervisor(engine: EngineProcess, posix: Source, place: Path) -> None:
    mount(engine, posix, place)
    supervisor = engine.client.status()["engine"]["supervisor_pid"]
    with open(place / "file", "wb", buffering=0) as file:
        file.write(b"before ")
        os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: engine.client.status()["engine"]["supervisor_pid"] is None)
        file.write(b"after")
        assert (place / "file").read_bytes() == b"before after"
    with pytest.raises(Unsupported, match="no supervisor"):
        engine.client.request("restart")
    umount_when_free(engine, place)
    assert not is_mounted(place)


def test_an_unmount_while_the_engine_is_down_is_no_trouble(engine: EngineProcess, posix: Source, place: Path) -> None:
    mount(engine, posix, place)
    old = engine.pid
    os.kill(old, signal.SIGKILL)
    clean_up(place)
    replaced(engine, old)
    wait_for(lambda: not engine.client.status()["mounts"])
    mount(engine, posix, place)
    (place / "file").write_bytes(b"x")
    umount_when_free(engine, place)


def test_a_mount_of_pyfuse3_keeps_the_engine_from_being_replaced(
    engine: EngineProcess, posix: Source, place: Path
) -> None:
    engine.mount(posix, place, mount_options={"driver": "pyfuse3"})
    with pytest.raises(MountError, match=f"{place}: this mount ends with its engine; unmount it first"):
        engine.client.request("restart")
    umount_when_free(engine, place)
