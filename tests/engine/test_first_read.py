"""Reading a name of which nothing fresh is known: what is here is not fetched again."""

from __future__ import annotations

import pytest

from rig.engine_ground import Ground, read_file, run
from tiercache.engine.engine import Engine
from tiercache.engine.first_read import first_read
from tiercache.engine.namespace import Namespace
from tiercache.engine.requests.names import expire
from tiercache.errors import Absent
from tiercache.model import BLOCK_SIZE_BYTES, Entry, Key


def reads(engine: Engine) -> float:
    requests = engine.metrics.snapshot()["origin_requests_total"]
    assert isinstance(requests, dict)
    return sum(count for name, count in requests.items() if name.startswith("read/"))


async def read_anew(engine: Engine, names: Namespace, key: Key) -> Entry:
    """As a client whose entry is too old."""
    expire(names.tree, key)
    return await first_read(names, engine.cache, key)


def test_what_is_here_is_asked_about_and_not_fetched_again(ground: Ground) -> None:
    async def scenario() -> None:
        ground.put("f", b"first")
        key = ground.key("f")
        async with ground.engine() as (engine, names):
            first = await first_read(names, engine.cache, key)
            assert reads(engine) == 1
            for _ in range(3):
                assert (await read_anew(engine, names, key)).version == first.version
                assert await read_file(names, key) == b"first"
            assert reads(engine) == 1
            ground.put("f", b"another")
            assert (await read_anew(engine, names, key)).version != first.version
            assert await read_file(names, key) == b"another"
            assert reads(engine) == 2

    run(scenario)


def test_what_is_not_here_any_more_comes_with_the_answer(ground: Ground) -> None:
    async def scenario() -> None:
        ground.put("f", b"first")
        key = ground.key("f")
        async with ground.engine() as (engine, names):
            first = await first_read(names, engine.cache, key)
            engine.cache.drop(first.version)
            await read_anew(engine, names, key)
            assert reads(engine) == 2
            assert await read_file(names, key) == b"first"
            assert reads(engine) == 2

    run(scenario)


def test_a_large_file_is_not_begun_to_be_fetched_to_ask_about_it(ground: Ground) -> None:
    async def scenario() -> None:
        ground.put("f", bytes(BLOCK_SIZE_BYTES + 1))
        async with ground.engine() as (engine, names):
            await first_read(names, engine.cache, ground.key("f"))
            before = reads(engine)
            entry = await read_anew(engine, names, ground.key("f"))
            assert entry.size_bytes == BLOCK_SIZE_BYTES + 1
            assert reads(engine) == before

    run(scenario)


def test_what_is_here_and_gone_at_the_origin_is_absent(ground: Ground) -> None:
    async def scenario() -> None:
        ground.put("f", b"first")
        key = ground.key("f")
        async with ground.engine() as (engine, names):
            await first_read(names, engine.cache, key)
            ground.direct.delete(key)
            with pytest.raises(Absent):
                await read_anew(engine, names, key)

    run(scenario)
