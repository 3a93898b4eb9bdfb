"""The order of uploads."""

from __future__ import annotations

import random

from tiercache.errors import Busy, Denied
from tiercache.writeback.queue import LARGE_BYTES, UploadQueue
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
    assert started == [(0, False), (1, False), (2, False), (1000, True)]
    assert queue.take(0) is None


def test_large_files_leave_one_slot_for_small_ones() -> None:
    queue = UploadQueue(3)
    fill(queue, small=0, large=5)
    assert queue.take(0) == (1000, True)
    assert queue.take(0) == (1001, True)
    assert queue.take(0) is None
    queue.add(1, 1)
    assert queue.take(0) == (1, False)


def test_with_one_slot_a_large_file_has_its_turn_after_eight_small_ones() -> None:
    queue = UploadQueue(1)
    fill(queue, small=20, large=1)
    order = []
    for _ in range(21):
        taken = queue.take(0)
        assert taken is not None
        order.append(taken[0])
        queue.ended(large=taken[1])
    assert order.index(1000) == UploadQueue.SMALL_IN_A_ROW


def test_a_delayed_file_waits_for_its_time_or_for_a_hurry() -> None:
    queue = UploadQueue(4)
    queue.add(1, 1, due_s=5)
    queue.add(2, 1, due_s=3)
    queue.add(3, LARGE_BYTES, due_s=9)
    assert queue.take(0) is None
    assert queue.next_due_s() == 3
    assert queue.take(4) == (2, False)
    queue.hurry()
    assert queue.take(4) == (1, False)
    assert queue.take(4) == (3, True)
    assert queue.next_due_s() == float("inf")


def test_a_file_that_is_added_again_has_one_place_only() -> None:
    queue = UploadQueue(4)
    queue.add(1, 1, due_s=5)
    queue.add(1, 1)
    assert len(queue) == 1
    assert queue.take(0) == (1, False)
    assert queue.take(10) is None
    queue.add(2, 1, due_s=5)
    queue.remove(2)
    assert queue.take(10) is None


def test_every_file_is_taken_once_whatever_the_order() -> None:
    rng = random.Random(3)
    for slots in (1, 2, 3, 8):
        queue = UploadQueue(slots)
        for item in range(500):
            queue.add(item, rng.choice([1, LARGE_BYTES]), due_s=rng.choice([0, rng.random() * 10]))
        seen: list[int] = []
        running: list[bool] = []
        now_s = 0.0
        while len(queue) or running:
            taken = queue.take(now_s)
            if taken is not None:
                seen.append(taken[0])
                running.append(taken[1])
                assert len(running) <= slots
            elif running:
                queue.ended(large=running.pop(rng.randrange(len(running))))
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
