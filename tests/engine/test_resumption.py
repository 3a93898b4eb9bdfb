"""Changes of names that an engine was killed in: done at the origin, not yet in the catalog, or not at all."""

from __future__ import annotations

import pytest

from rig.engine_ground import Ground
from rig.writing_desk import in_trio
from tiercache.engine.namespace import Namespace
from tiercache.errors import Exists
from tiercache.model import Kind


async def content(namespace: Namespace, ground: Ground, name: str) -> bytes:
    entry = await namespace.lookup(ground.key(name))
    handle = await namespace.open(entry.inode)
    try:
        return bytes(await handle.read(0, 1 << 20))
    finally:
        await handle.close()


async def resume(namespace: Namespace, ground: Ground, names: tuple[str, str], inode: int, **how: bool) -> bool:
    source, target = map(ground.key, names)
    return await namespace.resume_rename(source, target, inode=inode, exchange=how.get("exchange", False))


@in_trio
async def test_a_rename_that_was_not_begun_is_left_to_be_done(posix_ground: Ground) -> None:
    posix_ground.put("a", b"1")
    async with posix_ground.engine() as (_, namespace):
        entry = await namespace.lookup(posix_ground.key("a"))
        for inode in (0, entry.inode):
            assert not await resume(namespace, posix_ground, ("a", "b"), inode)
        assert await content(namespace, posix_ground, "a") == b"1"


@in_trio
async def test_a_rename_that_the_origin_had_done_is_told_to_the_catalog(posix_ground: Ground) -> None:
    posix_ground.put("a", b"moved")
    posix_ground.put("b", b"replaced")
    async with posix_ground.engine() as (_, namespace):
        entry = await namespace.lookup(posix_ground.key("a"))
        replaced = await namespace.lookup(posix_ground.key("b"))
        handle = await namespace.open(entry.inode)
        posix_ground.direct.rename(posix_ground.key("a"), posix_ground.key("b"))
        assert await resume(namespace, posix_ground, ("a", "b"), entry.inode)
        assert (await namespace.lookup(posix_ground.key("b"))).inode == entry.inode != replaced.inode
        assert await namespace.names.find(posix_ground.key("a")) is None
        assert await handle.read(0, 100) == b"moved"
        assert handle.key == posix_ground.key("b")
        await handle.close()
        # Once more, for an engine that was killed in this one.
        assert await resume(namespace, posix_ground, ("a", "b"), entry.inode)
        assert await content(namespace, posix_ground, "b") == b"moved"


@in_trio
async def test_a_rename_that_was_done_and_not_answered_counts(posix_ground: Ground) -> None:
    posix_ground.put("a", b"1")
    async with posix_ground.engine() as (_, namespace):
        entry = await namespace.lookup(posix_ground.key("a"))
        await namespace.rename(posix_ground.key("a"), posix_ground.key("b"))
        for inode in (0, entry.inode):
            assert await resume(namespace, posix_ground, ("a", "b"), inode)
        assert not await resume(namespace, posix_ground, ("never", "there"), 0)


@in_trio
async def test_a_file_that_the_catalog_has_under_both_names_keeps_the_new_one(posix_ground: Ground) -> None:
    posix_ground.put("a", b"1")
    async with posix_ground.engine() as (_, namespace):
        before = await namespace.lookup(posix_ground.key("a"))
        await namespace.rename(posix_ground.key("a"), posix_ground.key("b"))
        namespace.tree.put(posix_ground.key("a"), before)
        assert await resume(namespace, posix_ground, ("a", "b"), before.inode)
        assert await namespace.names.find(posix_ground.key("a")) is None
        assert await content(namespace, posix_ground, "b") == b"1"


@in_trio
async def test_an_exchange_that_the_origin_had_done_is_told_to_the_catalog(posix_ground: Ground) -> None:
    posix_ground.put("a", b"was a")
    posix_ground.put("b", b"it was b")
    async with posix_ground.engine() as (_, namespace):
        entry = await namespace.lookup(posix_ground.key("a"))
        await namespace.lookup(posix_ground.key("b"))
        assert not await resume(namespace, posix_ground, ("a", "b"), entry.inode, exchange=True)
        posix_ground.direct.rename(posix_ground.key("a"), posix_ground.key("b"), exchange=True)
        assert await resume(namespace, posix_ground, ("a", "b"), entry.inode, exchange=True)
        assert await content(namespace, posix_ground, "a") == b"it was b"
        assert await content(namespace, posix_ground, "b") == b"was a"
        assert (await namespace.lookup(posix_ground.key("b"))).inode == entry.inode


@in_trio
async def test_a_directory_that_the_origin_had_moved_takes_its_files_along(posix_ground: Ground) -> None:
    """Clean ones, and one that was being written."""
    posix_ground.put("old/clean", b"clean")
    async with posix_ground.engine() as (engine, namespace):
        entry = await namespace.lookup(posix_ground.key("old"))
        clean = await namespace.lookup(posix_ground.key("old/clean"))
        made, handle = await namespace.create(posix_ground.key("old/dirty"), mode=0o600, uid=0, gid=0)
        await handle.write(0, b"dirty")
        posix_ground.direct.rename(posix_ground.key("old"), posix_ground.key("new"))
        assert await resume(namespace, posix_ground, ("old", "new"), entry.inode)
        assert (await namespace.lookup(posix_ground.key("new"))).inode == entry.inode
        assert (await namespace.lookup(posix_ground.key("new/clean"))).inode == clean.inode
        assert namespace.key_of(made.inode) == posix_ground.key("new/dirty")
        assert await content(namespace, posix_ground, "new/dirty") == b"dirty"
        await handle.flush()
        await handle.close()
        assert not (await engine.drain(10)).left
    assert posix_ground.names() == ["new/clean", "new/dirty"]


@in_trio
async def test_a_link_that_the_origin_had_made_is_the_answer(posix_ground: Ground) -> None:
    posix_ground.put("a", b"1")
    posix_ground.put("other", b"2")
    async with posix_ground.engine() as (_, namespace):
        entry = await namespace.lookup(posix_ground.key("a"))
        assert await namespace.names.find(posix_ground.key("b")) is None
        posix_ground.direct.link(posix_ground.key("a"), posix_ground.key("b"))
        namespace.doubt(posix_ground.key("b"))
        for _ in range(2):
            made = await namespace.link(entry.inode, posix_ground.key("b"), resumed=True)
            assert (made.inode, made.link_count) == (entry.inode, 2)
        with pytest.raises(Exists):
            await namespace.link(entry.inode, posix_ground.key("other"), resumed=True)


@in_trio
async def test_a_removal_that_the_origin_had_done_leaves_the_directory(ground: Ground) -> None:
    ground.put("dir/file", b"1")
    async with ground.engine() as (_, namespace):
        await namespace.lookup(ground.key("dir/file"))
        await namespace.lookup(ground.key("dir"))
        ground.direct.delete(ground.key("dir/file"))
        await namespace.was_removed(ground.key("dir/file"))
        assert await namespace.names.find(ground.key("dir/file")) is None
        assert (await namespace.lookup(ground.key("dir"))).kind is Kind.DIRECTORY
        assert await namespace.list(ground.key("dir")) == []
