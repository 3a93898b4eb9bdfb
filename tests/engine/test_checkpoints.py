"""The checkpoints in a directory, as an engine sees them over a file tree and over a store."""

from __future__ import annotations

import pytest

from rig.engine_ground import Ground, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.entries import now_ns
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, NotDirectory


async def told(names: Namespace, ground: Ground) -> list[tuple[str, str, str]]:
    found = await names.checkpoints.list(ground.root)
    return [(checkpoint.name.decode(), checkpoint.level.label, checkpoint.lacks) for checkpoint in found]


async def latest(names: Namespace, ground: Ground) -> str | None:
    found = await names.checkpoints.latest(ground.root)
    return None if found is None else found.name.decode()


def test_checkpoints_are_told_by_name_or_manifest_the_latest_first(ground: Ground) -> None:
    for name in (
        "checkpoint-9/a",
        "checkpoint-10/a",
        "odd/.metadata",
        "odd/__0_0.distcp",
        "logs/a",
        "step=3.ckpt",
        "x.pt",
    ):
        ground.put(name, b"12345")

    async def scenario() -> None:
        async with ground.engine() as (_, names):
            found = await names.checkpoints.list(ground.root)
            assert [checkpoint.name for checkpoint in found] == [
                b"checkpoint-10",
                b"checkpoint-9",
                b"step=3.ckpt",
                b"odd",
            ]
            assert all(checkpoint.complete for checkpoint in found)
            assert [(checkpoint.files, checkpoint.size_bytes) for checkpoint in found] == [
                (1, 5),
                (1, 5),
                (1, 5),
                (2, 10),
            ]
            assert await latest(names, ground) == "checkpoint-10"

    run(scenario)


def test_a_checkpoint_is_complete_when_its_last_file_has_reached_the_level(ground: Ground) -> None:
    ground.put("checkpoint-1/a", b"1")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            held = interpose(names).stop("write")
            await names.mkdir(ground.key("checkpoint-2"), mode=0o755, uid=0, gid=0)
            await write_file(names, ground.key("checkpoint-2/a"), b"2")
            await held.reached()
            assert await told(names, ground) == [
                ("checkpoint-2", "memory", "1 of 1 not at level origin yet"),
                ("checkpoint-1", "origin", ""),
            ]
            assert await latest(names, ground) == "checkpoint-1"
            held.open()
            assert (await engine.drain(30)).left == []
            assert await told(names, ground) == [("checkpoint-2", "origin", ""), ("checkpoint-1", "origin", "")]
            assert await latest(names, ground) == "checkpoint-2"

    run(scenario)


def test_a_checkpoint_that_is_being_written_is_not_complete_at_any_level(ground: Ground) -> None:
    ground.put("a", b"1")

    async def scenario() -> None:
        async with ground.engine(checkpoints={"level": "memory"}, profiles={"general": {"upload": False}}) as (
            _,
            names,
        ):
            _, handle = await names.create(ground.key("checkpoint-1.ckpt"), mode=0o644, uid=0, gid=0)
            await handle.write(0, b"1")
            assert await told(names, ground) == [("checkpoint-1.ckpt", "memory", "checkpoint-1.ckpt is being written")]
            assert await latest(names, ground) is None
            await handle.flush()
            await handle.close()
            assert await latest(names, ground) == "checkpoint-1.ckpt"

    run(scenario)


def test_no_directory_and_no_checkpoint_are_told_apart(ground: Ground) -> None:
    ground.put("a", b"1")

    async def scenario() -> None:
        async with ground.engine() as (_, names):
            assert await told(names, ground) == []
            assert await latest(names, ground) is None
            with pytest.raises(Absent):
                await names.checkpoints.list(ground.key("none"))
            with pytest.raises(NotDirectory):
                await names.checkpoints.latest(ground.key("a"))

    run(scenario)


def test_between_two_files_that_nothing_announces_a_checkpoint_is_not_complete(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    later_ns = 0
    monkeypatch.setattr("tiercache.engine.checkpoints.now_ns", lambda: now_ns() + later_ns)
    ground.put("checkpoint-1/.metadata", b"1")

    async def scenario() -> None:
        nonlocal later_ns
        async with ground.engine(checkpoints={"settle_s": 600}) as (engine, names):
            await names.mkdir(ground.key("checkpoint-2"), mode=0o755, uid=0, gid=0)
            for name in ("a", "b"):
                await write_file(names, ground.key(f"checkpoint-2/{name}"), b"2")
                await engine.drain(30)
                lacks = "changed less than 600 s ago, and no file in it tells that all are there"
                assert await told(names, ground) == [
                    ("checkpoint-2", "origin", lacks),
                    ("checkpoint-1", "origin", ""),
                ]
                assert await latest(names, ground) == "checkpoint-1"
            await write_file(names, ground.key("checkpoint-3.ckpt"), b"one file")
            await engine.drain(30)
            assert await latest(names, ground) == "checkpoint-3.ckpt"
            await names.unlink(ground.key("checkpoint-3.ckpt"), keep_directory=True)
            later_ns = 601_000_000_000
            assert await latest(names, ground) == "checkpoint-2"
            later_ns = 0
            await write_file(names, ground.key("checkpoint-2/latest"), b"2")
            await engine.drain(30)
            assert await latest(names, ground) == "checkpoint-2"

    run(scenario)
