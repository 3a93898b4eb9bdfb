"""Windows as arithmetic, and read-ahead over a real cache."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, Running, bytes_of, in_thread
from tiercache.config import FetchConfig, ReadaheadConfig
from tiercache.readahead import ReadAhead, Window
from tiercache.units import KIB

STEP = 128 * KIB


def read_in_order(window: Window, object_bytes: int, *, stop: int, start: int = 0) -> list[range]:
    """Reads of 128 KiB one after the other; everything that is wished for is granted."""
    wishes = []
    for offset in range(start, stop, STEP):
        window.advance(offset, STEP)
        if wish := window.wish(object_bytes):
            window.grant(wish)
            wishes.append(wish)
    return wishes


def test_a_window_doubles_while_reads_go_on_in_order() -> None:
    """Each wish begins where the last one ended and is about twice as long, up to the largest window."""
    wishes = read_in_order(Window(BS, 8 * BS), 1000 * BS, stop=60 * BS)
    assert wishes[0] == range(BS, 2 * BS + BS) or wishes[0] == range(BS, 2 * BS)
    assert all(before.stop == after.start for before, after in itertools.pairwise(wishes))
    assert all(len(wish) <= 8 * BS for wish in wishes)
    assert len(wishes[3]) > len(wishes[0])
    assert max(len(wish) for wish in wishes) >= 4 * BS


def test_a_window_ends_with_the_object() -> None:
    """Nothing past the end is wished for, and nothing twice."""
    object_bytes = 5 * BS + 1000
    wishes = read_in_order(Window(BS, 64 * BS), object_bytes, stop=object_bytes)
    assert wishes[-1].stop == object_bytes
    assert sum(map(len, wishes)) == object_bytes - BS


def test_a_look_at_the_header_reads_nothing_ahead() -> None:
    """A single small read, at the beginning too, is no evidence of a reader that goes on."""
    window = Window(BS, 8 * BS)
    window.advance(0, 100)
    assert not window.wish(1000 * BS)


def test_a_random_read_closes_the_window_and_tells_the_waste() -> None:
    """What was outstanding is returned once; reads in order from there begin with the smallest window."""
    window = Window(BS, 64 * BS)
    read_in_order(window, 1000 * BS, stop=20 * BS)
    outstanding = window.outstanding_bytes
    assert outstanding > 0
    assert not window.is_in_order(500 * BS)
    assert window.restart(500 * BS, STEP) == outstanding
    assert window.outstanding_bytes == 0
    wishes = read_in_order(window, 1000 * BS, start=500 * BS + STEP, stop=501 * BS)
    assert [wish.start for wish in wishes][:1] == [501 * BS]
    assert len(wishes[0]) <= 2 * BS


@given(st.lists(st.tuples(st.integers(0, 40 * BS), st.integers(1, 3 * BS)), max_size=30))
def test_whatever_is_read_every_byte_ahead_is_used_or_wasted(reads: list[tuple[int, int]]) -> None:
    """Accounts close: granted = used + wasted + outstanding, and no wish overlaps what is outstanding."""
    object_bytes = 40 * BS
    window = Window(BS, 8 * BS)
    granted = used = wasted = 0
    for offset, length in reads:
        length = min(length, object_bytes - offset)
        if window.is_in_order(offset):
            used += window.advance(offset, length)
        else:
            wasted += window.restart(offset, length)
        wish = window.wish(object_bytes)
        assert wish.stop <= object_bytes
        if wish:
            granted += len(wish)
            window.grant(wish)
        assert granted == used + wasted + window.outstanding_bytes


def read_ahead(run: Running, budget_bytes: int = 64 * BS) -> ReadAhead:
    config = ReadaheadConfig(budget_bytes=budget_bytes, window_min_bytes=BS, window_max_bytes=8 * BS)
    return ReadAhead(run.cache, config, run.metrics)


@trio_test
async def test_a_sequential_reader_finds_its_bytes_here(rig: Rig) -> None:
    """Blocks are asked for before they are read, each once; all that was read ahead counts as used."""
    data = bytes_of("ahead", 8 * BS)
    version = rig.put("f", data)
    async with rig.start(fetch=FetchConfig(part_size=BS)) as run:
        ahead = read_ahead(run)
        window = ahead.window()
        for offset in range(0, len(data), STEP):
            ahead.observe(window, version, offset, STEP)
            assert await run.cache.read(version, offset, STEP) == data[offset : offset + STEP]
        assert sorted(request.offset for request in rig.origin.requests) == [block * BS for block in range(8)]
        assert run.figure("readahead_bytes_total", "used") == 7 * BS
        ahead.forget(window)
        assert run.figure("readahead_bytes_total", "wasted") == 0
        assert ahead.held_bytes == 0


@trio_test
async def test_the_budget_is_shared_and_never_exceeded(rig: Rig) -> None:
    """Many handles together hold no more than the budget; one that went quiet gives up its share to a new one."""
    versions = [rig.put(f"f{number}", bytes(8 * BS)) for number in range(4)]
    async with rig.start() as run:
        ahead = read_ahead(run, budget_bytes=2 * BS)
        windows = [ahead.window() for _ in versions]
        for window, version in zip(windows, versions, strict=True):
            for offset in range(0, 2 * BS, STEP):
                ahead.observe(window, version, offset, STEP)
                assert 0 <= ahead.held_bytes <= 2 * BS
                await run.cache.read(version, offset, STEP)
            assert ahead.held_bytes > 0
        assert run.figure("readahead_bytes_total", "used") == 4 * BS, "the second block of each"
        for window in windows:
            ahead.forget(window)
        assert ahead.held_bytes == 0


@trio_test
async def test_nothing_is_read_ahead_while_readers_wait(rig: Rig) -> None:
    """With every line to the origin busy the wish is dropped and counted; the reader goes on."""
    data = bytes_of("busy", 8 * BS)
    version, other = rig.put("f", data), rig.put("other", bytes(BS))
    async with rig.start(fetch=FetchConfig(concurrency=1)) as run:
        ahead = read_ahead(run)
        window = ahead.window()
        rig.origin.hold()
        run.nursery.start_soon(run.cache.read, other, 0, 1)
        await in_thread(rig.origin.wait_for_requests, 1)
        for offset in range(0, BS, STEP):
            ahead.observe(window, version, offset, STEP)
        assert run.figure("readahead_bytes_total", "dropped") > 0
        assert ahead.held_bytes == 0
        rig.origin.release()
        assert await run.cache.read(version, 0, len(data)) == data
        assert len({request.offset for request in rig.origin.requests if request.key == b"f"}) == 2


@trio_test
async def test_what_is_here_already_is_not_sent_for(rig: Rig) -> None:
    """Over a complete version read-ahead costs the origin nothing and holds no budget."""
    data = bytes_of("here", 4 * BS)
    version = rig.put("f", data)
    async with rig.start() as run:
        await run.cache.read(version, 0, len(data))
        fetched = len(rig.origin.requests)
        ahead = read_ahead(run)
        window = ahead.window()
        for offset in range(0, len(data), STEP):
            ahead.observe(window, version, offset, STEP)
        assert ahead.held_bytes == 0
        assert len(rig.origin.requests) == fetched
