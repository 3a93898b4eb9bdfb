"""Figures: rates, ratios and shares are what they say."""

from __future__ import annotations

from array import array

import pytest

from tiercache.bench.measure import Timed
from tiercache.bench.results import Epoch, Phase, TierUse, epoch_of, rows_of, sources_of
from tiercache.bench.targets import Call, Role, Target

ORIGIN = Target("origin", "plain", Role.ORIGIN, Call.OPEN, local_peer="local")
OURS = Target("ours", "fsspec", Role.CACHED, Call.OPEN, origin_peer="origin", local_peer="local")
MOUNTED = Target("mount", "plain", Role.CACHED, Call.OPEN, mounted=True, origin_peer="origin")


def timed(*latencies_ns: int, moved_bytes: int = 100) -> Timed:
    return Timed(array("q", latencies_ns).tobytes(), moved_bytes, 1000)


def epoch(target: Target, number: int, latency_ns: int, use: TierUse | None = None) -> Epoch:
    return epoch_of("w", Phase.WARM, target, number, [timed(latency_ns, latency_ns)], use=use)


def test_the_slowest_worker_decides_the_time() -> None:
    joined = epoch_of("w", Phase.WARM, OURS, 0, [timed(10, 10), timed(30, 40, moved_bytes=50)])
    assert joined.requests == 4
    assert joined.moved_bytes == 150
    assert joined.busy_s == pytest.approx(70e-9)


def test_a_ratio_compares_within_each_round() -> None:
    """The machine is ten times as slow in the second round: the ratio does not notice."""
    epochs = [epoch(ORIGIN, 0, 1000), epoch(OURS, 0, 100), epoch(ORIGIN, 1, 10_000), epoch(OURS, 1, 1000)]
    [origin, ours] = rows_of(epochs)
    assert origin.against_origin is None
    assert ours.against_origin is not None
    assert ours.against_origin == pytest.approx((10, 10, 10))
    assert ours.against_local is None


def test_quantiles_are_those_of_all_rounds() -> None:
    epochs = [epoch_of("w", Phase.WARM, OURS, 0, [timed(*range(1, 100))]), epoch(OURS, 1, 1_000_000)]
    [row] = rows_of(epochs)
    assert row.p50_s == pytest.approx(51e-9)
    assert row.p99_s == pytest.approx(1e-3)


def test_a_clients_bytes_are_shared_out_by_its_hits() -> None:
    use = TierUse(ram_hits=3, nvme_hits=1, origin_bytes=20)
    assert sources_of([epoch(OURS, 0, 10, use)]) == pytest.approx({"ram": 0.6, "nvme": 0.2, "origin": 0.2})


def test_what_a_mounts_engine_did_not_see_came_from_the_kernel() -> None:
    use = TierUse(ram_hits=1, ram_bytes=10, nvme_bytes=30, origin_bytes=20)
    found = sources_of([epoch(MOUNTED, 0, 10, use)])
    assert found == pytest.approx({"kernel": 0.4, "ram": 0.1, "nvme": 0.3, "origin": 0.2})


def test_read_ahead_beyond_what_was_asked_is_not_counted_twice() -> None:
    assert sources_of([epoch(OURS, 0, 10, TierUse(origin_bytes=5000))])["origin"] == 1.0


def test_nobody_counts_for_the_origin_and_the_local_directory() -> None:
    assert sources_of([epoch(ORIGIN, 0, 10)]) == {}
