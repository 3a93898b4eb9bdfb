"""Positions, windows over them, and walks: arithmetic."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tiercache.model import BLOCK_SIZE_BYTES as BS
from tiercache.model import VersionId
from tiercache.readahead import Window
from tiercache.readahead.layout import Layout
from tiercache.readahead.walk import Walk

VERSION = VersionId(b"v" * 16)
STEP = BS // 4


@given(st.integers(1, 100), st.lists(st.integers(-10, 120), max_size=10))
def test_every_byte_has_one_position(size_bytes: int, starts: list[int]) -> None:
    """Positions and offsets are two numberings of the same bytes, whatever starts are told."""
    layout = Layout(starts, size_bytes)
    in_order = [offset for part in layout.ranges(range(size_bytes)) for offset in part]
    assert sorted(in_order) == list(range(size_bytes))
    assert [layout.position(offset) for offset in in_order] == list(range(size_bytes))
    for position, offset in enumerate(in_order):
        assert position < layout.end_of(position) <= size_bytes
        assert list(layout.starts(range(len(layout))))[layout.number(offset)] <= offset


@given(st.integers(1, 100), st.lists(st.integers(0, 100), max_size=10), st.data())
def test_a_part_lies_where_the_whole_does(size_bytes: int, starts: list[int], data: st.DataObject) -> None:
    layout = Layout(starts, size_bytes)
    in_order = [offset for part in layout.ranges(range(size_bytes)) for offset in part]
    start = data.draw(st.integers(0, size_bytes))
    stop = data.draw(st.integers(start, size_bytes))
    parts = list(layout.ranges(range(start, stop)))
    assert [offset for part in parts for offset in part] == in_order[start:stop]
    assert all(before.stop != after.start for before, after in itertools.pairwise(parts)), "neighbours are one"


def known(layout: Layout) -> Window:
    window = Window(BS, 16 * BS)
    window.follow(VERSION, layout)
    return window


def wish(window: Window, offset: int, length: int, object_bytes: int) -> range:
    """What a read makes the window wish; all of it is granted."""
    if window.is_in_order(offset):
        window.advance(offset, length)
    else:
        window.restart(offset, length)
    wished = window.wish(object_bytes)
    if wished:
        window.grant(wished)
    return wished


def test_a_reader_that_comes_to_a_tensor_gets_the_tensor_and_no_more() -> None:
    """The first read is enough, the window of 16 MiB holds it, and the next tensor is left alone."""
    size_bytes = 100 * BS
    window = known(Layout(range(0, size_bytes, 3 * BS), size_bytes))
    assert wish(window, 30 * BS, STEP, size_bytes) == range(30 * BS + STEP, 33 * BS)
    for offset in range(30 * BS + STEP, 33 * BS, STEP):
        assert not wish(window, offset, STEP, size_bytes)


def test_a_reader_of_tensor_after_tensor_gets_what_follows_in_reading_order() -> None:
    """Here the file lies in another order than it is read: 0, 20 and 10 blocks from the beginning."""
    size_bytes = 30 * BS
    layout = Layout([0, 20 * BS, 10 * BS], size_bytes)
    window = known(layout)
    for offset in range(0, 10 * BS, STEP):
        wish(window, offset, STEP, size_bytes)
    wished = [wish(window, offset, STEP, size_bytes) for offset in range(20 * BS, 30 * BS, STEP)]
    assert max(part.stop for part in wished) == 20 * BS, "the end of the second one, in positions"
    assert list(layout.ranges(range(10 * BS, 20 * BS))) == [range(20 * BS, 30 * BS)]
    assert wish(window, 10 * BS, STEP, size_bytes).stop == 30 * BS


def test_who_reads_two_tensors_in_order_has_the_next_ones_read_ahead() -> None:
    size_bytes = 100 * BS
    window = known(Layout(range(0, size_bytes, 2 * BS), size_bytes))
    furthest = [wish(window, offset, STEP, size_bytes).stop for offset in range(0, 5 * BS, STEP)]
    assert max(furthest[: 4 * BS // STEP]) == 4 * BS, "two tensors: nothing behind the second"
    assert max(furthest) > 6 * BS


def test_a_reader_of_slices_is_soon_left_alone() -> None:
    """A few bytes of each of many large tensors: less is sent for each time, in the end nothing without evidence."""
    size_bytes = 1000 * BS
    window = known(Layout(range(0, size_bytes, 50 * BS), size_bytes))
    wished = [len(wish(window, number * 50 * BS, 4096, size_bytes)) for number in range(1, 10)]
    assert wished[0] == 4 * BS
    assert wished == sorted(wished, reverse=True)
    assert wished[-1] == 0


def test_a_reader_of_whole_tensors_in_any_order_is_trusted_more() -> None:
    size_bytes = 1000 * BS
    window = known(Layout(range(0, size_bytes, 20 * BS), size_bytes))
    first = []
    for number in (7, 3, 40, 21):
        start = number * 20 * BS
        first.append(len(wish(window, start, STEP, size_bytes)))
        for offset in range(start + STEP, start + 20 * BS, STEP):
            wish(window, offset, STEP, size_bytes)
    assert first == [4 * BS, 8 * BS, 16 * BS, 16 * BS]


def test_a_reader_of_a_shard_has_the_largest_window_at_once() -> None:
    size_bytes = 100 * BS
    window = known(Layout((), size_bytes, first_bytes=size_bytes))
    assert wish(window, 0, STEP, size_bytes) == range(STEP, STEP + 16 * BS)


@given(st.lists(st.tuples(st.integers(0, 40 * BS - 1), st.integers(1, 3 * BS)), max_size=30))
def test_accounts_close_with_a_layout_too(reads: list[tuple[int, int]]) -> None:
    """Granted = used + wasted + outstanding, whatever is read."""
    object_bytes = 40 * BS
    window = known(Layout([30 * BS, 10 * BS, 3 * BS + 7, 20 * BS], object_bytes))
    granted = used = wasted = 0
    for offset, length in reads:
        length = min(length, object_bytes - offset)
        if window.is_in_order(offset):
            used += window.advance(offset, length)
        else:
            wasted += window.restart(offset, length)
        if wished := window.wish(object_bytes):
            assert wished.stop <= object_bytes
            granted += len(wished)
            window.grant(wished)
        assert granted == used + wasted + window.outstanding_bytes


def test_a_walk_over_the_beginnings_is_run_ahead_of() -> None:
    """From the second step on, each extent once, further ahead as it goes on, and never more than 16."""
    walk = Walk()
    sent: list[int] = []
    for number in range(100):
        ahead = walk.step(number, number)
        sent += ahead
        assert len(ahead) <= 16
        assert all(number < other <= number + 16 for other in ahead)
    assert sent == list(range(sent[0], sent[-1] + 1))
    assert sent[0] <= 3


def test_a_walk_may_see_the_end_of_the_extent_before() -> None:
    """Pages do not begin where records do."""
    walk = Walk()
    assert [bool(walk.step(max(0, number - 1), number)) for number in range(3)] == [False, False, True]


def test_jumps_about_are_no_walk() -> None:
    walk = Walk()
    assert not any(walk.step(number, number) for number in (3, 9, 2, 2, 50, 48, 46, 7))
