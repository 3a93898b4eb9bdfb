"""Staged files that become cached ones, and versions whose etag changes."""

from __future__ import annotations

import os

import trio
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, Running, bytes_of, in_thread
from tiercache.cache import VersionRef
from tiercache.checksum import block_checksums
from tiercache.model import Attributes, Tier


def stage(rig: Rig, data: bytes) -> str:
    path = rig.directory / "staged"
    path.write_bytes(data)
    return str(path)


async def contents(run: Running, version: VersionRef) -> bytes:
    location = run.cache.locate(version)
    assert location is not None
    return await trio.Path(location.path).read_bytes()


@trio_test
async def test_an_adopted_file_is_complete_and_needs_no_fetch(rig: Rig) -> None:
    """The staged file itself moves: same inode, located at once, verified in the next run by its checksums."""
    data = bytes_of("staged", 2 * BS + 9)
    version = rig.put("f", data)
    path = stage(rig, data)
    inode = os.lstat(path).st_ino
    async with rig.start() as run:
        assert run.cache.adopt(version, path, block_checksums(data))
        location = run.cache.locate(version)
        assert location is not None
        assert location.inode == inode
        assert not await trio.Path(path).exists()
        assert run.nvme.used_bytes == 2 * BS + 4096
    async with rig.start() as run:
        assert await run.cache.locate_verified(version) is not None
        assert await run.cache.read(version, 0, len(data)) == data
        assert rig.origin.requests == []


@trio_test
async def test_what_was_written_or_asked_for_enters_where_what_is_missed_would_not(rig: Rig) -> None:
    """Under ``auto`` a full tier holds what it has; what was written here, or
    is warmed up, evicts for its place all the same."""
    data = bytes_of("staged", BS)
    version = rig.put("f", data)
    async with rig.start(nvme_bytes=4 * BS, policy="auto") as run:
        held = [rig.put(str(number), bytes_of(str(number), BS)) for number in range(6)]
        for number, other in enumerate(held):
            assert await run.cache.read(other, 0, BS) == bytes_of(str(number), BS)
        assert [other.id in run.nvme for other in held] == [True] * 4 + [False] * 2
        assert run.cache.adopt(version, stage(rig, data), block_checksums(data))
        assert [other.id in run.nvme for other in held] == [False] + [True] * 3 + [False] * 2
        missed, wanted = (rig.put(name, bytes_of(name, BS)) for name in ("missed", "wanted"))
        run.cache.welcome(wanted.id)  # as a warm-up does
        assert await run.cache.ensure(missed, 0, BS) is None
        assert await run.cache.ensure(wanted, 0, BS) is not None
        assert [other.id in run.nvme for other in held] == [False] * 2 + [True] * 2 + [False] * 2


@trio_test
async def test_what_is_not_admitted_stays_where_it_is(rig: Rig) -> None:
    """Too large for the tier, of another size, or without its checksums: False, and the file is untouched."""
    data = bytes_of("staged", 2 * BS)
    version = rig.put("f", data)
    path = stage(rig, data)
    async with rig.start(nvme_bytes=BS) as run:
        assert not run.cache.adopt(version, path, block_checksums(data))
    async with rig.start() as run:
        assert not run.cache.adopt(version, path, b"")
        assert not run.cache.adopt(version._replace(size_bytes=7), path, block_checksums(data))
        assert not run.cache.adopt(version, path + ".gone", block_checksums(data))
        assert run.nvme.used_bytes == 0
        assert await trio.Path(path).read_bytes() == data


@trio_test
async def test_adopting_overtakes_a_fetch_in_flight(rig: Rig) -> None:
    """The late fill of the same version records nothing over the adopted copy, and its reader gets its bytes."""
    data = bytes_of("both", 2 * BS)
    version = rig.put("f", data)
    path = stage(rig, data)
    async with rig.start() as run:
        rig.origin.hold()
        async with trio.open_nursery() as readers:
            readers.start_soon(run.cache.read, version, 0, BS)
            await in_thread(rig.origin.wait_for_requests, 1)
            assert run.cache.adopt(version, path, block_checksums(data))
            rig.origin.release()
        assert await run.cache.read(version, 0, len(data)) == data
        assert await contents(run, version) == data
        assert run.nvme.used_bytes == 2 * BS
        assert len(rig.origin.requests) == 1


@trio_test
async def test_a_rebound_version_keeps_its_bytes_in_every_tier(rig: Rig) -> None:
    """New metadata, new etag, same bytes: nothing is fetched, the old version is gone, the accounts are equal."""
    data = b"m" * 5000
    old = rig.put("f", data)
    async with rig.start(ram_bytes=4 * BS) as run:
        await run.cache.read(old, 0, 1)
        used_bytes = run.nvme.used_bytes
        new = rig.put("f", data)
        run.cache.rebind(old.id, new)
        assert run.cache.locate(old) is None
        location = run.cache.locate(new)
        assert location is not None
        assert location.tier is Tier.RAM
        assert await contents(run, new) == data
        assert run.nvme.used_bytes == used_bytes
        assert len(rig.origin.requests) == 1
    async with rig.start() as run:
        assert await run.cache.read(new, 0, len(data)) == data
        assert len(rig.origin.requests) == 1


@trio_test
async def test_an_incomplete_version_is_rebound_with_what_it_has(rig: Rig) -> None:
    """Its resident blocks move; the missing ones come under the new etag."""
    data = bytes_of("partial", 3 * BS)
    old = rig.put("f", data)
    async with rig.start() as run:
        await run.cache.read(old, BS, 1)
        new = rig.put("f", data)
        run.cache.rebind(old.id, new)
        assert await run.cache.read(new, 0, len(data)) == data
        assert sorted(request.offset for request in rig.origin.requests) == [0, BS, 2 * BS]


@trio_test
async def test_rebinding_during_a_fetch_loses_only_that_fetch(rig: Rig) -> None:
    """The fetch in flight began under the old etag: its reader is answered, nothing of it is recorded as new."""
    data = bytes_of("rebound", 2 * BS)
    old = rig.put("f", data)
    async with rig.start() as run:
        await run.cache.read(old, 0, 1)
        rig.origin.hold()
        async with trio.open_nursery() as readers:
            readers.start_soon(run.cache.read, old, BS, BS)
            await in_thread(rig.origin.wait_for_requests, 2)
            stat = rig.origin.set_attributes(b"f", Attributes(0o600, 1, 1, 0))
            new = rig.ref(rig.origin, stat._replace(etag=stat.etag + "-new"))
            run.cache.rebind(old.id, new)
            rig.origin.release()
        assert run.cache.locate(new) is None
        location = await run.cache.ensure(new, 0, BS)
        assert location is not None
        assert (await trio.Path(location.path).read_bytes())[:BS] == data[:BS]
        assert run.nvme.used_bytes == BS
