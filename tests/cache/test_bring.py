"""Bringing a version for nobody who waits: one request, shared with readers that come meanwhile."""

from __future__ import annotations

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from rig.cache_rig import BS, Rig, bytes_of, in_thread
from tiercache.errors import Broken, Denied


@trio_test
async def test_it_is_here_then_and_counts_as_no_miss(rig: Rig) -> None:
    small, large = rig.put("small", bytes_of("small", 1000)), rig.put("large", bytes_of("large", BS + 5))
    empty = rig.put("empty", b"")
    async with rig.start() as run:
        for version in (small, large, empty):
            assert await run.cache.bring(version, version.size_bytes)
            assert await run.cache.bring(version, version.size_bytes), "it is here"
            assert run.cache.locate(version) is not None
        assert await run.cache.read(small, 0, 1000) == bytes_of("small", 1000)
        assert len(rig.origin.requests) == 2
        assert run.figure("misses_total") == 0


@trio_test
async def test_readers_that_come_meanwhile_share_its_request(rig: Rig) -> None:
    data = bytes_of("f", 1000)
    version = rig.put("f", data)
    async with rig.start() as run:
        rig.origin.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.cache.bring, version, 1000)
            await in_thread(rig.origin.wait_for_requests, 1)
            results: list[bytes] = []

            async def read() -> None:
                results.append(bytes(await run.cache.read(version, 0, 1000)))

            nursery.start_soon(read)
            nursery.start_soon(run.cache.bring, version, 1000)
            await wait_all_tasks_blocked()
            rig.origin.release()
        assert results == [data]
        assert len(rig.origin.requests) == 1


@trio_test
async def test_an_error_is_raised_and_not_remembered(rig: Rig) -> None:
    version = rig.put("f", b"bytes")
    async with rig.start() as run:
        for error in (Denied("no"), Broken("no")):
            rig.origin.fail_next(error)
            with pytest.raises(type(error)):
                await run.cache.bring(version, 5)
        assert await run.cache.bring(version, 5)


@trio_test
async def test_what_no_tier_takes_is_told(rig: Rig) -> None:
    version = rig.put("f", bytes_of("f", 5000))
    async with rig.start(nvme_bytes=4096) as run:
        assert not await run.cache.bring(version, 5000)
