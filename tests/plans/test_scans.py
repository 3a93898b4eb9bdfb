"""Files that are brought ahead of readers that told nothing: an engine sees who goes through a directory."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from rig.engine_ground import Ground, read_file, run
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import TierCacheError
from tiercache.model import Key

FILES = 60
ON: dict[str, Any] = {"scan": {"files_max": 1000}}


def content(number: int) -> bytes:
    return b"%d " % number * 20


def put_files(ground: Ground, files: int = FILES, *, directory: str = "d", ending: str = "jpg") -> list[Key]:
    names = [f"{directory}/{number:06}.{ending}" for number in range(files)]
    for number, name in enumerate(names):
        ground.put(name, content(number))
    return [ground.key(name) for name in names]


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await trio.sleep(0.001)


def figure(engine: Engine, name: str) -> Any:
    return engine.metrics.snapshot()[name]


def gets(engine: Engine) -> float:
    """Reads of the origin that were answered with bytes."""
    requests = figure(engine, "origin_requests_total")
    return sum(count for labels, count in requests.items() if labels in ("read/ok", "open/ok"))


async def read(engine: Engine, names: Namespace, key: Key) -> bytes:
    """Read a file, and let all that is guessed then come."""
    data = await read_file(names, key)
    await until(lambda: figure(engine, "plan_in_flight") == 0)
    return data


def test_a_scan_finds_all_but_the_first_files_here_and_asks_for_each_once(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine("dataset", **ON) as (engine, names):
            await names.names.children(ground.key("d"))
            for number, key in enumerate(keys):
                assert await read(engine, names, key) == content(number)
            assert figure(engine, "misses_total") == 3
            assert figure(engine, "scan_reads_total") == {"ready": FILES - 3, "late": 0, "missed": 0}
            assert figure(engine, "scan_files_total")["fetched"] == FILES - 3
            assert figure(engine, "scan_files_total")["skipped"] == 0
            assert gets(engine) == FILES
            assert figure(engine, "scans") == 1
            assert figure(engine, "scan_window_files") >= FILES - 3

    run(scenario)


def test_a_directory_that_nobody_listed_is_listed_once(s3_ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(s3_ground)
        async with s3_ground.engine("dataset", **ON) as (engine, names):

            def lists() -> float:
                requests = figure(engine, "origin_requests_total")
                return sum(count for labels, count in requests.items() if labels.startswith("list/"))

            await read(engine, names, keys[0])
            await read(engine, names, keys[1])
            before = lists()
            await read(engine, names, keys[2])
            await until(lambda: bool(engine.catalog.listed_ns(names.origin_id, s3_ground.key("d"))))
            for key in keys[3:]:
                await read(engine, names, key)
            assert lists() == before + 1
            assert figure(engine, "misses_total") == 4

    run(scenario)


def test_workers_with_a_share_each_are_served_by_turns(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine("dataset", **ON) as (engine, names):
            await names.names.children(ground.key("d"))
            shares = [keys[worker::4] for worker in range(4)]
            rng = random.Random(1)
            while any(shares):
                await read(engine, names, rng.choice([share for share in shares if share]).pop(0))
            assert figure(engine, "misses_total") <= 16
            assert figure(engine, "scan_reads_total")["ready"] >= FILES - 16
            assert gets(engine) == FILES

    run(scenario)


def test_every_fourth_file_alone_is_brought_for_the_worker_that_reads_those(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine("dataset", **ON) as (engine, names):
            await names.names.children(ground.key("d"))
            for key in keys[1::4]:
                await read(engine, names, key)
            assert figure(engine, "misses_total") == 3
            assert gets(engine) == FILES / 4

    run(scenario)


def test_siblings_of_a_sample_come_with_it_in_any_order(ground: Ground) -> None:
    async def scenario() -> None:
        images, labels = put_files(ground), put_files(ground, ending="json")
        samples = list(zip(images, labels, strict=True))
        random.Random(1).shuffle(samples)
        async with ground.engine("dataset", **ON) as (engine, names):
            await names.names.children(ground.key("d"))
            for sample in samples[:10]:
                for key in sample:
                    await read(engine, names, key)
            missed = figure(engine, "misses_total")
            for sample in samples[10:]:
                for key in sample:
                    await read(engine, names, key)
            assert figure(engine, "misses_total") - missed <= FILES - 10
            assert gets(engine) == 2 * FILES

    run(scenario)


def test_random_order_brings_next_to_nothing(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground, 400)
        random.Random(1).shuffle(keys)
        async with ground.engine("dataset", **ON) as (engine, names):
            await names.names.children(ground.key("d"))
            for key in keys[:100]:
                await read(engine, names, key)
            assert gets(engine) <= 100 + 20
            assert figure(engine, "misses_total") >= 90

    run(scenario)


def test_a_directory_of_ten_thousand_names_is_read_bit_by_bit(posix_ground: Ground) -> None:
    directory = Path(posix_ground.path("d"))
    directory.mkdir()
    for number in range(10_000):
        (directory / f"{number:06}.jpg").write_bytes(b"image")
    keys = [posix_ground.key(f"d/{number:06}.jpg") for number in range(9_000, 10_000)]

    async def scenario() -> None:
        async with posix_ground.engine("dataset", **ON) as (engine, names):
            await names.names.children(posix_ground.key("d"))
            for key in keys:
                await read_file(names, key)
            assert sum(figure(engine, "scan_reads_total").values()) >= 995
            assert gets(engine) == 1000

    run(scenario)


def test_files_that_are_removed_in_the_middle_are_absent_and_no_more(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine("dataset", scan={"files_max": 4}) as (engine, names):
            await names.names.children(ground.key("d"))
            for key in keys[:20]:
                await read(engine, names, key)
            for key in keys[30:50]:
                ground.direct.delete(key)
            for number, key in enumerate(keys):
                if number >= 50 or 20 <= number < 30:
                    assert await read(engine, names, key) == content(number)
            with pytest.raises(TierCacheError):
                await read_file(names, keys[40])
            assert figure(engine, "misses_total") <= 10
            assert figure(engine, "scan_files_total").get("skipped", 0) == 0

    run(scenario)


def test_what_is_planned_is_not_guessed(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine("dataset", plan={"lead_min": 1, "lead_max": 1}, **ON) as (engine, names):
            await names.names.children(ground.key("d"))
            path = f"{engine.plans.directory}/p.keys"
            with open(path, "wb") as file:  # noqa: ASYNC230 - a few bytes
                file.write(b"".join(key + b"\0" for key in keys))
            engine.plans.begin("p", names, "reader")
            for key in keys:
                await read(engine, names, key)
            assert sum(figure(engine, "plan_reads_total").values()) == FILES
            assert figure(engine, "scans") == 0
            assert gets(engine) == FILES

    run(scenario)


def test_what_is_not_read_any_more_is_given_up(posix_ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(posix_ground)
        async with posix_ground.engine("dataset", scan={"files_max": 1000, "idle_s": 0.5}) as (engine, names):
            await names.names.children(posix_ground.key("d"))
            for key in keys[:20]:
                await read_file(names, key)
            await until(lambda: figure(engine, "scan_files_total")["skipped"] >= 1)
            assert figure(engine, "plan_held_bytes") == 0
            assert figure(engine, "scans") == 0

    run(scenario)


def test_nothing_is_guessed_where_it_is_turned_off(posix_ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(posix_ground)
        async with posix_ground.engine("dataset", scan={"files_max": 0}) as (engine, names):
            await names.names.children(posix_ground.key("d"))
            for key in keys[:20]:
                await read(engine, names, key)
            assert gets(engine) == 20

    run(scenario)
