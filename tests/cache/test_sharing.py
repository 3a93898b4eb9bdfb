"""One fetch per block, shared: waiters that come late, are cancelled or get an error."""

from __future__ import annotations

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from rig.cache_rig import BS, Rig, Running, bytes_of, in_thread
from rig.memory_origin import Request
from tiercache.cache import VersionRef
from tiercache.config import FetchConfig
from tiercache.errors import Absent, Broken, Busy, Denied, TierCacheError
from tiercache.units import MIB


async def read_into(
    results: list[bytes], run: Running, version: VersionRef, offset: int = 0, length: int = 1 << 40
) -> None:
    results.append(bytes(await run.cache.read(version, offset, length)))


@trio_test
async def test_twenty_readers_cause_one_fetch_per_block(rig: Rig) -> None:
    """C06: readers of one cold version that start at any time get equal bytes; each block is asked for once."""
    data = bytes_of("shared", 3 * BS + 17)
    version = rig.put("f", data)
    results: list[bytes] = []
    async with rig.start(fetch=FetchConfig(part_size=BS)) as run:
        rig.origin.hold()
        async with trio.open_nursery() as readers:
            for number in range(10):
                readers.start_soon(read_into, results, run, version, number * 1000)
            await in_thread(rig.origin.wait_for_requests, 4)
            for number in range(10, 20):
                readers.start_soon(read_into, results, run, version, number * 1000)
            await wait_all_tasks_blocked()
            rig.origin.release()
        assert sorted(results, key=len, reverse=True) == [data[number * 1000 :] for number in range(20)]
        assert sorted(rig.origin.requests) == [
            Request("read", b"f", block * BS, length) for block, length in enumerate((BS, BS, BS, 17))
        ]
        assert [version for version, _ in run.nvme.scan()] == [version.id], "no temporary file is left"


@trio_test
async def test_twenty_openers_cause_one_request(rig: Rig) -> None:
    """An unknown small file that many open at once is one whole GET."""
    version = rig.put("f", b"tiny")
    async with rig.start() as run:
        rig.origin.hold()
        opened: list[bytes] = []

        async def open_small() -> None:
            _, _, data = await run.cache.ensure_small(rig.origin, version.origin_id, b"f", BS)
            assert data is not None
            opened.append(bytes(data))

        async with trio.open_nursery() as openers:
            for _ in range(20):
                openers.start_soon(open_small)
            await wait_all_tasks_blocked()
            rig.origin.release()
        assert opened == [b"tiny"] * 20
        assert len(rig.origin.requests) == 1


@trio_test
async def test_a_cancelled_reader_does_not_fail_the_others(rig: Rig) -> None:
    """The one whose read began the fetch goes away; the other one, and the cache, get the bytes of that fetch."""
    data = bytes_of("cancelled", BS)
    version = rig.put("f", data)
    results: list[bytes] = []
    async with rig.start() as run:
        rig.origin.hold()
        async with trio.open_nursery() as readers:
            first = trio.CancelScope()

            async def read_first() -> None:
                with first:
                    await run.cache.read(version, 0, BS)

            readers.start_soon(read_first)
            await in_thread(rig.origin.wait_for_requests, 1)
            readers.start_soon(read_into, results, run, version)
            await wait_all_tasks_blocked()
            first.cancel()
            await wait_all_tasks_blocked()
            assert first.cancelled_caught
            rig.origin.release()
        assert results == [data]
        assert len(rig.origin.requests) == 1
        assert run.cache.locate(version) is not None


@trio_test
async def test_a_fetch_goes_on_without_any_reader(rig: Rig) -> None:
    """C07: a reader that is gone before its bytes come leaves a copy that is right, or none: never zeros."""
    data = bytes_of("gone", 2 * BS)
    version = rig.put("f", data)
    async with rig.start() as run:
        rig.origin.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_into, [], run, version, 10, 100)
            await in_thread(rig.origin.wait_for_requests, 1)
            nursery.cancel_scope.cancel()
        rig.origin.release()
        assert await run.cache.read(version, 0, len(data)) == data
        assert await trio.Path(run.nvme.path(version.id)).read_bytes() == data
        assert [request.offset for request in rig.origin.requests] == [0, BS]


@pytest.mark.parametrize("error", [Busy("slow down"), Denied("403"), Absent("404"), Broken("garbage")])
@trio_test
async def test_an_error_reaches_every_waiter_and_is_not_remembered(rig: Rig, error: TierCacheError) -> None:
    """Each waiter gets an exception of its own and of the right kind; the next read asks again and succeeds."""
    version = rig.put("f", b"x" * 100)
    raised: list[BaseException] = []

    async def read_and_fail(run: Running) -> None:
        try:
            await run.cache.read(version, 0, 100)
        except TierCacheError as caught:
            raised.append(caught)

    async with rig.start() as run:
        rig.origin.hold()
        rig.origin.fail_next(error)
        async with trio.open_nursery() as readers:
            for _ in range(3):
                readers.start_soon(read_and_fail, run)
            await in_thread(rig.origin.wait_for_requests, 1)
            await wait_all_tasks_blocked()
            rig.origin.release()
        assert [type(caught) for caught in raised] == [type(error)] * 3
        assert len({id(caught) for caught in raised}) == 3
        assert str(raised[0]) == str(error)
        assert run.nvme.used_bytes == 0
        assert await run.cache.read(version, 0, 100) == b"x" * 100


@trio_test
async def test_a_bug_in_an_origin_is_an_error_of_that_read_only(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """An unforeseen exception becomes Broken for the reader; the cache's nursery and other reads go on."""
    version = rig.put("f", b"x" * 100)
    async with rig.start() as run:
        rig.origin.fail_next(ZeroDivisionError("a bug"), ZeroDivisionError("a bug"))
        with pytest.raises(Broken):
            await run.cache.read(version, 0, 100)
        with pytest.raises(Broken):
            await run.cache.ensure_small(rig.origin, version.origin_id, b"f", BS)
        assert await run.cache.read(version, 0, 100) == b"x" * 100
        assert "unforeseen" in caplog.text


@trio_test
async def test_one_of_several_parts_fails(rig: Rig) -> None:
    """A large read with one failed part is an error; the parts that came are kept, only the failed one comes again."""
    data = bytes_of("parts", 3 * BS)
    version = rig.put("f", data)
    async with rig.start(fetch=FetchConfig(part_size=BS, concurrency=1)) as run:
        rig.origin.fail_next(Busy("no"))
        with pytest.raises(Busy):
            await run.cache.read(version, 0, len(data))
        assert await run.cache.read(version, 0, len(data)) == data
        assert len(rig.origin.requests) == 4


@trio_test
async def test_fetches_in_flight_are_bounded_in_number_and_bytes(rig: Rig) -> None:
    """No more requests at a time than configured, no more bytes asked for at a time than the buffer holds."""
    data = bytes_of("bounds", 6 * BS)
    version, other = rig.put("f", data), rig.put("other", bytes(BS))
    for fetch in (
        FetchConfig(part_size=BS, concurrency=2),
        FetchConfig(part_size=BS, buffer_bytes=2 * BS),
    ):
        async with rig.start(fetch=fetch) as run:
            rig.origin.hold()
            seen = len(rig.origin.requests)
            async with trio.open_nursery() as readers:
                readers.start_soon(read_into, [], run, version)
                await in_thread(rig.origin.wait_for_requests, seen + 2)
                await wait_all_tasks_blocked()
                assert len(rig.origin.requests) == seen + 2
                assert run.cache.prefetch(other, 0, BS) is None, "nothing is read ahead meanwhile"
                rig.origin.release()
            assert len(rig.origin.requests) == seen + 6
            assert run.figure("fetches_in_flight") == 0
            run.cache.drop(version.id)


@trio_test
async def test_a_request_larger_than_the_buffer_still_runs(rig: Rig) -> None:
    """A buffer smaller than a block makes fetches run one by one, not never."""
    data = bytes_of("alone", 2 * BS)
    version = rig.put("f", data)
    async with rig.start(fetch=FetchConfig(part_size=BS, buffer_bytes=MIB)) as run:
        assert await run.cache.read(version, 0, len(data)) == data
