"""What is written through a namespace is read back at once, and is in the origin after a drain."""

from __future__ import annotations

import errno
import os

import pytest

from rig.engine_ground import Ground, read_file, run, write_file
from tiercache.errors import Absent, Changed, Exists, IsDirectory, NotDirectory, TooLarge, errno_of
from tiercache.model import BLOCK_SIZE_BYTES


def test_a_written_file_reads_back_at_once_and_reaches_the_origin(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            for size in (0, 1, 100_000, BLOCK_SIZE_BYTES, 2 * BLOCK_SIZE_BYTES + 7):
                data = os.urandom(size)
                await write_file(names, ground.key(f"file{size}"), data)
                assert await read_file(names, ground.key(f"file{size}")) == data
                result = await engine.drain(30)
                assert (result.left, result.errors) == ([], {})
                assert ground.get(f"file{size}") == data
                assert await read_file(names, ground.key(f"file{size}")) == data

    run(scenario)


def test_an_uploaded_file_is_cached_without_a_download(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            await write_file(names, ground.key("f"), b"x" * 1_000_000)
            await engine.drain(30)
            version = names.tree.version_ref(ground.key("f"), await names.lookup(ground.key("f")))
            assert engine.cache.locate(version) is not None
            assert engine.metrics.snapshot()["misses_total"] == 0

    run(scenario)


def test_a_change_in_the_middle_keeps_the_rest(ground: Ground) -> None:
    data = os.urandom(BLOCK_SIZE_BYTES + 1000)
    ground.put("f", data)

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            entry = await names.lookup(ground.key("f"))
            handle = await names.open(entry.inode, write=True)
            await handle.write(500, b"changed")
            wanted = data[:500] + b"changed" + data[507:]
            assert await read_file(names, ground.key("f")) == wanted
            await handle.flush()
            await handle.close()
            assert (await engine.drain(30)).left == []
            assert ground.get("f") == wanted

    run(scenario)


def test_appends_go_to_the_end_whatever_their_offset(ground: Ground) -> None:
    ground.put("log", b"one\n")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            first = await names.open((await names.lookup(ground.key("log"))).inode, write=True, append=True)
            second = await names.open((await names.lookup(ground.key("log"))).inode, write=True, append=True)
            await first.write(0, b"two\n")
            await second.write(0, b"three\n")
            for handle in (first, second):
                await handle.flush()
                await handle.close()
            assert (await engine.drain(30)).left == []
            assert ground.get("log") == b"one\ntwo\nthree\n"

    run(scenario)


def test_a_file_cannot_be_made_longer_than_staging(ground: Ground) -> None:
    """EFBIG for that one file, at once, and not ENOSPC for all."""
    ground.put("file", b"12345")

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            inode = (await names.lookup(ground.key("file"))).inode
            with pytest.raises(TooLarge) as caught:
                await names.setattr(inode, size=engine.staging.capacity_bytes + 1)
            assert errno_of(caught.value) == errno.EFBIG
            assert (await names.lookup(ground.key("file"))).size_bytes == 5
            assert await read_file(names, ground.key("file")) == b"12345"

    run(scenario)


def test_truncation_gives_room_back(ground: Ground) -> None:
    """Else one open file that is emptied and filled again and again would come to the end of staging."""

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            _, handle = await names.create(ground.key("again"), mode=0o644, uid=0, gid=0)
            await handle.write(0, b"x" * 1000)
            for _ in range(3):
                await names.setattr(handle.inode, size=engine.staging.capacity_bytes)
                assert engine.staging.unused_bytes == 0
                await names.setattr(handle.inode, size=500)
                assert engine.staging.used_bytes == 500
            assert await handle.read(0, 1000) == b"x" * 500
            await handle.close()
            assert (await engine.drain(30)).left == []
            assert ground.get("again") == b"x" * 500

    run(scenario)


def test_truncation_gives_what_posix_gives(ground: Ground) -> None:
    """C17."""
    data = os.urandom(BLOCK_SIZE_BYTES + 10)
    for name in ("empty", "shorter", "longer", "open"):
        ground.put(name, data)

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            handle = await names.open((await names.lookup(ground.key("empty"))).inode, write=True, truncate=True)
            await handle.flush()
            await handle.close()
            await names.setattr((await names.lookup(ground.key("shorter"))).inode, size=BLOCK_SIZE_BYTES - 1)
            await names.setattr((await names.lookup(ground.key("longer"))).inode, size=len(data) + 5)
            handle = await names.open((await names.lookup(ground.key("open"))).inode, write=True)
            await handle.write(0, b"x")
            await names.setattr(handle.inode, size=0)
            await handle.write(3, b"y")
            await handle.flush()
            await handle.close()
            assert (await engine.drain(30)).left == []
            assert ground.get("empty") == b""
            assert ground.get("shorter") == data[: BLOCK_SIZE_BYTES - 1]
            assert ground.get("longer") == data + bytes(5)
            assert ground.get("open") == b"\0\0\0y"

    run(scenario)


def test_a_handle_reads_one_version_and_a_new_one_the_new(ground: Ground) -> None:
    """C05: no mix of two versions, and never new bytes with an old length."""
    size = 8 * BLOCK_SIZE_BYTES
    old, new = os.urandom(size), os.urandom(size)
    ground.put("f", old)

    async def scenario() -> None:
        async with ground.engine(readahead={"budget_bytes": 0}) as (_, names):
            handle = await names.open((await names.lookup(ground.key("f"))).inode)
            seen = bytes(await handle.read(0, 2 * BLOCK_SIZE_BYTES))
            assert seen == old[: len(seen)]
            ground.put("f", new)
            for offset in range(2 * BLOCK_SIZE_BYTES, size, BLOCK_SIZE_BYTES):
                try:
                    part = bytes(await handle.read(offset, BLOCK_SIZE_BYTES))
                except Changed:
                    break
                assert part == old[offset : offset + BLOCK_SIZE_BYTES]
            else:
                pytest.fail("the old version was read to its end although it is gone")
            await handle.close()
            assert await read_file(names, ground.key("f")) == new

    run(scenario)


def test_an_unlinked_file_is_read_to_its_end_by_who_has_it_open(ground: Ground) -> None:
    data = os.urandom(BLOCK_SIZE_BYTES + 3)
    ground.put("clean", data)

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            clean = await names.open((await names.lookup(ground.key("clean"))).inode)
            entry, dirty = await names.create(ground.key("dirty"), mode=0o644, uid=0, gid=0)
            await dirty.write(0, b"before")
            for name in ("clean", "dirty"):
                await names.unlink(ground.key(name))
                with pytest.raises(Absent):
                    await names.lookup(ground.key(name))
            assert bytes(await clean.read(0, len(data))) == data
            await dirty.write(6, b" after")
            assert bytes(await dirty.read(0, 100)) == b"before after"
            assert (await names.getattr(entry.inode)).link_count == 0
            for handle in (clean, dirty):
                await handle.flush()
                await handle.close()
            assert (await engine.drain(30)).left == []
            assert ground.names() == []
            assert list((ground.cache_dir / "staging").glob("[0-9]*")) == []

    run(scenario)


def test_a_file_that_went_with_its_tree_is_read_and_written_by_who_has_it_open(ground: Ground) -> None:
    data = os.urandom(BLOCK_SIZE_BYTES + 3)
    ground.put("dir/sub/clean", data)

    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            inode = (await names.lookup(ground.key("dir/sub/clean"))).inode
            reader, writer = await names.open(inode), await names.open(inode, write=True)
            await names.remove_tree(ground.key("dir"))
            assert bytes(await reader.read(0, len(data))) == data
            await writer.write(0, b"written")
            assert bytes(await reader.read(0, 10)) == b"written" + data[7:10]
            assert reader.entry.link_count == 0
            for handle in (reader, writer):
                await handle.flush()
                await handle.close()
            assert (await engine.drain(30)).left == []
            assert ground.names() == []

    run(scenario)


def test_errors_are_those_of_posix(ground: Ground) -> None:
    ground.put("file", b"1")
    ground.put("dir/file", b"2")

    async def scenario() -> None:
        async with ground.engine() as (_, names):
            with pytest.raises(Absent):
                await names.lookup(ground.key("none"))
            with pytest.raises(Exists):
                await names.create(ground.key("file"), mode=0o644, uid=0, gid=0, exclusive=True)
            with pytest.raises(IsDirectory):
                await names.open((await names.lookup(ground.key("dir"))).inode)
            with pytest.raises(IsDirectory):
                await names.unlink(ground.key("dir"))
            with pytest.raises(NotDirectory):
                await names.rmdir(ground.key("file"))
            with pytest.raises((NotDirectory, Absent)):
                await names.create(ground.key("file/below"), mode=0o644, uid=0, gid=0)
            with pytest.raises(Exists):
                await names.mkdir(ground.key("dir"), mode=0o755, uid=0, gid=0)

    run(scenario)


def test_attributes_are_kept_by_the_origin(ground: Ground) -> None:
    async def scenario() -> None:
        async with ground.engine() as (engine, names):
            await names.root(ground.root)
            await write_file(names, ground.key("dirty"), b"1", mode=0o640)
            ground.put("clean", b"2")
            for name in ("dirty", "clean"):
                inode = (await names.lookup(ground.key(name))).inode
                await names.setattr(inode, mode=0o751, mtime_ns=1_600_000_000_123_000_000)
                await names.setxattr(inode, b"user.colour", b"blue")
                with pytest.raises(Exists):
                    await names.setxattr(inode, b"user.colour", b"red", create=True)
            assert (await engine.drain(30)).left == []
        for name in ("dirty", "clean"):
            attributes = ground.direct.stat(ground.key(name)).attributes
            assert attributes is not None
            assert attributes.mode == 0o751
            assert attributes.mtime_ns == 1_600_000_000_123_000_000
            assert attributes.xattrs == ((b"user.colour", b"blue"),)
        async with ground.engine() as (engine, names):
            entry = await names.lookup(ground.key("clean"))
            assert entry.mode == 0o751
            assert await names.getxattr(entry.inode, b"user.colour") == b"blue"
            assert await names.getxattr(entry.inode, b"user.tiercache.state") == b"clean"
            assert await read_file(names, ground.key("clean")) == b"2"

    run(scenario)
