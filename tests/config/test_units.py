"""Sizes and durations are read as people write them, exactly, or refused with what is allowed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.units import Size, format_count, format_duration, format_size, parse_duration, parse_share, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        (4096, 4096),
        ("200GiB", 200 * 1024**3),
        ("200 gib", 200 * 1024**3),
        ("200G", 200 * 1024**3),
        ("200Gi", 200 * 1024**3),
        ("200GB", 200 * 1000**3),
        ("1.5TB", 1_500_000_000_000),
        ("0.5KiB", 512),
        ("1_000B", 1000),
        ("64mib", 64 * 1024**2),
    ],
)
def test_a_size_has_binary_or_decimal_units(text: str | int, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1e9", "12XB", "1 2", "80%", "nan", "inf", -5, True, None, 1.5, "9999999PiB"]
)
def test_what_is_no_size_is_refused_with_what_is_allowed(text: object) -> None:
    with pytest.raises(ValueError, match=r"allowed: a size such as 64MiB"):
        parse_size(text)  # type: ignore[arg-type]


@given(st.integers(min_value=0, max_value=2**50))
def test_whole_numbers_are_exact_at_any_size(number: int) -> None:
    assert parse_size(f"{number}KiB") == number * 1024


def test_a_share_resolves_against_the_total() -> None:
    assert parse_share("80%") == Size(0, 0.8)
    assert parse_share("80%").resolve(1000) == 800
    assert parse_share("0.5 %").resolve(1000) == 5
    assert parse_share("10MiB").resolve(1000) == 10 * 1024**2


@pytest.mark.parametrize("text", ["0%", "101%", "-5%", "%", "x%", "50%%", "abc"])
def test_a_share_lies_above_0_and_up_to_100(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: .*share such as 80%"):
        parse_share(text)


@pytest.mark.parametrize("text", ["80%", "12.5%", "0.1%", "3GiB", "1025MiB", "5KiB", "1000", "0"])
def test_a_share_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_share(text)) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_a_written_size_is_exact(size_bytes: int) -> None:
    assert parse_share(str(Size(size_bytes))) == Size(size_bytes)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("500ms", 0.5),
        ("5s", 5),
        ("10m", 600),
        ("10min", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("0.25", 0.25),
        (3, 3),
        (0.5, 0.5),
        ("inf", math.inf),
        ("never", math.inf),
    ],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str | float, duration_s: float) -> None:
    assert parse_duration(text) == duration_s


@pytest.mark.parametrize("text", ["", "s", "-1s", "5 parsecs", "1h30", math.nan, -1, False, None])
def test_what_is_no_duration_is_refused_with_what_is_allowed(text: object) -> None:
    with pytest.raises(ValueError, match="allowed: a duration such as 500ms"):
        parse_duration(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (5 * 1024**3, "5 GiB"),
        (1023 * 1024**2, "0.999 GiB"),
        (2**60, "1048576 TiB"),
    ],
)
def test_sizes_are_shown_with_three_digits(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0 ms"),
        (0.85, "850 ms"),
        (12.34, "12.3 s"),
        (60, "1 min"),
        (320, "5 min 20 s"),
        (11100, "3 h 5 min"),
        (190000, "2 d 4 h"),
        (math.inf, "for ever"),
    ],
)
def test_durations_are_shown_in_two_units(duration_s: float, text: str) -> None:
    assert format_duration(duration_s) == text


def test_one_of_a_kind_is_no_plural() -> None:
    assert [format_count(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
