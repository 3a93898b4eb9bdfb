"""The order of uploads."""

from __future__ import annotations

import random

from tiercache.errors import Busy, Denied
from tiercache.writeback.queue import HUGE_BYTES, LARGE_BYTES, Bulk, UploadQueue
from tiercache.writeback.retry import Backoff, Failure


def fill(queue: UploadQueue, small: int, large: int) -> None:
    for number in range(large):
        queue.add(1000 + number, LARGE_BYTES)
    for number in range(small):
        queue.add(number, 1)


def test_small_files_go_first_but_a_large_one_is_not_starved() -> None:
    queue = UploadQueue(4)
    fill(queue, small=100, large=2)
    started = [queue.take(0) for _ in range(4)]
    assert started == [(0, Bulk.SMALL), (1, Bulk.SMALL), (2, Bulk.SMALL), (1000, Bulk.LARGE)]
    assert queue.take(0) is None


def test_large_files_leave_one_slot_for_small_ones() -> None:
    queue = UploadQueue(3)
    fill(queue, small=0, large=5)
    assert queue.take(0) == (1000, Bulk.LARGE)
    assert queue.take(0) == (1001, Bulk.LARGE)
    assert queue.take(0) is None
    queue.add(1, 1)
    assert queue.take(0) == (1, Bulk.SMALL)


def test_a_large_file_does_not_wait_for_the_end_of_huge_ones() -> None:
    queue = UploadQueue(4)
    for item in range(10):
        queue.add(item, HUGE_BYTES)
    assert [queue.take(0), queue.take(0), queue.take(0)] == [(0, Bulk.HUGE), (1, Bulk.HUGE), None]
    queue.add(100, LARGE_BYTES)
    assert queue.take(0) == (100, Bulk.LARGE)
    assert queue.take(0) is None  # the last slot is for small ones
    queue.add(200, 1)
    assert queue.take(0) == (200, Bulk.SMALL)


def test_a_huge_file_does_not_wait_for_the_end_of_all_large_ones() -> None:
    queue = UploadQueue(4)
    for item in range(100):
        queue.add(item, LARGE_BYTES)
    assert [queue.take(0), queue.take(0), queue.take(0)] == [(n, Bulk.LARGE) for n in range(3)]
    queue.add(1000, HUGE_BYTES)
    assert queue.take(0) is None
    queue.ended(Bulk.LARGE)
    assert queue.take(0) == (1000, Bulk.HUGE)


def test_with_few_slots_large_and_huge_files_take_turns() -> None:
    for slots in (1, 2):
        queue = UploadQueue(slots)
        for item in range(4):
            queue.add(item, HUGE_BYTES)
            queue.add(100 + item, LARGE_BYTES)
        order = []
        for _ in range(8):
            taken = queue.take(0)
            assert taken is not None
            assert queue.take(0) is None
            order.append(taken[0])
            queue.ended(taken[1])
        assert order == [0, 100, 1, 101, 2, 102, 3, 103]


def test_with_one_slot_a_large_file_has_its_turn_after_eight_small_ones() -> None:
    queue = UploadQueue(1)
    fill(queue, small=20, large=1)
    order = []
    for _ in range(21):
        taken = queue.take(0)
        assert taken is not None
        order.append(taken[0])
        queue.ended(taken[1])
    assert order.index(1000) == UploadQueue.SMALL_IN_A_ROW


def test_a_delayed_file_waits_for_its_time_or_for_a_hurry() -> None:
    queue = UploadQueue(4)
    queue.add(1, 1, due_s=5)
    queue.add(2, 1, due_s=3)
    queue.add(3, LARGE_BYTES, due_s=9)
    assert queue.take(0) is None
    assert queue.next_due_s() == 3
    assert queue.take(4) == (2, Bulk.SMALL)
    queue.hurry()
    assert queue.take(4) == (1, Bulk.SMALL)
    assert queue.take(4) == (3, Bulk.LARGE)
    assert queue.next_due_s() == float("inf")


def test_a_hurry_for_some_files_leaves_the_others_their_time() -> None:
    queue = UploadQueue(4)
    for item, due_s in ((1, 5), (2, 3), (3, 9)):
        queue.add(item, 1, due_s=due_s)
    queue.add(2, 1, due_s=7)
    queue.hurry({3, 4})
    assert queue.take(0) == (3, Bulk.SMALL)
    assert queue.take(0) is None
    assert queue.next_due_s() == 5
    assert [queue.take(8), queue.take(8)] == [(1, Bulk.SMALL), (2, Bulk.SMALL)]


def test_a_file_that_is_added_again_has_one_place_only() -> None:
    queue = UploadQueue(4)
    queue.add(1, 1, due_s=5)
    queue.add(1, 1)
    assert len(queue) == 1
    assert queue.take(0) == (1, Bulk.SMALL)
    assert queue.take(10) is None
    queue.add(2, 1, due_s=5)
    queue.remove(2)
    assert queue.take(10) is None


def test_every_file_is_taken_once_whatever_the_order() -> None:
    rng = random.Random(3)
    for slots in (1, 2, 3, 8):
        queue = UploadQueue(slots)
        for item in range(500):
            queue.add(item, rng.choice([1, LARGE_BYTES, HUGE_BYTES]), due_s=rng.choice([0, rng.random() * 10]))
        seen: list[int] = []
        running: list[Bulk] = []
        now_s = 0.0
        while len(queue) or running:
            taken = queue.take(now_s)
            if taken is not None:
                seen.append(taken[0])
                running.append(taken[1])
                assert len(running) <= slots
            elif running:
                queue.ended(running.pop(rng.randrange(len(running))))
            else:
                now_s = queue.next_due_s()
        assert sorted(seen) == list(range(500))


def test_the_back_off_doubles_with_jitter_up_to_its_cap_and_never_gives_up() -> None:
    backoff = Backoff(1.0, 30.0, random.Random(1))
    failure: Failure | None = None
    delays = []
    for _ in range(100):
        failure = backoff.next(failure, Busy("503"), 0.0)
        delays.append(failure.due_s)
    assert all(0.5 * min(30, 2.0**n) <= delay <= min(30, 2.0**n) for n, delay in enumerate(delays))
    assert not failure.permanent  # type: ignore[union-attr]
    assert backoff.next(None, Denied("403"), 0.0) == Failure(1, True, 30.0)
