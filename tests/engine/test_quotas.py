"""Jobs that share a node: each keeps its part of the NVMe tier, whatever the others read and write."""

from __future__ import annotations

import re

import pytest

from rig.engine_ground import Ground, read_file, run, write_file
from tiercache.cli.status import print_engine
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.engine.pins import Pin
from tiercache.model import Tier

FILE_BYTES = 64 * 1024
UNITS = 16
QUOTA_UNITS = 6
FILES = 40


def settings(quota_units: int = QUOTA_UNITS, policy: str = "lru") -> dict[str, object]:
    return {
        "nvme": {
            "capacity": UNITS * FILE_BYTES,
            "free_space_floor": 0,
            "policy": policy,
            "quotas": [{"path": "a/", "capacity": quota_units * FILE_BYTES}],
        },
        "ram": {"capacity": 0},
    }


@pytest.fixture
def shared(ground: Ground) -> Ground:
    return prepared(ground)


@pytest.fixture
def shared_tree(posix_ground: Ground) -> Ground:
    return prepared(posix_ground)


def prepared(ground: Ground) -> Ground:
    ground.settings = settings()
    for number in range(FILES):
        ground.put(f"a/{number}", b"a%02d" % number + bytes(FILE_BYTES - 3))
        ground.put(f"b/{number}", b"b%02d" % number + bytes(FILE_BYTES - 3))
    return ground


async def read(names: Namespace, ground: Ground, job: str, numbers: range) -> None:
    for number in numbers:
        data = await read_file(names, ground.key(f"{job}/{number}"))
        assert data == f"{job}{number:02d}".encode() + bytes(FILE_BYTES - 3)


def here(engine: Engine, names: Namespace, ground: Ground, job: str) -> list[int]:
    """Numbers of a job's files that are on NVMe."""
    entries = {number: names.entry(ground.key(f"{job}/{number}")) for number in range(FILES)}
    records = {n: engine.catalog.version(entry.version) for n, entry in entries.items() if entry is not None}
    return [n for n, record in records.items() if record and any(copy.tier is Tier.NVME for copy in record.copies)]


def figure(engine: Engine, name: str) -> float:
    value = engine.metrics.snapshot()[name]
    assert isinstance(value, dict)
    return value["a/"]


@pytest.mark.parametrize("policy", ["lru", "auto", "hold"])
def test_no_job_pushes_out_the_files_of_another(shared: Ground, policy: str) -> None:
    shared.settings = settings(policy=policy)

    async def scenario() -> None:
        async with shared.engine() as (engine, names):
            await read(names, shared, "a", range(6))
            await read(names, shared, "b", range(FILES))
            assert here(engine, names, shared, "a") == list(range(6))
            others = here(engine, names, shared, "b")
            assert len(others) == UNITS - QUOTA_UNITS, "what no quota names has the rest, and all of it"
            await read(names, shared, "a", range(FILES))
            assert here(engine, names, shared, "b") == others
            assert len(here(engine, names, shared, "a")) == QUOTA_UNITS
            assert figure(engine, "quota_bytes") == figure(engine, "quota_capacity_bytes") == QUOTA_UNITS * FILE_BYTES

    run(scenario)


def test_what_a_job_has_is_its_own_after_a_restart_too(shared: Ground) -> None:
    async def scenario() -> None:
        async with shared.engine() as (engine, names):
            await read(names, shared, "b", range(10))
            await read(names, shared, "a", range(6))
        async with shared.engine() as (engine, names):
            assert figure(engine, "quota_bytes") == QUOTA_UNITS * FILE_BYTES
            await read(names, shared, "b", range(10, FILES))
            assert here(engine, names, shared, "a") == list(range(6))
            assert len(here(engine, names, shared, "b")) == 10
        shared.settings = settings(2)
        async with shared.engine() as (engine, names):
            assert len(here(engine, names, shared, "a")) == 2, "a lower quota counts from the start"
            assert len(here(engine, names, shared, "b")) == 10
            assert figure(engine, "quota_bytes") == 2 * FILE_BYTES

    run(scenario)


def test_what_is_written_counts_against_the_quota_of_its_name(shared: Ground) -> None:
    async def scenario() -> None:
        async with shared.engine() as (engine, names):
            await read(names, shared, "b", range(10))
            for number in range(8):
                await write_file(names, shared.key(f"a/new{number}"), bytes([number]) * FILE_BYTES)
            assert not (await engine.drain(60)).left
            assert figure(engine, "quota_bytes") == QUOTA_UNITS * FILE_BYTES
            assert len(here(engine, names, shared, "b")) == 10

    run(scenario)


def test_a_renamed_file_counts_against_the_quota_of_its_new_name(shared_tree: Ground) -> None:
    ground = shared_tree

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await read(names, ground, "b", range(3))
            await read(names, ground, "a", range(6))
            await names.rename(ground.key("b/0"), ground.key("a/moved"))
            assert figure(engine, "quota_bytes") == QUOTA_UNITS * FILE_BYTES
            assert here(engine, names, ground, "a") == list(range(1, 6)), "the oldest made way"
            hits = engine.metrics.snapshot()["hits_total"]
            assert (await read_file(names, ground.key("a/moved")))[:3] == b"b00"
            assert engine.metrics.snapshot()["hits_total"] != hits, "it was moved, not fetched"
            await names.rename(ground.key("a/5"), ground.key("b/moved"))
            assert figure(engine, "quota_bytes") == (QUOTA_UNITS - 1) * FILE_BYTES

    run(scenario)


def test_what_a_job_has_pinned_fills_its_own_quota_only(shared: Ground) -> None:
    async def scenario() -> None:
        async with shared.engine() as (engine, names):
            await read(names, shared, "b", range(10))
            await read(names, shared, "a", range(6))
            await engine.pins.add(Pin(names.origin_id, shared.key("a")), "a")
            await read(names, shared, "a", range(6, 12))
            assert here(engine, names, shared, "a") == list(range(6))
            assert here(engine, names, shared, "b") == list(range(10))

    run(scenario)


def test_status_tells_of_each_quota(shared_tree: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    ground = shared_tree

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await read(names, ground, "a", range(3))
            print_engine(engine.status_of.engine())
        ground.settings = {"nvme": {"capacity": "1MiB", "free_space_floor": 0}}
        async with ground.engine() as (engine, names):
            status = engine.status_of.engine()
            assert status["quotas"] == []
            assert not status["metrics"].get("quota_bytes")

    run(scenario)
    assert re.search(r"^quota   192 KiB of 384 KiB for a/$", capsys.readouterr().out, re.MULTILINE)
