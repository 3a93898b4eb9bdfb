"""How fast uploads may go, on a clock that jumps."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tiercache.config import UploadConfig
from tiercache.metrics import Metrics
from tiercache.writeback.attempt import UploadCancelled
from tiercache.writeback.pace import BURST_S, SLICE_BYTES, Bucket, Pace

MIB = 1024 * 1024


def test_what_is_taken_is_paid_off_at_the_rate() -> None:
    bucket = Bucket()
    assert bucket.take(10 * MIB, 100.0, MIB) == 0  # what was left unused is given at once
    assert bucket.take(1, 100.0, MIB) == pytest.approx(10 - BURST_S)
    assert bucket.take(1, 105.0, MIB) == pytest.approx(5 - BURST_S)
    assert bucket.take(MIB, 109.0, MIB) == 0
    assert bucket.take(1, 109.0, MIB) == pytest.approx(1)


def test_a_debt_is_paid_off_at_the_rate_that_counts_by_then() -> None:
    bucket = Bucket()
    bucket.take(11 * MIB, 100.0, MIB)
    assert bucket.take(1, 100.0, 10 * MIB) == pytest.approx(1)
    assert bucket.take(1, 100.0, math.inf) == 0
    assert bucket.take(1, 100.0, MIB) == pytest.approx(1 / MIB)


class Clock:
    """Whoever pauses moves it on."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.on_pause: Any = lambda: None

    def __call__(self) -> float:
        return self.now_s

    def pause(self, changed: threading.Condition, for_s: float) -> None:
        self.now_s += for_s
        self.on_pause()


def pace_of(clock: Clock, bytes_s: Any, metrics: Metrics | None = None) -> Pace:
    return Pace(bytes_s, clock=clock, pause=clock.pause, metrics=metrics)


def test_sending_takes_as_long_as_the_rate_wants() -> None:
    clock, metrics = Clock(), Metrics()
    pace = pace_of(clock, lambda: float(MIB), metrics)
    for _ in range(4):
        pace.wait(16 * MIB, lambda: None)
    assert clock.now_s - 1000.0 == pytest.approx(64 - BURST_S, abs=1.01)
    assert metrics.snapshot()["upload_paced_seconds_total"] == pytest.approx(clock.now_s - 1000.0)
    assert metrics.snapshot()["upload_bandwidth_max_bytes"] == MIB


def test_a_window_that_opens_lets_everything_go() -> None:
    clock = Clock()
    pace = pace_of(clock, lambda: float(MIB) if clock.now_s < 1010 else math.inf)
    assert pace.limit_bytes_s == MIB
    pace.wait(1024 * MIB, lambda: None)
    assert clock.now_s == pytest.approx(1010, abs=1.01)
    assert pace.limit_bytes_s is None


def test_who_waits_for_the_rate_can_be_cancelled() -> None:
    clock = Clock()
    pace = pace_of(clock, lambda: float(MIB))

    def check() -> None:
        if clock.now_s > 1005:
            raise UploadCancelled

    with pytest.raises(UploadCancelled):
        pace.wait(1024 * MIB, check)
    assert clock.now_s < 1007
    pace.wait(1, lambda: None)


def test_a_small_file_does_not_wait_until_a_large_one_is_paid_for() -> None:
    clock = Clock()
    pace = pace_of(clock, lambda: float(MIB))
    done: list[str] = []
    waiting = threading.Event()
    with ThreadPoolExecutor(1) as other:
        small = None

        def while_large_waits() -> None:
            nonlocal small
            if small is None:
                small = other.submit(lambda: (pace.wait(SLICE_BYTES, waiting.set), done.append("small")))
            # The condition is given up as a real wait does, until the other stands in line.
            while not waiting.is_set():
                pace._changed.release()
                waiting.wait(0.001)
                pace._changed.acquire()
            pace._changed.release()
            pace._changed.acquire()

        clock.on_pause = while_large_waits
        pace.wait(1000 * SLICE_BYTES, lambda: None)
        done.append("large")
        assert small is not None
        small.result()
    assert done == ["small", "large"]


def test_the_settings_tell_the_rate_of_the_hour() -> None:
    assert Pace.of(UploadConfig(), Metrics()).limit_bytes_s is None
    always = {"bandwidth_max": 5 * MIB, "windows": ["00:00-24:00=2MiB"]}
    assert Pace.of(UploadConfig.model_validate(always), Metrics()).limit_bytes_s == 2 * MIB
    assert Pace.of(UploadConfig.model_validate({**always, "windows": []}), Metrics()).limit_bytes_s == 5 * MIB
