"""Whoever has a file mapped may write it, whether or not a descriptor is left: until then it is not finished."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.mappings import mapped_and_closed
from rig.mounts import EngineProcess, Mounted, Source, clean_up, mounted_for, wait_for, wait_until_gone

DATA = b"before the close" * 1000


def left_of_a_drain(mounted: Mounted) -> int:
    """How many files a drain leaves that waits as long as the kernel may need to tell of a close."""
    answer = mounted.engine.client.drain(deadline_s=2)
    return len(answer["left"])


def test_what_a_mapping_changes_after_the_last_close_goes_up(mounted: Mounted, root: Path) -> None:
    with mapped_and_closed(root / "file", os.O_CREAT, data=DATA, length=len(DATA)) as mapping:
        assert left_of_a_drain(mounted) == 1
        assert mounted.state("file") == "staged"
        assert mounted.source.names() == set()
        mapping.write(3, b"after it")
        assert (root / "file").read_bytes() == DATA[:3] + b"after it" + DATA[11:]
    mounted.drain()
    assert mounted.source.get("file") == DATA[:3] + b"after it" + DATA[11:]
    mounted.cold()
    assert (root / "file").read_bytes() == DATA[:3] + b"after it" + DATA[11:]


def test_a_drain_names_what_a_mapping_keeps_back(mounted: Mounted, root: Path) -> None:
    with mapped_and_closed(root / "file", os.O_CREAT, data=DATA, length=len(DATA)):
        mounted.engine.client.drain(deadline_s=2)
        if mounted.settings["mount_options"]["driver"] == "kernel":  # libfuse tells of a close after the last munmap
            (file,) = mounted.engine.client.status()["dirty"]["list"]
            assert file["waits_for"] == "a program has it open or mapped for writing"
            (left,) = mounted.engine.client.wait_durable([str(root / "file")], "origin", 0.1)["left"]
            assert left["error"] == file["waits_for"]
    mounted.drain()


def test_who_opened_a_file_for_reading_while_it_was_written_keeps_it_back(mounted: Mounted, root: Path) -> None:
    """The reader shares what the kernel was lent for writing: a mapping of it by the writer would look the same."""
    lent = mounted.settings["mount_options"]["driver"] == "kernel"
    with open(root / "file", "wb") as writer:
        writer.write(DATA)
        writer.flush()
        reader = open(root / "file", "rb")  # noqa: SIM115 - outlives the writer
    with reader:
        assert reader.read() == DATA
        assert left_of_a_drain(mounted) == (1 if lent else 0)
        assert mounted.state("file") == ("staged" if lent else "clean")
    mounted.drain()
    assert mounted.source.get("file") == DATA
    with open(root / "file", "rb") as later:  # of a file that is on its way, or was, nobody keeps anything back
        assert later.read() == DATA
        (root / "other").write_bytes(DATA)
        mounted.drain()


def test_a_child_of_a_fork_has_the_mapping_too(mounted: Mounted, root: Path) -> None:
    with mapped_and_closed(root / "file", os.O_CREAT, data=DATA, length=len(DATA)) as mapping:
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            os.close(tell)
            os.read(told, 1)
            mapping.write(0, b"child")
            os._exit(0)
    os.close(told)
    assert left_of_a_drain(mounted) == 1
    os.close(tell)
    os.waitpid(child, 0)
    mounted.drain()
    assert mounted.source.get("file") == b"child" + DATA[5:]


def test_a_cached_copy_that_is_mapped_beside_a_reader_is_not_clean(mounted: Mounted, root: Path) -> None:
    """It was opened for writing, and closed as it was: it must not go back into the cache to be changed there."""
    mounted.source.put("file", DATA)
    assert (root / "file").read_bytes() == DATA
    with open(root / "file", "rb") as reader:
        with mapped_and_closed(root / "file", length=len(DATA)) as mapping:
            assert reader.read() == DATA
            left_of_a_drain(mounted)
            mapping.write(3, b"changed")
        assert os.pread(reader.fileno(), 10, 0) == DATA[:3] + b"changed"
    mounted.drain()
    assert mounted.source.get("file") == DATA[:3] + b"changed" + DATA[10:]
    mounted.cold()
    assert (root / "file").read_bytes() == DATA[:3] + b"changed" + DATA[10:]


def test_a_mapped_file_has_the_time_of_its_last_change(mounted: Mounted, root: Path) -> None:
    with mapped_and_closed(root / "file", os.O_CREAT, data=DATA, length=len(DATA)) as mapping:
        left_of_a_drain(mounted)
        os.utime(root / "file", ns=(10**18, 10**18))
        mapping.write(0, b"new")
        mapping.sync()
        wait_for(lambda: (root / "file").stat().st_mtime_ns > 10**18)  # the kernel may believe the older for the TTL
    mounted.drain()
    assert (root / "file").stat().st_mtime_ns > 10**18


def test_a_manifest_waits_for_a_shard_that_was_closed_and_is_mapped(
    own_engine: EngineProcess, posix: Source, mountpoint: Path
) -> None:
    for mounted in mounted_for(own_engine, posix, mountpoint, "kernel"):
        with mapped_and_closed(mountpoint / "shard", os.O_CREAT, data=DATA, length=len(DATA)):
            (mountpoint / ".metadata").write_bytes(b"of the shard")
            (mountpoint / "other").write_bytes(b"")
            assert left_of_a_drain(mounted) == 2
            assert posix.names() == {"other"}
        mounted.drain()
        assert posix.names() == {".metadata", "other", "shard"}


def test_a_mapping_outlives_the_engine(own_engine: EngineProcess, posix: Source, mountpoint: Path) -> None:
    """Of a file that was closed the next engine has no descriptor to tell it that somebody may write."""
    for mounted in mounted_for(own_engine, posix, mountpoint, "kernel"):
        with mapped_and_closed(mountpoint / "file", os.O_CREAT, data=DATA, length=len(DATA)) as mapping:
            assert left_of_a_drain(mounted) == 1
            own_engine.client.request("restart")
            wait_for(lambda: own_engine.client.status()["engine"]["restarts"] == 1)
            assert left_of_a_drain(mounted) == 1
            mapping.write(0, b"new engine")
        mounted.drain()
        assert posix.get("file") == b"new engine" + DATA[10:]


def test_an_engine_that_comes_after_the_mount_waits_for_the_mapping(
    own_engine: EngineProcess, posix: Source, mountpoint: Path
) -> None:
    own_engine.mount(posix, mountpoint, mount_options={"driver": "kernel"})
    with mapped_and_closed(mountpoint / "file", os.O_CREAT, data=DATA, length=len(DATA)) as mapping:
        own_engine.kill()
        assert len(own_engine.client.drain(deadline_s=2)["left"]) == 1
        mapping.write(0, b"no mount")
    own_engine.drain()
    assert posix.get("file") == b"no mount" + DATA[8:]
    clean_up(mountpoint)


def test_what_may_still_be_written_when_its_mount_is_taken_away_goes_up_and_is_not_the_cached_copy(
    own_engine: EngineProcess, posix: Source, mountpoint: Path
) -> None:
    posix.put("clean", DATA)
    own_engine.mount(posix, mountpoint, mount_options={"driver": "kernel"})
    assert (mountpoint / "clean").read_bytes() == DATA
    reader = os.open(mountpoint / "clean", os.O_RDONLY)
    pid = own_engine.pid
    with (
        mapped_and_closed(mountpoint / "file", os.O_CREAT, data=DATA, length=len(DATA)) as written,
        mapped_and_closed(mountpoint / "clean", length=len(DATA)) as unwritten,
    ):
        os.kill(pid, signal.SIGTERM)
        wait_until_gone(pid)
        assert posix.get("file") == DATA
        written.write(0, b"too late")
        unwritten.write(0, b"too late")
        with contextlib.suppress(OSError):  # its mount is gone
            os.close(reader)
        for mounted in mounted_for(own_engine, posix, mountpoint, "kernel"):
            assert (mountpoint / "file").read_bytes() == DATA
            assert (mountpoint / "clean").read_bytes() == DATA
            mounted.drain()


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """A directory as a container's root has it."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{kind}dir={tmp_path / kind}" for kind in ("lower", "upper", "work"))
    merged = tmp_path / "merged"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True, timeout=30)
    yield merged
    subprocess.run(["umount", "--lazy", merged], check=True, timeout=30)  # its engine may still be ending


def test_where_nobody_tells_of_mappings_nothing_is_lent_for_writing(
    overlay: Path, posix: Source, mountpoint: Path
) -> None:
    engine = EngineProcess(overlay / "cache")
    try:
        for mounted in mounted_for(engine, posix, mountpoint, "kernel"):
            with mapped_and_closed(mountpoint / "file", os.O_CREAT, data=DATA, length=len(DATA)) as mapping:
                assert left_of_a_drain(mounted) == 1
                mapping.write(0, b"on an overlay")
            mounted.drain()
            assert posix.get("file") == b"on an overlay" + DATA[13:]
            with open(mountpoint / "file", "rb") as file:
                path = str(mountpoint / "file")
                assert file.read() == b"on an overlay" + DATA[13:]
                assert engine.client.request("status_path", path=path)["io"][str(mountpoint)] == "passthrough"
    finally:
        engine.stop()
