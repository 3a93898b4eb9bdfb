"""Cases of saving in a mount: renamed, removed and killed while uploads wait or are under way at a real S3 server."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.dying_engine import Killer
from rig.faultproxy import FaultProxy
from rig.mounts import EngineProcess, Mounted, Source, mounted_for
from tiercache.errors import EngineUnreachable

A, B = os.urandom(100_000), os.urandom(70_000)
FILES = {f"f{number}": b"%03d" % number * 1000 for number in range(50)}
DAMAGED = ("f41", "f44", "f49")
"""Not the first ones: their requests are under way when the engine is killed, and what a store was sent it may take."""
SETTINGS = {"upload.retry_base_s": "10ms"}


@pytest.fixture
def through_proxy(s3: Source, s3_proxy: FaultProxy) -> Source:
    return s3._replace(options=s3_proxy.options())


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path / "cache", **SETTINGS)
    yield process
    process.stop()


@pytest.fixture
def mounted(engine: EngineProcess, through_proxy: Source, mountpoint: Path, driver: str) -> Iterator[Mounted]:
    yield from mounted_for(engine, through_proxy, mountpoint, driver)


@pytest.mark.parametrize("old", [None, b"old"])
def test_c01_what_is_written_after_a_rename_arrives_with_what_was_before(mounted: Mounted, old: bytes | None) -> None:
    """C01."""
    if old is not None:
        mounted.source.put("t", old)
    with open(mounted.path / "t.tmp", "w+b", buffering=0) as file:
        file.write(A)
        os.fsync(file.fileno())
        os.rename(mounted.path / "t.tmp", mounted.path / "t")
        file.write(B)
    mounted.drain()
    assert (mounted.path / "t").read_bytes() == mounted.source.get("t") == A + B
    assert os.listdir(mounted.path) == ["t"]
    assert mounted.source.names() == {"t"}


def test_c02_a_file_that_is_emptied_and_renamed_over_does_not_win(mounted: Mounted, s3_proxy: FaultProxy) -> None:
    """C02."""
    gate = s3_proxy.pause(operation="PutObject")
    (mounted.path / "t.tmp").write_bytes(A)
    gate.wait_reached()
    os.close(os.open(mounted.path / "t", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    os.rename(mounted.path / "t.tmp", mounted.path / "t")
    gate.open()
    mounted.drain()
    mounted.cold()
    assert (mounted.path / "t").read_bytes() == mounted.source.get("t") == A
    assert mounted.source.names() == {"t"}


@pytest.mark.parametrize("under_way", [False, True])
def test_c03_a_directory_that_was_renamed_and_removed_never_comes_to_the_origin(
    through_proxy: Source, s3_proxy: FaultProxy, mountpoint: Path, driver: str, tmp_path: Path, under_way: bool
) -> None:
    """C03."""
    gate = s3_proxy.pause(operation="PutObject", key=f"{through_proxy.prefix}/old/f".encode())
    engine = EngineProcess(tmp_path / "cache", **SETTINGS, **{"staging.upload_delay_s": 0 if under_way else 5})
    for mounted in mounted_for(engine, through_proxy, mountpoint, driver):
        (mounted.path / "old").mkdir()
        (mounted.path / "old" / "f").write_bytes(A)
        if under_way:
            gate.wait_reached()
        # It may have to wait for what is under way.
        opener = threading.Thread(target=gate.open)
        opener.start()
        os.rename(mounted.path / "old", mounted.path / "new")
        shutil.rmtree(mounted.path / "new")
        opener.join()
        mounted.drain()
        assert engine.client.status()["dirty"]["files"] == 0, "nothing is left that could come later"
        assert mounted.source.names() == set()
        assert os.listdir(mounted.path) == []
    engine.stop()


def test_c14_of_fifty_saved_files_a_kill_takes_none_and_damaged_ones_are_told(
    through_proxy: Source,
    s3_proxy: FaultProxy,
    mountpoint: Path,
    driver: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C14. The mount answers while no PUT does."""
    killer = Killer(tmp_path, monkeypatch)
    gate = s3_proxy.pause(operation="PutObject")
    engine = EngineProcess(tmp_path / "cache", **SETTINGS)
    engine.mount(through_proxy, mountpoint, mount_options={"driver": driver})
    for name, data in FILES.items():
        with open(mountpoint / name, "wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
    engine.kill()
    for path in (engine.config.cache_dir / "staging").iterdir():
        if path.is_file() and path.read_bytes() in [FILES[name] for name in DAMAGED]:
            os.truncate(path, 100)
    with killer.after(20, "catalog"), pytest.raises(EngineUnreachable):
        engine.client.status()  # starts one, which is killed in its recovery
    assert killer.fired
    monkeypatch.undo()
    for mounted in mounted_for(engine, through_proxy, mountpoint, driver):
        wanted = {name: data for name, data in FILES.items() if name not in DAMAGED}
        assert {name: (mountpoint / name).read_bytes() for name in wanted} == wanted
        assert mounted.source.names() == set()
        gate.open()
        answer = engine.client.drain(deadline_s=40)
        assert len(answer["left"]) == len(answer["errors"]) == 3
        told = [file["path"].rpartition("/")[2] for file in engine.client.status()["dirty"]["list"]]
        assert sorted(told) == sorted(DAMAGED)
        assert {name: mounted.source.get(name) for name in mounted.source.names()} == wanted
        assert len(list((engine.config.cache_dir / "staging" / "lost").iterdir())) == 3
    engine.stop()
    killer.close()
