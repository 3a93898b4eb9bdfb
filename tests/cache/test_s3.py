"""The cache over a real S3 server, with a network that misbehaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, Running, bytes_of, in_thread
from rig.faultproxy import FaultProxy
from rig.seaweedfs import Bucket
from tiercache.cache import VersionRef
from tiercache.config import FetchConfig
from tiercache.errors import Busy, Changed, TierCacheError
from tiercache.origins import Origin, RetryingOrigin, RetryPolicy, open_origin

DATA = bytes_of("s3", 3 * BS + 5)


class Ground(NamedTuple):
    """A cache over an object in a bucket behind the proxy."""

    rig: Rig
    proxy: FaultProxy
    bucket: Bucket
    origin: Origin

    @asynccontextmanager
    async def start(self, data: bytes = DATA) -> AsyncIterator[tuple[Running, VersionRef]]:
        """A run of the cache, and the version of the object ``f``."""
        self.bucket.put("f", data)
        version = self.rig.ref(self.origin, await in_thread(self.origin.stat, b"f"))
        self.proxy.forget()
        async with self.rig.start(fetch=FetchConfig(part_size=4 * BS)) as run:
            yield run, version

    def gets(self) -> list[tuple[str, str]]:
        """Range and If-Match of each GET, as the server saw them."""
        return [(line.range, line.if_match) for line in self.proxy.log if line.operation == "GetObject"]


@pytest.fixture
def ground(rig: Rig, s3_proxy: FaultProxy, s3_bucket: Bucket) -> Iterator[Ground]:
    policy = RetryPolicy(retries=3, base_s=0.001, cap_s=0.002)
    origin, _ = open_origin(f"s3://{s3_bucket.name}", options=s3_proxy.options())
    yield Ground(rig, s3_proxy, s3_bucket, RetryingOrigin(origin, policy))
    origin.close()


@trio_test
async def test_every_ranged_get_names_the_version(ground: Ground) -> None:
    """Each request for a part carries the range and If-Match; a warm read sends nothing."""
    async with ground.start() as (run, version):
        assert await run.cache.read(version, BS + 1, 10) == DATA[BS + 1 : BS + 11]
        assert await run.cache.read(version, 0, len(DATA)) == DATA
        assert await run.cache.read(version, 0, len(DATA)) == DATA
        ranges = sorted(asked for asked, _ in ground.gets())
        assert ranges == sorted([f"bytes={BS}-{2 * BS - 1}", f"bytes=0-{BS - 1}", f"bytes={2 * BS}-{3 * BS + 4}"])
        assert {match.strip('"') for _, match in ground.gets()} == {version.etag.strip('"')}


@trio_test
async def test_an_unknown_small_object_is_one_get(ground: Ground) -> None:
    """No HEAD before it."""
    async with ground.start(b"small") as (run, version):
        _, opened, data = await run.cache.ensure_small(ground.origin, version.origin_id, b"f", BS)
        assert (opened, data) == (version, b"small")
        assert [line.operation for line in ground.proxy.log] == ["GetObject"]


@trio_test
async def test_a_get_cut_once_is_resumed_or_repeated(ground: Ground) -> None:
    """C10: the connection ends after 1.5 blocks; the reader sees the right bytes."""
    async with ground.start() as (run, version):
        ground.proxy.cut(BS + BS // 2, operation="GetObject", times=1)
        assert await run.cache.read(version, 0, len(DATA)) == DATA
        assert all(match for _, match in ground.gets())


@trio_test
async def test_a_get_cut_every_time_is_an_error_and_nothing_is_kept(ground: Ground) -> None:
    """C10: the reader gets an error, the cache records no byte, and once the network is well the bytes are right."""
    async with ground.start() as (run, version):
        ground.proxy.cut(1000, operation="GetObject")
        with pytest.raises(TierCacheError):
            await run.cache.read(version, 0, len(DATA))
        assert run.catalog.version(version.id) is None
        assert run.nvme.used_bytes == 0
        ground.proxy.clear()
        assert await run.cache.read(version, 0, len(DATA)) == DATA


@pytest.mark.parametrize("honest", [True, False])
@trio_test
async def test_a_short_206_is_never_kept(ground: Ground, honest: bool) -> None:
    """C10: fewer bytes than asked for, with a header that says so or one that does not, are an error, never zeros."""
    async with ground.start() as (run, version):
        ground.proxy.short_range(7, honest=honest)
        with pytest.raises(TierCacheError):
            await run.cache.read(version, 0, len(DATA))
        assert run.catalog.version(version.id) is None
        ground.proxy.clear()
        assert await run.cache.read(version, 0, len(DATA)) == DATA


@trio_test
async def test_a_store_that_ignores_ranges_gives_no_wrong_byte(ground: Ground) -> None:
    """200 with the whole body where a range was asked for: right bytes or an error."""
    async with ground.start() as (run, version):
        ground.proxy.ignore_range()
        try:
            data = await run.cache.read(version, BS + 3, 100)
        except TierCacheError:
            assert run.catalog.version(version.id) is None
        else:
            assert data == DATA[BS + 3 : BS + 103]


@trio_test
async def test_an_object_swapped_between_two_gets_is_changed(ground: Ground) -> None:
    """C05: one handle reads two blocks, the object is replaced by one of the same size, the rest is Changed."""
    async with ground.start() as (run, version):
        assert await run.cache.read(version, 0, BS) == DATA[:BS]
        new_data = bytes_of("swapped", len(DATA))
        ground.bucket.put("f", new_data)
        with pytest.raises(Changed):
            await run.cache.read(version, BS, 2 * BS)
        new = ground.rig.ref(ground.origin, await in_thread(ground.origin.stat, b"f"))
        assert await run.cache.read(new, 0, len(DATA)) == new_data


@trio_test
async def test_a_busy_store_is_asked_again_then_told(ground: Ground) -> None:
    """C11, for GET: two 503 are ridden out; 503 for ever reaches the reader as Busy, and is not remembered."""
    async with ground.start() as (run, version):
        ground.proxy.script([503, 503], operation="GetObject")
        assert await run.cache.read(version, 0, 1) == DATA[:1]
        ground.proxy.clear()
        ground.proxy.answer(503, operation="GetObject")
        with pytest.raises(Busy):
            await run.cache.read(version, 2 * BS, 1)
        ground.proxy.clear()
        assert await run.cache.read(version, 2 * BS, 1) == DATA[2 * BS : 2 * BS + 1]


@trio_test
async def test_many_readers_of_a_slow_store_cause_one_get_per_block(ground: Ground) -> None:
    """C06: twenty readers while the GET stands still."""
    async with ground.start() as (run, version):
        gate = ground.proxy.pause(operation="GetObject")
        results: list[bytes] = []

        async def reader() -> None:
            results.append(bytes(await run.cache.read(version, 0, len(DATA))))

        async with trio.open_nursery() as readers:
            for _ in range(20):
                readers.start_soon(reader)
            await in_thread(gate.wait_reached)
            gate.open()
        assert results == [DATA] * 20
        assert len(ground.gets()) == 1
