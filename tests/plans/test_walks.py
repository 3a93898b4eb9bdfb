"""Programs that walk through a directory and tell nothing: through fsspec and through a mount."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.mounts import EngineProcess, Source, mounted_for, wait_for
from tiercache.filesystem import TierCacheFileSystem

FILES = 150


def content(number: int) -> bytes:
    return b"%d " % number * 50


def put_files(source: Source) -> list[str]:
    names = [f"d/{number:04}.jpg" for number in range(FILES)]
    for number, name in enumerate(names):
        source.put(name, content(number))
    return names


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path / "own-cache", **{"scan.files_max": 1000})
    yield process
    process.stop()


def metrics(engine: EngineProcess) -> dict[str, Any]:
    found = engine.client.status()["metrics"]
    assert isinstance(found, dict)
    return found


def were_guessed(engine: EngineProcess) -> None:
    """Each file came once, and most of them before they were asked for."""

    def all_told() -> bool:
        figures = metrics(engine)
        reads = figures["scan_reads_total"]
        return bool(reads["ready"] + reads["late"] == figures["scan_files_total"]["fetched"])

    wait_for(all_told)
    figures = metrics(engine)
    requests = figures["origin_requests_total"]
    assert sum(count for labels, count in requests.items() if labels in ("read/ok", "open/ok")) == FILES
    assert figures["scan_files_total"]["fetched"] >= FILES / 2
    assert figures["scan_files_total"]["skipped"] == 0


def test_a_walk_through_fsspec(engine: EngineProcess, source: Source) -> None:
    put_files(source)
    engine.client.status()  # starts it, with its settings
    protocol, _, place = source.url.partition("://")
    fs = TierCacheFileSystem(
        target_protocol=protocol,
        target_options=source.options,
        cache_dir=str(engine.config.cache_dir),
        profile="dataset",
        skip_instance_cache=True,
    )
    for number, path in enumerate(sorted(fs.glob(f"{place}/d/*.jpg"))):
        assert fs.cat_file(path) == content(number)
    assert not fs.exists(f"{place}/nowhere/missing")  # a request takes along what was not told yet
    were_guessed(engine)


def test_a_walk_through_a_mount(engine: EngineProcess, source: Source, driver: str, mountpoint: Path) -> None:
    put_files(source)
    for mounted in mounted_for(engine, source, mountpoint, driver, profile="dataset"):
        for number, name in enumerate(sorted(os.listdir(mounted.path / "d"))):
            assert (mounted.path / "d" / name).read_bytes() == content(number)
        were_guessed(engine)
