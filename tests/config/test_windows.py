"""Rates of upload, and the hours that have their own."""

from __future__ import annotations

import math

import pytest

from tiercache.config import Config, UploadConfig
from tiercache.config.windows import Window, parse_rate, parse_window, rate_at

MIB = 1024 * 1024


def test_a_rate_is_a_size_a_second_or_none() -> None:
    assert parse_rate("100MiB") == 100 * MIB
    assert parse_rate("100MiB/s") == 100 * MIB
    assert parse_rate(65536) == 65536
    assert parse_rate("inf") == parse_rate(math.inf) == math.inf


@pytest.mark.parametrize("text", ["", "0", "1KiB", "fast", "-5MiB", True])
def test_what_is_no_rate_is_told_with_what_is_one(text: object) -> None:
    with pytest.raises(ValueError, match=r"is not a rate; allowed: .* or inf"):
        parse_rate(text)


def test_a_window_has_a_beginning_an_end_and_a_rate() -> None:
    assert parse_window("22:00-06:00=inf") == Window(22 * 60, 6 * 60, math.inf)
    assert parse_window(" 8:15 - 24:00 = 20MiB/s ") == Window(8 * 60 + 15, 24 * 60, 20 * MIB)


@pytest.mark.parametrize("text", ["", "22-6=inf", "22:00-06:00", "8:60-9:00=inf", "24:00-1:00=inf", "8:00-8:00=inf"])
def test_what_is_no_window_is_told_with_what_is_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a window; allowed: .*22:00-06:00=inf"):
        parse_window(text)


def test_the_first_window_that_holds_counts_also_over_midnight() -> None:
    windows = [parse_window("22:00-06:00=inf"), parse_window("05:00-24:00=1MiB")]

    def at(hour: int, minute: int) -> float:
        return rate_at(60 * hour + minute, windows, 7.0)

    assert [at(21, 59), at(22, 0), at(0, 0), at(5, 59)] == [MIB, math.inf, math.inf, math.inf]
    assert [at(6, 0), at(23, 59)] == [MIB, math.inf]
    assert rate_at(0, [], 7.0) == 7.0


def test_they_are_settings() -> None:
    assert Config().upload.bandwidth_max == math.inf
    upload = UploadConfig(bandwidth_max="10MiB", windows="22:00-06:00=inf, 8:00-9:00=1MiB")  # type: ignore[arg-type]
    assert upload.bandwidth_max == 10 * MIB
    assert upload.windows == ("22:00-06:00=inf", "8:00-9:00=1MiB")
    with pytest.raises(ValueError, match="not a window"):
        UploadConfig(windows=["at night"])  # type: ignore[arg-type]
