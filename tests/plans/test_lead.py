"""How far ahead a plan has to be."""

from __future__ import annotations

import pytest

from tiercache.readahead import Read
from tiercache.readahead.lead import Lead


def steady(lead: Lead, *, rate: float, latency_s: float, seconds: float = 30.0) -> None:
    for number in range(int(rate * seconds)):
        lead.read(Read.READY, number / rate)
        lead.fetched(latency_s)


@pytest.mark.parametrize(("rate", "latency_s"), [(1800.0, 0.030), (300.0, 0.5), (5000.0, 0.01)])
def test_it_is_twice_what_little_s_law_asks_for(rate: float, latency_s: float) -> None:
    """FACTS of the field: 1,786 samples/s × 30 ms are 54 files under way."""
    lead = Lead(1, 100_000)
    steady(lead, rate=rate, latency_s=latency_s)
    assert lead.files == pytest.approx(2 * rate * latency_s, rel=0.05)


def test_slow_answers_are_in_time_too() -> None:
    lead = Lead(1, 100_000)
    for number in range(10_000):
        lead.read(Read.READY, number / 1000)
        lead.fetched(0.200 if number % 20 == 0 else 0.010)
    assert lead.files > 2 * 1000 * 0.040


def test_it_stays_between_its_bounds() -> None:
    lead = Lead(64, 128)
    assert lead.files == 64
    steady(lead, rate=10_000, latency_s=1.0, seconds=1)
    assert lead.files == 128


def test_a_reader_that_waits_is_kept_further_ahead_and_not_for_ever() -> None:
    lead = Lead(16, 1000)
    for _ in range(400):
        lead.read(Read.LATE, 0.0)
    assert lead.files == 1000
    for number in range(10_000):
        lead.read(Read.READY, number * 10.0)
    assert lead.files == 16
