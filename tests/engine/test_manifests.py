"""What tells of shards that have not gone up yet: a manifest that is written under another name, and renamed or copied
to its own, and a symlink."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Exists
from tiercache.model import Kind, StagedState

MANIFEST = b'{"weight_map": {}}'


@asynccontextmanager
async def shard_on_its_way(ground: Ground) -> AsyncIterator[tuple[Engine, Namespace]]:
    """``c/.metadata.tmp`` has arrived, ``c/shard`` goes up when the block ends; all of it is there after that."""
    async with ground.engine() as (engine, names):
        await names.root(ground.root)
        await names.mkdir(ground.key("c"), mode=0o755, uid=0, gid=0)
        sending = interpose(names).stop("write")
        await write_file(names, ground.key("c/shard"), b"weights")
        await sending.reached()
        await write_file(names, ground.key("c/.metadata.tmp"), MANIFEST)
        await engine.writeback.wait((await names.lookup(ground.key("c/.metadata.tmp"))).staged)
        assert ground.names() == ["c/.metadata.tmp"]
        yield engine, names
        assert ".metadata" not in [name.removeprefix("c/") for name in ground.names()]
        sending.open()
        result = await engine.drain(30)
        assert (result.left, result.errors) == ([], {})
        assert ground.get("c/shard") == b"weights"
        assert ground.get("c/.metadata") == MANIFEST


def staged(engine: Engine, ground: Ground, name: str) -> list[StagedState]:
    return [record.state for record in engine.journal.records() if record.key == ground.key(name)]


@pytest.mark.parametrize("open_for", ["", "reading", "writing"])
def test_a_manifest_that_arrived_under_another_name_waits_for_its_shards(ground: Ground, open_for: str) -> None:
    async def scenario() -> None:
        async with shard_on_its_way(ground) as (engine, names):
            inode = (await names.lookup(ground.key("c/.metadata.tmp"))).inode
            handle = await names.open(inode, write=open_for == "writing") if open_for else None
            await names.rename(ground.key("c/.metadata.tmp"), ground.key("c/.metadata"), keep_directory=True)
            assert await read_file(names, ground.key("c/.metadata")) == MANIFEST
            assert (await names.lookup(ground.key("c/.metadata"))).inode == inode
            if handle is not None:
                assert bytes(await handle.read(0, 100)) == MANIFEST
                await handle.flush()
                await handle.close()
            assert staged(engine, ground, "c/.metadata") == [StagedState.SEALED]
        assert ground.names() == ["c/.metadata", "c/shard"]

    run(scenario)


def test_a_manifest_that_arrives_while_it_is_renamed_waits_for_its_shards(ground: Ground) -> None:
    """Its upload under the other name is under way when the rename begins, and ends before the journal has that."""

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            await names.mkdir(ground.key("c"), mode=0o755, uid=0, gid=0)
            origin = interpose(names)
            shard, manifest = origin.stop("write"), origin.stop("write")
            await write_file(names, ground.key("c/shard"), b"weights")
            await shard.reached()
            await write_file(names, ground.key("c/.metadata.tmp"), MANIFEST)
            await manifest.reached()
            staged_id = (await names.lookup(ground.key("c/.metadata.tmp"))).staged
            looking = origin.stop("stat")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(names.rename, ground.key("c/.metadata.tmp"), ground.key("c/.metadata"))
                await looking.reached()
                manifest.open()
                await engine.writeback.wait(staged_id)
                looking.open()
            assert staged(engine, ground, "c/.metadata") == [StagedState.SEALED]
            assert "c/.metadata" not in ground.names()
            assert await read_file(names, ground.key("c/.metadata")) == MANIFEST
            shard.open()
            await drained(engine)
            assert ground.names() == ["c/.metadata", "c/shard"]
            assert ground.get("c/.metadata") == MANIFEST

    run(scenario)


def test_a_copy_that_is_a_manifest_waits_for_its_shards(ground: Ground) -> None:
    async def scenario() -> None:
        async with shard_on_its_way(ground) as (_, names):
            await names.copy(ground.key("c/.metadata.tmp"), ground.key("c/.metadata"))
            assert await read_file(names, ground.key("c/.metadata")) == MANIFEST
        assert ground.names() == ["c/.metadata", "c/.metadata.tmp", "c/shard"]

    run(scenario)


def test_a_manifest_with_nothing_before_it_is_renamed_at_the_origin(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            await write_file(names, ground.key(".metadata.tmp"), MANIFEST)
            await engine.drain(30)
            await names.rename(ground.key(".metadata.tmp"), ground.key(".metadata"), keep_directory=True)
            assert ground.names() == [".metadata"]
            assert not staged(engine, ground, ".metadata")

    run(scenario)


@asynccontextmanager
async def checkpoint_on_its_way(ground: Ground) -> AsyncIterator[tuple[Engine, Namespace]]:
    """``c/shard`` goes up when the block ends, and the engine with it: a stopped one leaves the rest to the next."""
    async with ground.engine() as (engine, names):
        await names.root(ground.root)
        await names.mkdir(ground.key("c"), mode=0o755, uid=0, gid=0)
        sending = interpose(names).stop("write")
        try:
            await write_file(names, ground.key("c/shard"), b"weights")
            await sending.reached()
            yield engine, names
        finally:
            sending.open()


def link_at_origin(ground: Ground, name: str) -> bytes | None:
    try:
        return ground.direct.stat(ground.key(name)).link_target
    except Absent:
        return None


async def drained(engine: Engine) -> None:
    result = await engine.drain(30)
    assert (result.left, result.errors) == ([], {})
    assert not list(engine.journal.records()) + engine.journal.retractions()


async def link(names: Namespace, ground: Ground, name: str, target: bytes) -> None:
    made = await names.symlink(ground.key(name), target, uid=0, gid=0)
    found = await names.lookup(ground.key(name))
    assert (found.kind, found.link_target, found.size_bytes) == (Kind.SYMLINK, target, len(target))
    assert made.inode == found.inode


def test_a_symlink_goes_up_after_what_it_points_to(ground: Ground) -> None:
    async def scenario() -> None:
        async with checkpoint_on_its_way(ground) as (engine, names):
            await link(names, ground, "latest", b"c")
            await link(names, ground, "c/self", b"./shard")
            await link(names, ground, "elsewhere", b"../not/below")
            with pytest.raises(Exists):
                await names.symlink(ground.key("latest"), b"other", uid=0, gid=0)
            listed = dict(await names.list(ground.root))
            assert listed[b"latest"].kind is Kind.SYMLINK
            found = [link_at_origin(ground, name) for name in ("latest", "c/self", "elsewhere")]
            assert found == [None, None, b"../not/below"]
        async with ground.engine() as (engine, names):
            assert (await names.lookup(ground.key("latest"))).link_target == b"c"
            await drained(engine)
            assert (await names.lookup(ground.key("latest"))).link_target == b"c"
            assert [link_at_origin(ground, name) for name in ("latest", "c/self")] == [b"c", b"./shard"]
            assert ground.get("c/shard") == b"weights"

    run(scenario)


def test_a_symlink_that_replaces_another_leaves_that_one_at_the_origin_until_its_turn(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            await names.symlink(ground.key("latest"), b"before", uid=0, gid=0)
            assert link_at_origin(ground, "latest") == b"before"
        async with checkpoint_on_its_way(ground) as (engine, names):
            await link(names, ground, "latest.tmp", b"c")
            await names.rename(ground.key("latest.tmp"), ground.key("latest"), keep_directory=True)
            assert (await names.lookup(ground.key("latest"))).link_target == b"c"
            assert link_at_origin(ground, "latest") == b"before"
        async with ground.engine() as (engine, names):
            await drained(engine)
            assert link_at_origin(ground, "latest") == b"c"
            assert link_at_origin(ground, "latest.tmp") is None
            assert (await names.lookup(ground.key("latest"))).link_target == b"c"

    run(scenario)


def test_a_symlink_that_is_removed_before_its_turn_never_goes_up(ground: Ground) -> None:
    async def scenario() -> None:
        async with checkpoint_on_its_way(ground) as (engine, names):
            await link(names, ground, "latest", b"c")
            await names.unlink(ground.key("latest"), keep_directory=True)
            with pytest.raises(Absent):
                await names.lookup(ground.key("latest"))
        async with ground.engine() as (engine, names):
            await drained(engine)
            assert link_at_origin(ground, "latest") is None
            with pytest.raises(Absent):
                await names.lookup(ground.key("latest"))

    run(scenario)


def test_a_symlink_that_others_made_meanwhile_is_a_conflict(ground: Ground) -> None:
    async def scenario() -> None:
        async with checkpoint_on_its_way(ground) as (engine, names):
            await link(names, ground, "latest", b"c")
            ground.direct.symlink(ground.key("latest"), b"theirs")
        async with ground.engine() as (engine, names):
            await engine.drain(30)
            assert staged(engine, ground, "latest") == [StagedState.CONFLICT]
            assert link_at_origin(ground, "latest") == b"theirs"
            assert (await names.lookup(ground.key("latest"))).link_target == b"c"

    run(scenario)
