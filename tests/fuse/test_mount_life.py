"""The life of a mount: made, refused, several in one engine, killed, taken away; nothing is left mounted."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from rig.mounts import (
    EngineProcess,
    Mounted,
    Source,
    Watchdog,
    clean_up,
    is_mounted,
    refused,
    umount_when_free,
    wait_for,
    wait_until_gone,
)
from tiercache.errors import MountError
from tiercache.fuse import mountpoint as mountpoints


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "second"
    path.mkdir()
    with Watchdog(path):
        yield path
    clean_up(path)


def test_one_engine_hosts_several_mounts(
    engine: EngineProcess, posix: Source, s3: Source, mountpoint: Path, second: Path
) -> None:
    engine.mount(posix, mountpoint)
    engine.mount(s3, second)
    (mountpoint / "file").write_bytes(b"from one to the other" * 1000)
    subprocess.run(["cp", mountpoint / "file", second / "copy"], check=True, timeout=30)
    assert (second / "copy").read_bytes() == b"from one to the other" * 1000
    umount_when_free(engine, mountpoint)
    assert not is_mounted(mountpoint)
    assert (second / "copy").exists()
    umount_when_free(engine, second)
    assert s3.get("copy") == b"from one to the other" * 1000


def test_what_a_client_changed_is_seen_in_the_mount_when_its_call_returns(
    engine: EngineProcess, source: Source, mountpoint: Path
) -> None:
    engine.mount(source, mountpoint, profile="weights")  # believes names for a minute and absence for 5 s
    client = fsspec.filesystem(
        "tiercache",
        target_protocol="file" if source.kind == "posix" else "s3",
        target_options=source.options,
        cache_dir=str(engine.config.cache_dir),
        profile="weights",
    )
    root = source.url.removeprefix("file://").removeprefix("s3://")
    for number in range(20):
        name = f"file{number}"
        assert not (mountpoint / name).exists()
        client.pipe_file(f"{root}/{name}", b"1")
        assert (mountpoint / name).read_bytes() == b"1"
        client.pipe_file(f"{root}/{name}", b"longer")
        assert (mountpoint / name).read_bytes() == b"longer"
        client.mv(f"{root}/{name}", f"{root}/moved")
        assert sorted(os.listdir(mountpoint)) == ["moved"]
        client.rm_file(f"{root}/moved")
        assert not (mountpoint / "moved").exists()
    umount_when_free(engine, mountpoint)


def test_two_mounts_of_one_origin_see_each_others_changes(
    engine: EngineProcess, posix: Source, mountpoint: Path, second: Path
) -> None:
    engine.mount(posix, mountpoint, profile="weights")  # believes names for a minute: only notices can be this fast
    engine.mount(posix, second, profile="weights")
    (mountpoint / "a").write_bytes(b"1")
    assert (second / "a").read_bytes() == b"1"
    assert not (second / "b").exists()
    (mountpoint / "a").rename(mountpoint / "b")
    wait_for(lambda: (second / "b").exists() and not (second / "a").exists())
    (second / "b").write_bytes(b"changed there")
    wait_for(lambda: (mountpoint / "b").read_bytes() == b"changed there")
    (second / "b").unlink()
    wait_for(lambda: not (mountpoint / "b").exists())
    for path in (mountpoint, second):
        umount_when_free(engine, path)


def test_a_read_only_mount_refuses_every_change(
    engine: EngineProcess, source: Source, driver: str, mountpoint: Path
) -> None:
    source.put("file", b"x")
    engine.mount(source, mountpoint, read_only=True, mount_options={"driver": driver})
    assert (mountpoint / "file").read_bytes() == b"x"
    for change in (
        lambda: (mountpoint / "file").write_bytes(b"y"),
        lambda: (mountpoint / "new").touch(),
        lambda: (mountpoint / "dir").mkdir(),
        lambda: (mountpoint / "file").unlink(),
        lambda: (mountpoint / "file").rename(mountpoint / "other"),
        lambda: os.chmod(mountpoint / "file", 0o600),
        lambda: os.truncate(mountpoint / "file", 0),
        lambda: os.setxattr(mountpoint / "file", "user.x", b"y"),
    ):
        with refused(errno.EROFS):
            change()
    assert source.get("file") == b"x"
    umount_when_free(engine, mountpoint)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may widen it")
def test_the_kernel_reads_ahead_on_a_mount_as_far_as_it_was_told(
    engine: EngineProcess, posix: Source, mountpoint: Path
) -> None:
    engine.mount(posix, mountpoint, mount_options={"driver": "kernel", "read_ahead_kb": 2048})
    device = os.stat(mountpoint).st_dev  # answered, and so the session has begun
    device_name = f"{os.major(device)}:{os.minor(device)}"
    assert Path(f"/sys/class/bdi/{device_name}/read_ahead_kb").read_text() == "2048\n"
    umount_when_free(engine, mountpoint)


def test_a_busy_mount_is_not_taken_away(mounted: Mounted, root: Path) -> None:
    (root / "file").write_bytes(b"x")
    with open(root / "file", "rb") as file:
        with pytest.raises(MountError, match="in use"):
            mounted.engine.umount(root)
        assert file.read() == b"x"
        (root / "other").write_bytes(b"still works")
    mounted.engine.umount(root)
    assert not is_mounted(root)


def test_a_mount_that_is_lazily_unmounted_ends_for_who_uses_it(mounted: Mounted, root: Path) -> None:
    """Whoever has a file open there must not wait for an answer for ever."""
    (root / "file").write_bytes(b"x")
    directory = os.open(root, os.O_RDONLY)
    try:
        mounted.engine.umount(root, lazy=True)
        assert not is_mounted(root)
        # By a process that can be ended while it waits.
        asking = ["stat", f"/proc/{os.getpid()}/fd/{directory}/file"]
        result = subprocess.run(asking, capture_output=True, text=True, timeout=30)
        assert os.strerror(errno.ENOTCONN) in result.stderr
    finally:
        os.close(directory)


def mount_when_gone(mounted: Mounted) -> None:
    """The engine hears a moment later that the kernel has no mount there any more."""

    def mounts() -> bool:
        try:
            mounted.mount()
        except MountError as error:
            if "mounted there already" not in str(error):
                raise
            return False
        return True

    wait_for(mounts)


def test_an_unmount_by_anybody_ends_the_mount_in_the_engine(mounted: Mounted, root: Path) -> None:
    subprocess.run(["umount", root], check=True, timeout=30)
    mount_when_gone(mounted)
    (root / "file").write_bytes(b"x")
    assert (root / "file").read_bytes() == b"x"


@pytest.mark.parametrize("wrong", ["missing", "file", "twice", "inside", "origin", "cache"])
def test_a_mount_that_cannot_be_is_one_line(
    engine: EngineProcess, posix: Source, mountpoint: Path, tmp_path: Path, wrong: str
) -> None:
    assert posix.directory is not None
    place = {"missing": tmp_path / "missing", "file": tmp_path / "file", "cache": engine.config.cache_dir}.get(wrong)
    (tmp_path / "file").touch()
    if wrong in ("twice", "inside"):
        engine.mount(posix, mountpoint)
        place = mountpoint
        if wrong == "inside":
            place = mountpoint / "sub"
            place.mkdir()
    if wrong == "origin":
        place = posix.directory / "sub"
        place.mkdir()
    assert place is not None
    with pytest.raises(MountError) as caught:
        engine.mount(posix, place)
    assert "\n" not in str(caught.value)
    assert str(place) in str(caught.value)
    if is_mounted(mountpoint):
        umount_when_free(engine, mountpoint)


def test_a_file_cannot_be_mounted(engine: EngineProcess, source: Source, mountpoint: Path) -> None:
    source.put("object", b"x")
    with pytest.raises(MountError, match="directory"):
        engine.mount(source._replace(url=source.url + "/object"), mountpoint)


def test_an_unknown_setting_is_told(engine: EngineProcess, posix: Source, mountpoint: Path) -> None:
    for settings in ({"driver": "nfs"}, {"speed": 11}):
        with pytest.raises(MountError, match="there are"):
            engine.mount(posix, mountpoint, mount_options=settings)


def test_the_mount_of_an_engine_that_was_killed_with_its_supervisor_is_replaced(
    own_engine: EngineProcess, source: Source, driver: str, mountpoint: Path
) -> None:
    settings = {"mount_options": {"driver": driver}}
    own_engine.mount(source, mountpoint, **settings)
    with open(mountpoint / "file", "wb") as file:
        file.write(b"saved" * 1000)
        os.fsync(file.fileno())
    own_engine.kill()
    with refused(errno.ENOTCONN):
        os.listdir(mountpoint)
    own_engine.mount(source, mountpoint, **settings)
    assert (mountpoint / "file").read_bytes() == b"saved" * 1000
    own_engine.drain()
    assert source.get("file") == b"saved" * 1000
    umount_when_free(own_engine, mountpoint)
    assert mountpoints.mounted_at(str(mountpoint)) is None


def test_an_engine_that_is_told_to_end_unmounts_and_drains(
    own_engine: EngineProcess, source: Source, driver: str, mountpoint: Path
) -> None:
    own_engine.mount(source, mountpoint, mount_options={"driver": driver})
    (mountpoint / "file").write_bytes(b"last words")
    pid = own_engine.pid
    os.kill(pid, signal.SIGTERM)
    wait_until_gone(pid)
    assert not is_mounted(mountpoint)
    assert source.get("file") == b"last words"


def test_an_engine_that_ends_leaves_no_mount_even_if_it_is_in_use(
    own_engine: EngineProcess, source: Source, driver: str, mountpoint: Path
) -> None:
    own_engine.mount(source, mountpoint, mount_options={"driver": driver})
    pid = own_engine.pid
    descriptor = os.open(mountpoint / "file", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"written")
    os.kill(pid, signal.SIGTERM)
    wait_until_gone(pid)
    with contextlib.suppress(OSError):  # where the kernel has the file, it goes on taking bytes, and close tells
        os.write(descriptor, b"too late")
    with refused(errno.ENOTCONN):
        os.close(descriptor)
    assert not is_mounted(mountpoint)
    own_engine.drain()
    assert source.get("file") == b"written"


def test_an_aborted_connection_does_not_keep_the_engine_from_mounting_again(mounted: Mounted, root: Path) -> None:
    (root / "file").write_bytes(b"x")
    mounted.drain()
    descriptor = os.open(root / "file", os.O_RDONLY)
    mountpoints.abort(str(root))
    wait_for(lambda: not is_mounted(root))
    with contextlib.suppress(OSError):  # closed all the same; a driver whose closes are told to it cannot be told
        os.close(descriptor)
    mount_when_gone(mounted)
    assert (root / "file").read_bytes() == b"x"
