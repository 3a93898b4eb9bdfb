"""Plans that an engine runs: files are here before they are opened, also after a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rig.engine_ground import Ground, read_file, run, until
from tiercache.engine import plans as module
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.engine.plans import keys_of
from tiercache.errors import InvalidArgument
from tiercache.model import Key
from tiercache.readahead import planned
from tiercache.readahead.plan import TRIES_MAX

FILES = 40
ONE_AHEAD = {"plan": {"lead_min": 1, "lead_max": 1}}


def content(number: int) -> bytes:
    return b"%d " % number * 20


def put_files(ground: Ground) -> list[Key]:
    for number in range(FILES):
        ground.put(f"f{number}", content(number))
    return [ground.key(f"f{number}") for number in range(FILES)]


def write(engine: Engine, name: str, keys: Sequence[Key]) -> str:
    Path(engine.plans.directory, f"{name}.keys").write_bytes(b"".join(key + b"\0" for key in keys))
    return name


def damage(engine: Engine) -> None:
    Path(engine.plans.directory, "damaged.json").write_text("{")


def files(engine: Engine) -> dict[str, float]:
    found = engine.metrics.snapshot()["plan_files_total"]
    assert isinstance(found, dict)
    return found


def reads(engine: Engine) -> dict[str, float]:
    found = engine.metrics.snapshot()["plan_reads_total"]
    assert isinstance(found, dict)
    return found


def is_here(engine: Engine, names: Namespace, key: Key) -> bool:
    entry = names.known(key)
    return entry is not None and engine.cache.locate(names.tree.version_ref(key, entry)) is not None


def test_planned_files_are_here_before_they_are_opened_and_count_as_hits(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine() as (engine, names):
            order = [*keys[1::2], *keys[0::2]]
            engine.plans.begin(write(engine, "p", order), names, "reader")
            await until(lambda: files(engine).get("fetched") == FILES)
            for key in order:
                assert is_here(engine, names, key)
                assert await read_file(names, key) == content(keys.index(key))
            assert reads(engine) == {"ready": FILES, "late": 0, "missed": 0}
            figures = engine.metrics.snapshot()
            assert figures["misses_total"] == 0
            assert figures["plan_held_bytes"] == 0

    run(scenario)


def test_no_more_is_brought_than_the_reader_is_ahead_of(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine(**ONE_AHEAD) as (engine, names):
            engine.plans.begin(write(engine, "p", keys), names, "reader")
            for number, key in enumerate(keys):
                await until(lambda number=number: files(engine).get("fetched") == number + 1)  # type: ignore[misc]
                assert [is_here(engine, names, other) for other in keys[number : number + 2]] == [True, False][
                    : FILES - number
                ]
                await read_file(names, key)

    run(scenario)


def test_unknown_names_directories_and_files_that_come_twice_do_no_harm(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "PAUSE_S", 0.001)

    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine() as (engine, names):
            plan = [keys[0], ground.key("missing"), keys[0], ground.root, b"../../etc/passwd", keys[1]]
            engine.plans.begin(write(engine, "p", plan), names, "reader")
            await until(lambda: is_here(engine, names, keys[1]))
            await until(lambda: engine.metrics.snapshot()["plan_in_flight"] == 0)
            told = files(engine)
            assert told["fetched"] + told.get("resident", 0) == 3
            assert told["absent"] >= 1
            assert 2 <= told["absent"] + told["failed"] <= 2 + TRIES_MAX  # S3 finds the name wrong each time
            assert await read_file(names, keys[0]) == content(0)

    run(scenario)


def test_the_next_plan_of_a_reader_takes_the_place_of_the_one_before(ground: Ground) -> None:
    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine(**ONE_AHEAD) as (engine, names):
            engine.plans.begin(write(engine, "first", keys), names, "reader")
            engine.plans.begin(write(engine, "other", keys), names, "another reader")
            engine.plans.begin(write(engine, "second", keys[::-1]), names, "reader")
            assert [plan["reader"] for plan in engine.plans.status()] == ["another reader", "reader"]
            assert "first.keys" not in os.listdir(engine.plans.directory)
            engine.plans.reached("first", 10)  # a late notice
            engine.plans.end("first")
            engine.plans.end("second")
            engine.plans.end("other")
            assert engine.plans.status() == []
            assert os.listdir(engine.plans.directory) == []

    run(scenario)


@pytest.mark.parametrize("name", ["nowhere", "../p", "", "a/b"])
def test_only_files_of_its_directory_are_plans(posix_ground: Ground, name: str) -> None:
    async def scenario() -> None:
        async with posix_ground.engine() as (engine, names):
            write(engine, "p", [])
            with pytest.raises(InvalidArgument):
                engine.plans.begin(name, names, "reader")

    run(scenario)


def test_the_next_engine_goes_on_where_the_reader_is(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTE_S", 0.001)

    async def scenario() -> None:
        keys = put_files(ground)
        async with ground.engine(**ONE_AHEAD) as (engine, names):
            engine.plans.begin(write(engine, "p", keys), names, "reader")
            engine.plans.reached("p", 30)
            note = Path(engine.plans.directory, "p.json")
            await until(lambda: b'"position": 30' in note.read_bytes())
            write(engine, "orphan", keys)
            damage(engine)
        async with ground.started(**ONE_AHEAD) as engine:
            assert sorted(os.listdir(engine.plans.directory)) == ["p.json", "p.keys"]
            names, _ = await engine.attach(ground.url, options=ground.options)  # a client brings the keys again
            await until(lambda: [plan["read"] for plan in engine.plans.status()] == [30])
            await until(lambda: is_here(engine, names, keys[30]))
            assert not is_here(engine, names, keys[29])

    run(scenario)


@pytest.mark.parametrize("note", [{"profile": "of another release"}, {"position": "x"}])
def test_a_plan_that_waits_and_cannot_be_run_is_given_up(
    posix_ground: Ground, monkeypatch: pytest.MonkeyPatch, note: dict[str, str]
) -> None:
    """Nobody has opened its origin when the engine starts, and then it turns out to mean nothing."""
    monkeypatch.setattr(module, "NOTE_S", 0.001)

    async def scenario() -> None:
        keys = put_files(posix_ground)
        async with posix_ground.engine() as (engine, names):
            engine.plans.begin(write(engine, "p", keys), names, "reader")
        path = posix_ground.cache_dir / "plans" / "p.json"
        about = json.loads(path.read_text())
        about["source"][0] = "nowhere://"
        path.write_text(json.dumps({**about, **note}))
        async with posix_ground.started() as engine:
            assert sorted(os.listdir(engine.plans.directory)) == ["p.json", "p.keys"]
            names, _ = await engine.attach(posix_ground.url)
            await until(lambda: os.listdir(engine.plans.directory) == [])
            assert await read_file(names, keys[0]) == content(0)

    run(scenario)


def test_a_plan_of_which_nothing_is_read_is_given_up(posix_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTE_S", 0.001)

    async def scenario() -> None:
        async with posix_ground.engine(plan={"idle_s": 0}) as (engine, names):
            engine.plans.begin(write(engine, "p", put_files(posix_ground)), names, "reader")
            await until(lambda: engine.plans.status() == [])

    run(scenario)


@pytest.mark.parametrize("skip", [0, 1, 999, 1000, 1500, 5000])
def test_keys_are_read_bit_by_bit(tmp_path: Path, skip: int) -> None:
    keys = [b"%d" % number * (1 + number % 90) for number in range(1500)]
    path = tmp_path / "p.keys"
    path.write_bytes(b"".join(key + b"\0" for key in keys) + b"cut off")
    assert list(keys_of(path, skip=skip)) == keys[skip:]
    assert list(keys_of(tmp_path / "missing")) == []
