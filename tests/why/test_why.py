"""``tiercache why`` on a real engine and an S3 server: each reason is brought about before it is told."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rig.engine_ground import Ground, read_file, run, until, write_file
from rig.faultproxy import FaultProxy
from tiercache.cli.why import print_why
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.engine.places import Asker
from tiercache.errors import Absent, Denied, InvalidArgument, TierCacheError
from tiercache.model import Key, Tier
from tiercache.readahead.plan import HORIZON_ENTRIES

KIB = 1024
MIB = 1024 * KIB
SMALL_BYTES = 100 * KIB


async def why(engine: Engine, ground: Ground, name: str) -> dict[str, Any]:
    return await engine.why.path(f"{ground.url}/{name}", Asker("", ground.options))


Say = Callable[[dict[str, Any]], dict[str, list[str]]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """What the command prints, by the first word of each line; lines without one belong to that above."""

    def lines(file: dict[str, Any]) -> dict[str, list[str]]:
        print_why(file)
        said: dict[str, list[str]] = {}
        name = ""
        for line in capsys.readouterr().out.splitlines():
            name = line[:11].strip() or name
            said.setdefault(name, []).append(line[11:])
        return said

    return lines


def without_times(lines: list[str]) -> list[str]:
    return [re.sub(r"at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \([^)]+ ago\)", "THEN", line) for line in lines]


def in_one_tier(ground: Ground, **nvme: Any) -> Ground:
    ground.settings = {"ram": {"capacity": 0}, "nvme": {"capacity": "256MiB", "free_space_floor": 0, **nvme}}
    return ground


def put(ground: Ground, *names: str, size_bytes: int = SMALL_BYTES) -> None:
    for name in names:
        ground.put(name, name.encode()[:1] * size_bytes)


def reads(ground: Ground, names: Namespace, *files: str) -> Callable[[], Any]:
    async def read_all() -> None:
        for file in files:
            await read_file(names, ground.key(file))

    return read_all


def test_what_was_read_is_here_and_was_let_in(s3_ground: Ground, say: Say) -> None:
    ground = in_one_tier(s3_ground)
    put(ground, "a")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await read_file(names, ground.key("a"))
            file = await why(engine, ground, "a")
            assert file["tiers"]["nvme"]["here"] == "all"
            assert file["version"] == names.known(ground.key("a")).version.hex()  # type: ignore[union-attr]
            assert without_times(say(file)["nvme"]) == ["all of it is here", "let in THEN"]
            assert "engine" not in say(file)
            assert engine.metrics.snapshot()["why_entries"] > 0

    run(scenario)


def test_with_a_ram_tier_both_are_told(s3_ground: Ground, say: Say) -> None:
    put(s3_ground, "a")

    async def scenario() -> None:
        async with s3_ground.engine() as (engine, names):
            await read_file(names, s3_ground.key("a"))
            said = say(await why(engine, s3_ground, "a"))
            assert without_times(said["ram"]) == without_times(said["nvme"]) == ["all of it is here", "let in THEN"]

    run(scenario)


@pytest.mark.parametrize(
    ("nvme", "read", "told"),
    [
        ({"exclude": ["*.tmp"]}, ["a.tmp"], "its name is excluded (nvme.include, nvme.exclude)"),
        ({"second_miss_s": "1h"}, ["a.tmp"], "it was missed for the first time (nvme.second_miss_s)"),
        ({"daily_writes_max": MIB}, ["b", "a.tmp"], "the budget of writes is used up (nvme.daily_writes_max)"),
        ({"capacity": 150 * KIB}, ["a.tmp"], "larger than one object may be (nvme.max_object_share)"),
        ({"capacity": 250 * KIB, "policy": "hold"}, ["b", "c", "a.tmp"], "the policy hold does not let it in"),
        ({"capacity": 0}, ["a.tmp"], "the tier is off"),
        ({"free_space_floor": "100%"}, ["a.tmp"], "the disk is too full (nvme.free_space_floor)"),
    ],
)
def test_what_was_refused_is_told_with_its_reason(
    s3_ground: Ground, say: Say, nvme: dict[str, Any], read: list[str], told: str
) -> None:
    ground = in_one_tier(s3_ground, **nvme)
    put(ground, "a.tmp", "b", "c")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await reads(ground, names, *read)()
            said = say(await why(engine, ground, "a.tmp"))
            assert without_times(said["nvme"]) == ["not here", f"not let in THEN: {told}"]

    run(scenario)


A_QUOTA = [{"path": "*.tmp", "capacity": 250 * KIB}]


@pytest.mark.parametrize(
    ("nvme", "told"),
    [
        ({"policy": "hold", "quotas": A_QUOTA}, "its quota is full (nvme.quotas)"),
        (
            {"max_object_share": 0.3, "quotas": A_QUOTA},
            "larger than one object may be in its quota (nvme.quotas, nvme.max_object_share)",
        ),
    ],
)
def test_what_its_quota_refused_is_told(s3_ground: Ground, say: Say, nvme: dict[str, Any], told: str) -> None:
    ground = in_one_tier(s3_ground, **nvme)
    put(ground, "a.tmp", "b.tmp", "c.tmp", "d")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await reads(ground, names, "c.tmp", "b.tmp", "a.tmp", "d")()
            said = say(await why(engine, ground, "a.tmp"))["nvme"]
            assert without_times(said) == ["not here", "counts against the quota of *.tmp", f"not let in THEN: {told}"]
            said = say(await why(engine, ground, "d"))["nvme"]
            assert without_times(said) == ["all of it is here", "let in THEN"]

    run(scenario)


def test_what_was_evicted_is_told_with_what_needed_its_room(s3_ground: Ground, say: Say) -> None:
    ground = in_one_tier(s3_ground, capacity=250 * KIB, policy="lru")
    put(ground, "a", "b", "c")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await reads(ground, names, "a", "b", "c")()
            said = without_times(say(await why(engine, ground, "a"))["nvme"])
            assert said == [
                "not here",
                "let in THEN",
                f"evicted THEN to make room for {ground.url}/c, chosen by lru",
            ]
            await read_file(names, ground.key("a"))  # let in again: the eviction is history
            assert without_times(say(await why(engine, ground, "a"))["nvme"])[0] == "all of it is here"

    run(scenario)


def test_a_copy_that_others_changed_was_dropped(s3_ground: Ground, say: Say) -> None:
    ground = in_one_tier(s3_ground)
    put(ground, "a")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await read_file(names, ground.key("a"))
            version = names.known(ground.key("a")).version  # type: ignore[union-attr]
            os.truncate(engine.cache.tiers[Tier.NVME].path(version), 5)
            await read_file(names, ground.key("a"))
            said = without_times(say(await why(engine, ground, "a"))["nvme"])
            assert said == ["all of it is here", "let in THEN", "dropped THEN: its file is gone, cut or replaced"]

    run(scenario)


def test_a_file_that_is_read_in_order_is_read_ahead_and_here_in_part(s3_ground: Ground, say: Say) -> None:
    ground = in_one_tier(s3_ground)
    ground.put("large", bytes(40 * MIB))

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            handle = await names.open((await names.lookup(ground.key("large"))).inode)
            for number in range(4):
                await handle.read(number * 128 * KIB, 128 * KIB)
            said = say(await why(engine, ground, "large"))
            assert without_times(said["ahead"]) == ["sent for THEN before it was read: its reader reads in order"]
            assert said["nvme"][0] == "a part of it is here"
            await handle.close()

    run(scenario)


def plan(engine: Engine, names: Namespace, keys: list[Key]) -> None:
    Path(engine.plans.directory, "p.keys").write_bytes(b"".join(key + b"\0" for key in keys))
    engine.plans.begin("p", names, "rank 0")


def test_a_planned_file_is_told_with_the_place_of_its_next_use(s3_ground: Ground, say: Say) -> None:
    ground = in_one_tier(s3_ground)
    put(ground, "a", "b", "far")
    key = ground.key

    async def scenario() -> None:
        async with ground.engine(plan={"lead_min": 2, "lead_max": 2}) as (engine, names):
            order = [key("a"), key("b")] + [key("a")] * HORIZON_ENTRIES + [key("far")]
            plan(engine, names, order)
            figures = engine.metrics.snapshot
            await until(lambda: figures()["plan_files_total"].get("fetched") == 2)  # type: ignore[union-attr]
            said = say(await why(engine, ground, "b"))
            assert said["planned"] == ["entry 1 of the plan of rank 0, 1 ahead of the reader; it is ready"]
            assert without_times(said["ahead"]) == ["sent for THEN before it was read: a plan has it"]
            beyond = HORIZON_ENTRIES + 2
            said = say(await why(engine, ground, "far"))
            assert said["planned"] == [
                f"entry {beyond} of the plan of rank 0, {beyond} ahead of the reader; not sent for yet"
            ]
            await reads(ground, names, "b", "far")()
            assert "planned" not in say(await why(engine, ground, "b"))

    run(scenario)


def test_a_kept_checkpoint_is_told(s3_ground: Ground, say: Say) -> None:
    ground = in_one_tier(s3_ground)
    put(ground, "another")

    async def scenario() -> None:
        async with ground.engine(staging={"capacity": MIB, "upload_delay_s": 3600}) as (engine, names):
            await names.mkdir(ground.key("checkpoint-1"), mode=0o755, uid=0, gid=0)
            await write_file(names, ground.key("checkpoint-1/a"), b"c" * KIB)
            said = say(await why(engine, ground, "checkpoint-1/a"))
            assert said["staged"] == ["what was written here is read, and it is sealed"]
            assert (await engine.drain(30)).left == []
            said = say(await why(engine, ground, "checkpoint-1/a"))
            assert said["held"] == ["not evicted now: kept checkpoint"]
            assert without_times(said["nvme"]) == ["all of it is here", "let in THEN"]

    run(scenario)


def test_the_last_error_of_the_origin_is_told(s3_ground: Ground, s3_proxy: FaultProxy, say: Say) -> None:
    ground = in_one_tier(s3_ground)
    ground.options = s3_proxy.options()
    put(ground, "a")
    ground.put("large", bytes(8 * MIB))

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            for name in ("a", "large"):
                await names.lookup(ground.key(name))
                s3_proxy.answer(403, "AccessDenied", operation="GetObject", key=ground.key(name))
                with pytest.raises(Denied):
                    await read_file(names, ground.key(name))
                s3_proxy.clear()
                [failure] = say(await why(engine, ground, name))["failure"]
                assert "access denied" in failure

    run(scenario)


def test_what_the_engine_does_not_remember_is_told_as_that(s3_ground: Ground, say: Say) -> None:
    ground = in_one_tier(s3_ground)
    put(ground, "a", "b")

    async def scenario() -> None:
        async with ground.engine(why={"entries": 1}) as (engine, names):
            [said] = without_times(say(await why(engine, ground, "a"))["engine"])
            assert said == "nothing was decided of it since its start THEN"
            await reads(ground, names, "a", "b")()
            [said] = without_times(say(await why(engine, ground, "a"))["engine"])
            assert said == (
                "nothing was decided of it since its start THEN, or longer ago than the last 1 decision (why.entries)"
            )
        async with ground.engine(why={"entries": 0}) as (engine, names):
            said = say(await why(engine, ground, "a"))
            assert said["nvme"] == ["all of it is here"]
            assert said["engine"] == ["remembers no decisions: why.entries is 0"]

    run(scenario)


@pytest.mark.parametrize(
    ("name", "error"), [("nowhere", Absent), ("sub", InvalidArgument)], ids=["absent", "directory"]
)
def test_what_is_no_file_is_one_line(s3_ground: Ground, name: str, error: type[TierCacheError]) -> None:
    put(s3_ground, "sub/a")

    async def scenario() -> None:
        async with s3_ground.engine() as (engine, _):
            with pytest.raises(error, match=name):
                await why(engine, s3_ground, name)

    run(scenario)
