"""What is pinned stays in the NVMe tier, within its share."""

from __future__ import annotations

import pytest

from rig.engine_ground import Ground, read_file, run
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.engine.pins import FILE_NAME, PINS_MAX, Pin
from tiercache.errors import Broken, InvalidArgument
from tiercache.model import Tier

FILE_BYTES = 64 * 1024
DATA_FILES = 40


@pytest.fixture
def small(posix_ground: Ground) -> Ground:
    """A tier for 16 files, of which pins may keep 8."""
    ground = posix_ground
    ground.settings = {
        "nvme": {"capacity": f"{16 * FILE_BYTES}", "free_space_floor": 0, "policy": "lru"},
        "ram": {"capacity": 0},
    }
    for number in range(DATA_FILES):
        ground.put(f"data/{number}", bytes([number]) * FILE_BYTES)
    for number in range(10):
        ground.put(f"pinned/deep/{number}", bytes([number]) * FILE_BYTES)
    return ground


async def churn(names: Namespace, ground: Ground) -> None:
    for number in range(DATA_FILES):
        assert await read_file(names, ground.key(f"data/{number}")) == bytes([number]) * FILE_BYTES


async def read(names: Namespace, ground: Ground, numbers: range) -> None:
    for number in numbers:
        await read_file(names, ground.key(f"pinned/deep/{number}"))


async def pin(engine: Engine, names: Namespace, ground: Ground, name: str) -> None:
    await engine.pins.add(Pin(names.origin_id, ground.key(name)), name)


def resident(engine: Engine, names: Namespace, ground: Ground) -> list[int]:
    """Numbers of the pinned files that are on NVMe."""
    found = []
    for number in range(10):
        entry = names.entry(ground.key(f"pinned/deep/{number}"))
        record = engine.catalog.version(entry.version) if entry is not None else None
        if record is not None and any(copy.tier is Tier.NVME for copy in record.copies):
            found.append(number)
    return found


def figure(engine: Engine, name: str) -> float:
    value = engine.metrics.snapshot()[name]
    assert isinstance(value, float)
    return value


def test_what_is_pinned_stays_whatever_else_is_read_and_after_a_restart(small: Ground) -> None:
    async def scenario() -> None:
        async with small.engine() as (engine, names):
            await read(names, small, range(3))
            await churn(names, small)
            assert resident(engine, names, small) == [], "they went as others do"
            await pin(engine, names, small, "pinned")
            await read(names, small, range(3))
            await churn(names, small)
            assert resident(engine, names, small) == [0, 1, 2]
            assert figure(engine, "pinned_bytes") == 3 * FILE_BYTES
            [told] = await engine.pins.report()
            assert (told["name"], told["files"], told["resident_bytes"]) == ("pinned", 3, 3 * FILE_BYTES)
        async with small.engine() as (engine, names):
            await churn(names, small)
            assert resident(engine, names, small) == [0, 1, 2]
            assert await engine.pins.remove(Pin(names.origin_id, small.key("pinned")))
            assert figure(engine, "pinned_bytes") == 0
            await churn(names, small)
            assert resident(engine, names, small) == []
            assert not await engine.pins.remove(Pin(names.origin_id, small.key("pinned")))

    run(scenario)


def test_a_pin_follows_the_name_to_its_next_version(small: Ground) -> None:
    async def scenario() -> None:
        async with small.engine(profiles={"general": {"ttl_s": 0}}) as (engine, names):
            await pin(engine, names, small, "pinned/deep/0")
            await read(names, small, range(1))
            old = names.entry(small.key("pinned/deep/0"))
            await churn(names, small)
            small.put("pinned/deep/0", b"new" * 1000)
            assert await read_file(names, small.key("pinned/deep/0")) == b"new" * 1000
            new = names.entry(small.key("pinned/deep/0"))
            assert old is not None
            assert new is not None
            await churn(names, small)
            assert engine.catalog.version(old.version) is None
            assert engine.cache.held_by(new.version) == ["pinned"]
            assert figure(engine, "pinned_bytes") == 3000

    run(scenario)


def test_pins_keep_no_more_than_their_share(small: Ground) -> None:
    async def scenario() -> None:
        async with small.engine() as (engine, names):
            await pin(engine, names, small, "pinned")
            await read(names, small, range(10))
            await churn(names, small)
            assert len(resident(engine, names, small)) == 8
            assert figure(engine, "pinned_bytes") == 8 * FILE_BYTES
            assert figure(engine, "pins_over_total") == 2

    run(scenario)


def test_a_disk_that_does_not_take_a_pin_changes_nothing(small: Ground) -> None:
    async def scenario() -> None:
        async with small.engine() as (engine, names):
            await pin(engine, names, small, "pinned")
            (small.cache_dir / f"{FILE_NAME}.new").mkdir()
            with pytest.raises(Broken, match=r"pins\.json: .*; nothing was changed"):
                await pin(engine, names, small, "data")
            assert [told["name"] for told in await engine.pins.report()] == ["pinned"]

    run(scenario)


def test_there_are_only_so_many_pins(small: Ground) -> None:
    async def scenario() -> None:
        async with small.engine() as (engine, names):
            engine.pins._pins = {Pin(names.origin_id, small.key(str(each))): str(each) for each in range(PINS_MAX)}
            await pin(engine, names, small, "7")
            with pytest.raises(InvalidArgument, match="data: there are 1000 pins already"):
                await pin(engine, names, small, "data")

    run(scenario)


def test_a_damaged_list_of_pins_is_told_and_nothing_is_pinned(small: Ground, caplog: pytest.LogCaptureFixture) -> None:
    small.cache_dir.mkdir(exist_ok=True)
    (small.cache_dir / FILE_NAME).write_text('[["zz"]]')

    async def scenario() -> None:
        async with small.engine() as (engine, _):
            assert await engine.pins.report() == []

    run(scenario)
    assert "nothing is pinned: " in caplog.text
    caplog.clear()
