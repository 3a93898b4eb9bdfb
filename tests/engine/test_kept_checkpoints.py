"""The newest complete checkpoint of a directory stays on NVMe, whatever else is read."""

from __future__ import annotations

from typing import Any

import pytest

from rig.engine_ground import Ground, read_file, run, write_file
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.model import Tier

FILE_BYTES = 1024 * 1024
NVME = {"capacity": f"{16 * FILE_BYTES}", "free_space_floor": 0, "policy": "lru"}
DATA_FILES = 40


@pytest.fixture
def small(ground: Ground) -> Ground:
    ground.settings = {"nvme": NVME, "ram": {"capacity": 0}}
    for number in range(DATA_FILES):
        ground.put(f"data/{number}", bytes([number]) * FILE_BYTES)
    return ground


async def save(engine: Engine, names: Namespace, ground: Ground, checkpoint: str, *files: str) -> None:
    await names.mkdir(ground.key(checkpoint), mode=0o755, uid=0, gid=0)
    for name in files:
        await write_file(names, ground.key(f"{checkpoint}/{name}"), b"c" * FILE_BYTES)
    assert (await engine.drain(30)).left == []


async def churn(names: Namespace, ground: Ground) -> None:
    for number in range(DATA_FILES):
        assert await read_file(names, ground.key(f"data/{number}")) == bytes([number]) * FILE_BYTES


def resident(engine: Engine, names: Namespace, ground: Ground, name: str) -> bool:
    entry = names.entry(ground.key(name))
    assert entry is not None
    record = engine.catalog.version(entry.version)
    return record is not None and any(copy.tier is Tier.NVME for copy in record.copies)


def kept_bytes(engine: Engine) -> int:
    return int(engine.metrics.snapshot()["kept_bytes"])


def test_the_newest_complete_checkpoint_stays(small: Ground) -> None:
    ground = small

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await save(engine, names, ground, "checkpoint-1", "a", "b")
            await churn(names, ground)
            assert resident(engine, names, ground, "checkpoint-1/a")
            assert resident(engine, names, ground, "checkpoint-1/b")
            assert kept_bytes(engine) == 2 * FILE_BYTES
            # One that lacks its manifest changes nothing.
            await save(engine, names, ground, "checkpoint-2", "__0_0.distcp")
            await churn(names, ground)
            assert resident(engine, names, ground, "checkpoint-1/a")
            assert not resident(engine, names, ground, "checkpoint-2/__0_0.distcp")
            await save(engine, names, ground, "checkpoint-3", "a")
            await churn(names, ground)
            assert resident(engine, names, ground, "checkpoint-3/a")
            assert not resident(engine, names, ground, "checkpoint-1/a")
            assert kept_bytes(engine) == FILE_BYTES

    run(scenario)


def test_the_next_engine_keeps_it(small: Ground) -> None:
    ground = small

    async def before() -> None:
        async with ground.engine() as (engine, names):
            await save(engine, names, ground, "checkpoint-1", "a")

    async def after() -> None:
        async with ground.engine() as (engine, names):
            assert kept_bytes(engine) == FILE_BYTES
            await churn(names, ground)
            assert resident(engine, names, ground, "checkpoint-1/a")

    run(before)
    run(after)


@pytest.mark.parametrize(
    ("settings", "files", "kept"),
    [({"keep_last": 0}, 2, False), ({"keep_last": 2}, 2, True), ({"keep_last": 1}, 9, False)],
    ids=["none wanted", "two wanted", "more than half of the tier"],
)
def test_so_many_stay_as_are_wanted_and_have_room(
    small: Ground, settings: dict[str, Any], files: int, kept: bool
) -> None:
    ground = small

    async def scenario() -> None:
        async with ground.engine(checkpoints=settings) as (engine, names):
            for number in (1, 2):
                await save(engine, names, ground, f"checkpoint-{number}", *map(str, range(files)))
            await churn(names, ground)
            for number in (1, 2):
                assert resident(engine, names, ground, f"checkpoint-{number}/0") == kept

    run(scenario)


def test_a_checkpoint_that_is_removed_is_forgotten(small: Ground) -> None:
    ground = small

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await save(engine, names, ground, "checkpoint-1", "a")
            await save(engine, names, ground, "checkpoint-3", "a", "b")
            await names.remove_tree(ground.key("checkpoint-3"))
            await save(engine, names, ground, "checkpoint-2", "a", "b", "c")
            assert kept_bytes(engine) == 3 * FILE_BYTES

    run(scenario)
