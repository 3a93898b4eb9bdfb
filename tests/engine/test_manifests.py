"""A manifest that is written under another name, and renamed or copied to its own before its shards went up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rig.engine_ground import Ground, read_file, run, write_file
from rig.interposed_origin import interpose
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.model import StagedState

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
