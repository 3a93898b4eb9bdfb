"""A file that others changed at the origin while it was changed here: both are kept until somebody decides."""

from __future__ import annotations

import os

import pytest

from rig.engine_ground import Ground, read_file, run
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, InvalidArgument
from tiercache.model import Keep

OURS, THEIRS = b"ours: other bytes", b"theirs"
SETTINGS = {"staging": {"upload_delay_s": 600}, "profiles": {"general": {"ttl_s": 0, "negative_ttl_s": 0}}}


async def conflict(engine: Engine, names: Namespace, ground: Ground, how: str) -> None:
    key = ground.key("a")
    if how == "created":
        _, handle = await names.create(key, mode=0o644, uid=0, gid=0, exclusive=True)
    else:
        handle = await names.open((await names.lookup(key)).inode, write=True)
    await handle.write(0, OURS)
    await handle.flush()
    await handle.close()
    if how == "removed":
        ground.direct.delete(key)
    else:
        ground.put("a", THEIRS)
    [left] = (await engine.drain(30)).left
    assert names.writes.state(await names.lookup(key)) == "conflict"
    assert engine.journal.get(left) is not None


@pytest.fixture(params=["modified", "created", "removed"])
def how(request: pytest.FixtureRequest, ground: Ground) -> str:
    ground.put("b", b"b")
    if request.param != "created":
        ground.put("a", b"before")
    return str(request.param)


def test_ours_go_up_over_theirs(ground: Ground, how: str) -> None:
    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await conflict(engine, names, ground, how)
            assert await names.conflicts.resolve(ground.key("a"), Keep.OURS) == ground.key("a")
            assert (await engine.drain(30)).left == []
            assert ground.get("a") == OURS

    run(scenario)


def test_theirs_are_seen_when_ours_are_given_up(ground: Ground, how: str) -> None:
    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await conflict(engine, names, ground, how)
            assert await names.conflicts.resolve(ground.key("a"), Keep.THEIRS) == b""
            assert engine.staging.used_bytes == 0
            if how == "removed":
                with pytest.raises(Absent):
                    await names.lookup(ground.key("a"))
            else:
                assert await read_file(names, ground.key("a")) == THEIRS
            assert (await engine.drain(30)).left == []
            assert ground.names() == (["b"] if how == "removed" else ["a", "b"])

    run(scenario)


def test_who_has_ours_open_reads_them_to_the_end(ground: Ground) -> None:
    ground.put("a", b"before")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await conflict(engine, names, ground, "modified")
            handle = await names.open((await names.lookup(ground.key("a"))).inode)
            await names.conflicts.resolve(ground.key("a"), Keep.THEIRS)
            assert bytes(await handle.read(0, 100)) == OURS
            assert await read_file(names, ground.key("a")) == THEIRS
            await handle.close()
            assert engine.staging.used_bytes == 0

    run(scenario)


def test_both_stay_under_two_names(ground: Ground, how: str) -> None:
    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await conflict(engine, names, ground, how)
            beside = await names.conflicts.resolve(ground.key("a"), Keep.BOTH)
            assert beside.startswith(ground.key("a.conflict-"))
            assert (await engine.drain(30)).left == []
            name = os.fsdecode(beside[len(ground.root) + 1 :])
            assert ground.get(name) == OURS
            assert await read_file(names, beside) == OURS
            if how == "removed":
                assert ground.names() == [name, "b"]
            else:
                assert await read_file(names, ground.key("a")) == THEIRS
                assert ground.get("a") == THEIRS

    run(scenario)


def test_a_renamed_conflict_leaves_what_others_wrote(ground: Ground, how: str) -> None:
    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            await conflict(engine, names, ground, how)
            await names.rename(ground.key("a"), ground.key("c"))
            assert (await engine.drain(30)).left == []
            assert ground.get("c") == OURS
            if how == "removed":
                assert ground.names() == ["b", "c"]
            else:
                assert ground.get("a") == THEIRS
                assert await read_file(names, ground.key("a")) == THEIRS

    run(scenario)


def test_a_lost_file_can_only_be_given_up(ground: Ground) -> None:
    ground.put("a", b"before")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (engine, names):
            key = ground.key("a")
            handle = await names.open((await names.lookup(key)).inode, write=True)
            await handle.write(0, OURS)
            await handle.flush()
            await handle.close()
            [record] = list(engine.journal.records())
            os.truncate(engine.staging.path(record.id), 3)
            assert (await engine.drain(30)).left == [record.id]
            for keep in (Keep.OURS, Keep.BOTH):
                with pytest.raises(InvalidArgument, match="only --keep theirs is left"):
                    await names.conflicts.resolve(key, keep)
            await names.conflicts.resolve(key, Keep.THEIRS)
            assert await read_file(names, key) == b"before"
            assert (engine.staging.lost_directory / str(record.id)).exists()
            assert list(engine.journal.records()) == []

    run(scenario)


def test_what_is_in_no_conflict_cannot_be_resolved(ground: Ground) -> None:
    ground.put("a", b"1")

    async def scenario() -> None:
        async with ground.engine(**SETTINGS) as (_, names):
            for name in ("a", "none"):
                with pytest.raises(InvalidArgument, match="is in no conflict"):
                    await names.conflicts.resolve(ground.key(name), Keep.OURS)

    run(scenario)
