"""The table of docs/semantics.md, "What survives what": a test for each of its cells; and how a level is chosen."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rig.mounts import EngineProcess, Mounted, Source, clean_up, mounted_for, refused, wait_for
from rig.power_loss import bring_home
from tiercache.errors import Unsupported
from tiercache.filesystem import TierCacheFileSystem
from tiercache.model import StagedState

DATA = os.urandom(200_000)
ACK = "user.tiercache.ack"


class Place(NamedTuple):
    """A file to write, through a mount and through fsspec, of an engine that uploads nothing by itself."""

    mounted: Mounted
    fs: TierCacheFileSystem
    scratch: Path

    @property
    def path(self) -> Path:
        return self.mounted.path / "file"

    @property
    def url(self) -> str:
        assert self.mounted.source.directory is not None
        return str(self.mounted.source.directory / "file")

    def at_origin(self) -> bool:
        return "file" in self.mounted.source.names() and self.mounted.source.get("file") == DATA


@contextmanager
def started(
    tmp_path: Path, source: Source, mountpoint: Path, *, promise: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Mounted]:
    engine = EngineProcess(tmp_path / "own", **{"staging.upload_delay_s": "1h", **settings})
    try:
        yield from mounted_for(engine, source, mountpoint, "kernel", promise=promise or {})
    finally:
        engine.stop()


Act = Callable[[Place, ExitStack], None]


def write(place: Place, closing: ExitStack) -> None:
    descriptor = os.open(place.path, os.O_WRONLY | os.O_CREAT)
    closing.callback(close_whatever_happened, descriptor)
    os.write(descriptor, DATA)


def write_synchronously(place: Place, closing: ExitStack) -> None:
    descriptor = os.open(place.path, os.O_WRONLY | os.O_CREAT | os.O_DSYNC)
    closing.callback(close_whatever_happened, descriptor)
    os.write(descriptor, DATA)


def close_whatever_happened(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


def close(place: Place, closing: ExitStack) -> None:
    place.path.write_bytes(DATA)


def fsync(place: Place, closing: ExitStack) -> None:
    with place.path.open("wb", buffering=0) as file:
        file.write(DATA)
        os.fsync(file)


def publish(place: Place, closing: ExitStack) -> None:
    with place.fs.open(place.url, "wb") as file:
        file.write(DATA)


def publish_synced(place: Place, closing: ExitStack) -> None:
    with place.fs.open(place.url, "wb") as file:
        file.write(DATA)
        os.fsync(file.fileno())


def drain(place: Place, closing: ExitStack) -> None:
    place.path.write_bytes(DATA)
    place.mounted.drain()


SYNC: dict[str, Any] = {"sync_on_close": True}
ROWS: list[tuple[str, Act, dict[str, Any], dict[str, bool]]] = [
    ("write", write, {}, {"killed": True, "power": False, "node": False}),
    ("write, O_DSYNC", write_synchronously, {}, {"killed": True, "power": True, "node": False}),
    ("close", close, {}, {"killed": True, "power": False, "node": False}),
    ("close, memory", close, {"ack": "memory", **SYNC}, {"killed": True, "power": False, "node": False}),
    ("fsync, memory", fsync, {"ack": "memory"}, {"killed": True, "power": False, "node": False}),
    ("fsync, local", fsync, {}, {"killed": True, "power": True, "node": False}),
    ("close, local", close, SYNC, {"killed": True, "power": True, "node": False}),
    ("publish", publish, {}, {"killed": True, "power": False, "node": False}),
    ("publish, local", publish, SYNC, {"killed": True, "power": True, "node": False}),
    ("publish, synced", publish_synced, {}, {"killed": True, "power": True, "node": False}),
    ("fsync, origin", fsync, {"ack": "origin"}, {"killed": True, "power": True, "node": True}),
    ("close, origin", close, {"ack": "origin", **SYNC}, {"killed": True, "power": True, "node": True}),
    ("publish, origin", publish, {"ack": "origin", **SYNC}, {"killed": True, "power": True, "node": True}),
    ("publish, synced, origin", publish_synced, {"ack": "origin"}, {"killed": True, "power": True, "node": True}),
    ("drain", drain, {}, {"killed": True, "power": True, "node": True}),
]
CELLS = [
    pytest.param(act, profile, disaster, survives, id=f"{name}-{disaster}")
    for name, act, profile, survives in ROWS
    for disaster in ("killed", "power")
]


@pytest.mark.parametrize(("act", "profile", "disaster", "survives"), CELLS)
def test_each_level_survives_what_it_promises(
    tmp_path: Path,
    posix: Source,
    mountpoint: Path,
    act: Act,
    profile: dict[str, Any],
    disaster: str,
    survives: dict[str, bool],
) -> None:
    """What survives the loss of the node is what the origin has before the other disasters."""
    with started(tmp_path, posix, mountpoint, profiles={"general": profile}) as mounted, ExitStack() as closing:
        fs = TierCacheFileSystem(target_protocol="file", cache_dir=str(mounted.engine.config.cache_dir))
        place = Place(mounted, fs, tmp_path)
        act(place, closing)
        assert place.at_origin() == survives["node"]
        if disaster == "killed":
            mounted.engine.kill()
            clean_up(mountpoint)
            with suppress(OSError):  # the mount is gone; as long as a program could write, the file would be kept here
                closing.close()
            mounted.engine.drain()
        else:
            bring_home(mounted.engine.client, tmp_path)
        assert place.at_origin() == survives[disaster]


@pytest.mark.parametrize(
    "how", ["mount", "rule", "attribute of the file", "attribute of its directory", "attribute of it while it is open"]
)
def test_the_origin_is_what_one_file_waits_for(tmp_path: Path, posix: Source, mountpoint: Path, how: str) -> None:
    promise = {"ack": "origin"} if how == "mount" else {}
    rules = [{"path": "*.sure", "ack": "origin"}] if how == "rule" else []
    with started(tmp_path, posix, mountpoint, promise=promise, rules=rules) as mounted:
        path = mountpoint / "d" / "f.sure"
        path.parent.mkdir()
        if how == "attribute of its directory":
            os.setxattr(path.parent, ACK, b"origin")
        if how == "attribute of the file":
            path.touch()
            os.setxattr(path, ACK, b"origin")
        with path.open("ab", buffering=0) as file:
            if how == "attribute of it while it is open":
                file.write(b"first ")
                with refused(errno.EBUSY):  # the kernel writes it by itself
                    os.setxattr(path, ACK, b"origin")
                return
            file.write(DATA)
            os.fsync(file)
            assert posix.get("d/f.sure") == DATA
            told = mounted.engine.client.request("status_path", path=str(path))
            assert (told["durable"], told["ack"], told["sync_on_close"]) == ("origin", "origin", False)
            file.write(b"more")
            assert os.getxattr(path, "user.tiercache.durable") == b"memory"
        assert posix.get("d/f.sure") == DATA  # close waits for nothing
        with (mountpoint / "other").open("wb", buffering=0) as other:
            other.write(DATA)
            os.fsync(other)
            assert (os.getxattr(mountpoint / "other", "user.tiercache.durable") == b"origin") is (how == "mount")


def test_what_a_mount_promises_holds_under_the_next_engine(tmp_path: Path, posix: Source, mountpoint: Path) -> None:
    with started(tmp_path, posix, mountpoint, promise={"ack": "origin", "sync_on_close": True}) as mounted:
        before = mounted.engine.pid
        mounted.engine.client.request("restart")
        wait_for(lambda: mounted.engine.pid != before)
        (mountpoint / "f").write_bytes(DATA)
        assert posix.get("f") == DATA
        (mount,) = mounted.engine.client.status()["mounts"]
        assert (mount["ack"], mount["sync_on_close"]) == ("origin", True)


def test_a_level_that_nothing_reaches_is_refused(tmp_path: Path, posix: Source, mountpoint: Path) -> None:
    with started(tmp_path, posix, mountpoint) as mounted:
        (mountpoint / "f").write_bytes(DATA)
        for value, code in ((b"replica", errno.EOPNOTSUPP), (b"disk", errno.EINVAL)):
            with refused(code):
                os.setxattr(mountpoint / "f", ACK, value)
        with refused(errno.EOPNOTSUPP):
            os.setxattr(mountpoint / "f", "user.tiercache.durable", b"origin")
        second = mountpoint.with_name("second")
        second.mkdir()
        with pytest.raises(Unsupported, match="replica comes with the shared cluster"):
            mounted.engine.mount(posix, second, promise={"ack": "replica"})


def test_info_tells_what_a_file_has_reached_and_what_is_promised(
    tmp_path: Path, posix: Source, mountpoint: Path
) -> None:
    with started(tmp_path, posix, mountpoint, rules=[{"path": "*.sure", "sync_on_close": True}]) as mounted:
        fs = TierCacheFileSystem(target_protocol="file", cache_dir=str(mounted.engine.config.cache_dir))
        for name in ("f", "f.sure"):
            (mountpoint / name).write_bytes(DATA)
        told = {Path(info["name"]).name: info["tiercache"] for info in fs.ls(str(posix.directory), detail=True)}
        plain = {"state": "sealed", "durable": "memory", "error": "", "ack": "local", "sync_on_close": False}
        assert told == {"f": plain, "f.sure": plain | {"durable": "local", "sync_on_close": True}}
        mounted.drain()
        assert fs.info(f"{posix.directory}/f")["tiercache"] == plain | {"state": "clean", "durable": "origin"}


def test_a_file_that_is_written_is_synced_as_it_is_and_sent_when_it_is_closed(
    tmp_path: Path, posix: Source, mountpoint: Path
) -> None:
    with started(tmp_path, posix, mountpoint) as mounted:
        fs = TierCacheFileSystem(target_protocol="file", cache_dir=str(mounted.engine.config.cache_dir))
        url = f"{posix.directory}/f"
        with (mountpoint / "f").open("wb", buffering=0) as file:
            file.write(DATA)
            fs.wait_durable(url, level="local")
            assert os.getxattr(mountpoint / "f", "user.tiercache.durable") == b"local"
            with pytest.raises(TimeoutError, match="/f: is open for writing"):
                fs.wait_durable(url, deadline=0.1)
            assert posix.names() == set()
        fs.wait_durable(url)
        assert posix.get("f") == DATA


def test_a_lent_file_that_comes_under_a_rule_says_that_it_cannot_keep_it(
    tmp_path: Path, posix: Source, mountpoint: Path
) -> None:
    with started(tmp_path, posix, mountpoint, rules=[{"path": "*.sure", "ack": "origin"}]):
        path = mountpoint / "f.sure"
        with (mountpoint / "f").open("wb", buffering=0) as file:
            file.write(DATA)
            (mountpoint / "f").rename(path)
            with refused(errno.EBUSY):
                os.fsync(file)
            assert os.getxattr(path, "user.tiercache.durable") == b"local"
        with path.open("ab", buffering=0) as file:
            file.write(b"more")
            os.fsync(file)
            assert posix.get("f.sure") == DATA + b"more"


@pytest.mark.parametrize("renamed", [False, True])
def test_fsync_of_a_directory_keeps_its_names(tmp_path: Path, posix: Source, mountpoint: Path, renamed: bool) -> None:
    """The bytes were never synced, so a power loss may take them: that is told then, and not passed over in silence."""
    with started(tmp_path, posix, mountpoint) as mounted:
        (mountpoint / "f").write_bytes(DATA)
        if renamed:
            (mountpoint / "f").rename(mountpoint / "g")
        directory = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)
        (lost,) = bring_home(mounted.engine.client, tmp_path)
        assert (Path(os.fsdecode(lost.key)).name, lost.state) == ("g" if renamed else "f", StagedState.LOST)
