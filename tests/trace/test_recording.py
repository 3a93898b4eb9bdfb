"""What a real engine records of the reads of its node: each once, in order, and never at the price of a read."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.engine_ground import Ground, read_file, run, write_file
from rig.mounts import EngineProcess, Mounted, Source, mounted_for
from tiercache.bench.simulator.traces import file_trace
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.engine.trace import KEY_BYTES, TraceFile, about_of
from tiercache.filesystem import TierCacheFileSystem
from tiercache.model import Key, VersionId
from tiercache.tier.tier import charge_bytes

FILES = 30


def put_files(ground: Ground) -> list[Key]:
    for number in range(FILES):
        ground.put(f"f{number}", bytes(100 * number + 1))
    return [ground.key(f"f{number}") for number in range(FILES)]


def version_of(names: Namespace, key: Key) -> VersionId:
    entry = names.known(key)
    assert entry is not None
    return entry.version


def lines_of(engine: Engine) -> list[str]:
    """Reads that are recorded, without remarks."""
    return [line for line in engine.trace.path.read_text().splitlines() if not line.startswith("#")]


def outcomes(engine: Engine) -> dict[str, float]:
    found = engine.metrics.snapshot()["trace_reads_total"]
    assert isinstance(found, dict)
    return {outcome: number for outcome, number in found.items() if number}


def test_each_open_for_reading_is_a_line_of_version_and_size_hit_or_miss(s3_ground: Ground) -> None:
    ground = s3_ground

    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine(trace={"on": True}) as (engine, names):
            for key in [*keys, *keys[::-1]]:
                await read_file(names, key)
            await write_file(names, ground.key("written"), b"w")
            await read_file(names, ground.key("written"))  # it is staged: no cache would help
            await engine.trace.stop()
            versions = {key: version_of(names, key)[:KEY_BYTES].hex() for key in keys}
            sizes = {key: 100 * number + 1 for number, key in enumerate(keys)}
            assert lines_of(engine) == [f"{versions[key]},{sizes[key]}" for key in [*keys, *keys[::-1]]]
            assert outcomes(engine) == {"recorded": 2 * FILES}
            trace = file_trace(engine.trace.path)
            assert [size for _, size in trace.reads[:FILES]] == [charge_bytes(sizes[key]) for key in keys]
            about = about_of(engine.trace.path)
            assert (about["sample"], about["policy"], about["capacity_bytes"]) == (1.0, "auto", 256 << 20)

    run(scenario)


def test_a_sample_has_all_reads_of_some_versions_and_none_of_others(s3_ground: Ground) -> None:
    ground = s3_ground

    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine(trace={"on": True, "sample": 0.5}) as (engine, names):
            for key in [*keys, *keys]:
                await read_file(names, key)
            await engine.trace.stop()
            chosen = [key for key in keys if version_of(names, key)[0] < 0x80]
            assert lines_of(engine) == 2 * [
                f"{version_of(names, key)[:KEY_BYTES].hex()},{100 * keys.index(key) + 1}" for key in chosen
            ]
            left_out = 2 * (FILES - len(chosen))
            assert outcomes(engine) == {"recorded": 2 * len(chosen), "left out": left_out}

    run(scenario)


def test_nothing_is_recorded_unless_asked_for(s3_ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(s3_ground)
        async with s3_ground.engine() as (engine, names):
            await read_file(names, keys[0])
            await engine.trace.stop()
            assert not engine.trace.path.parent.exists()
            assert engine.metrics.snapshot()["trace_recording"] == 0
            engine.trace.start()
            await read_file(names, keys[1])
        assert len(lines_of(engine)) == 1, "also what was read just before the end"

    run(scenario)


def test_a_trace_that_cannot_be_written_ends_with_one_warning_and_reads_go_on(
    s3_ground: Ground, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.engine.trace.FLUSH_S", 3600)
    ground = s3_ground

    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine(trace={"on": True, "buffer_reads": 2}) as (engine, names):
            engine.trace.path.parent.write_bytes(b"in the way")
            for number, key in enumerate(keys):
                assert await read_file(names, key) == bytes(100 * number + 1)
            assert engine.trace.recording
            await engine.trace.stop()
            assert not engine.trace.recording
            assert outcomes(engine) == {"recorded": 2, "lost": FILES}

    with caplog.at_level(logging.WARNING, "tiercache.engine"):
        run(scenario)
    [warning] = [record.message for record in caplog.records if "trace" in record.message]
    assert warning.startswith("the access trace ends here, and reads go on: ")


def test_no_more_reads_wait_than_allowed(s3_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiercache.engine.trace.FLUSH_S", 3600)

    async def scenario() -> None:
        keys = put_files(s3_ground)
        async with s3_ground.engine(trace={"on": True, "buffer_reads": 7}) as (engine, names):
            for key in keys:
                await read_file(names, key)
            await engine.trace.stop()
            assert len(lines_of(engine)) == 7
            assert outcomes(engine) == {"recorded": 7, "lost": FILES - 7}

    run(scenario)


ABOUT: dict[str, Any] = {"sample": 1.0}


def test_a_full_file_becomes_the_older_one_and_both_stay_within_the_bound(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace", 2000, ABOUT)
    for number in range(100):
        file.append(f"key{number:04d},1\n" * 10)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "trace").iterdir()}
    assert set(sizes) == {"reads.csv", "reads.1.csv"}
    assert max(sizes.values()) <= 1000
    assert about_of(file.path)["sample"] == 1.0, "each file tells it"
    assert file.path.read_text().endswith("key0099,1\n")


def test_the_next_engine_goes_on_after_a_line_that_was_cut(tmp_path: Path) -> None:
    TraceFile(tmp_path, 10_000, ABOUT).append("a,1\n")
    with (tmp_path / "reads.csv").open("a") as file:
        file.write("b,123")
    TraceFile(tmp_path, 10_000, ABOUT).append("c,1\n")
    assert [key[:1] for key, _ in file_trace(tmp_path / "reads.csv").reads] == [b"a", b"c"]


def test_another_sample_begins_the_trace_anew(tmp_path: Path) -> None:
    TraceFile(tmp_path, 10_000, ABOUT).append("a,1\n")
    os.link(tmp_path / "reads.csv", tmp_path / "reads.1.csv")
    TraceFile(tmp_path, 10_000, {"sample": 0.1}).append("b,1\n")
    assert os.listdir(tmp_path) == ["reads.csv"]
    assert [key[:1] for key, _ in file_trace(tmp_path / "reads.csv").reads] == [b"b"]


# -- other processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(own_engine: EngineProcess, s3: Source, driver: str, mountpoint: Path) -> Iterator[Mounted]:
    yield from mounted_for(own_engine, s3, mountpoint, driver)


def recorded(engine: EngineProcess) -> list[str]:
    path = engine.client.request("trace", on=False)
    return [line for line in Path(path).read_text().splitlines() if not line.startswith("#")]


def test_reads_through_a_mount_are_recorded(own_engine: EngineProcess, s3: Source, mounted: Mounted) -> None:
    for number in range(FILES):
        s3.put(f"f{number}", bytes(number + 1))
    own_engine.client.request("trace", on=True)
    for _ in range(2):
        for number in range(FILES):
            assert (mounted.path / f"f{number}").read_bytes() == bytes(number + 1)
    sizes = [int(line.rpartition(",")[2]) for line in recorded(own_engine)]
    assert sizes == [*range(1, FILES + 1)] * 2


def test_reads_that_clients_answer_by_themselves_are_recorded(own_engine: EngineProcess, s3: Source) -> None:
    own_engine.client.request("trace", on=True)
    fs = TierCacheFileSystem(
        target_protocol="s3",
        target_options=s3.options,
        cache_dir=str(own_engine.config.cache_dir),
        profile="dataset",
        engine="attach",
        skip_instance_cache=True,
    )
    for number in range(FILES):
        s3.put(f"f{number}", bytes(number + 1))
    root = s3.url.partition("://")[2]
    for _ in range(3):
        for number in range(FILES):
            assert fs.cat_file(f"{root}/f{number}") == bytes(number + 1)
    fs.exists(f"{root}/nowhere")  # a request tells first what the engine was not asked for
    sizes = [int(line.rpartition(",")[2]) for line in recorded(own_engine)]
    assert sizes == [*range(1, FILES + 1)] * 3
