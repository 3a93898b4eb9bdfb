"""Figures: rates, ratios and shares are what they say."""

from __future__ import annotations

from array import array

import pytest

from tiercache.bench.figures import best_peer
from tiercache.bench.measure import Timed
from tiercache.bench.phases import Phase
from tiercache.bench.processes import Usage
from tiercache.bench.results import Epoch, epoch_of, rows_of, sources_of
from tiercache.bench.spent import Spent, TierUse, grown
from tiercache.bench.targets import Call, Role, Target

ORIGIN = Target("origin", "plain", Role.ORIGIN, Call.OPEN, local_peer="local")
OURS = Target("ours", "fsspec", Role.CACHED, Call.OPEN, origin_peer="origin", local_peer="local")
MOUNTED = Target("mount", "plain", Role.CACHED, Call.OPEN, mounted=True, origin_peer="origin")


def timed(*latencies_ns: int, moved_bytes: int = 100) -> Timed:
    return Timed(array("q", latencies_ns).tobytes(), moved_bytes, 1000)


def epoch(target: Target, number: int, latency_ns: int, use: TierUse | None = None) -> Epoch:
    return epoch_of("w", Phase.WARM, target, number, [timed(latency_ns, latency_ns)], spent=Spent(use=use))


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


def test_ours_are_compared_with_each_peer_within_the_rounds() -> None:
    slow, fast = (
        Target(f"{name} mount", "plain", Role.PEER, Call.OPEN, mounted=True, program=name) for name in ("slow", "fast")
    )
    epochs = [epoch(MOUNTED, 0, 100), epoch(slow, 0, 300), epoch(fast, 0, 50)]
    epochs += [epoch(MOUNTED, 1, 1000), epoch(slow, 1, 3000), epoch(fast, 1, 500)]
    ours, *others = rows_of(epochs)
    assert {name: ratio.median for name, ratio in ours.against_peers.items()} == pytest.approx({"slow": 3, "fast": 0.5})
    assert [row.against_peers for row in others] == [{}, {}]
    assert best_peer(ours) == "0.5 × fast"


def test_a_row_tells_the_processor_time_of_one_request_and_the_most_memory_of_its_server() -> None:
    usages = [Usage(cpu_s=0.3, rss_bytes=10), Usage(cpu_s=0.1, rss_bytes=30), Usage(cpu_s=0.2, rss_bytes=20)]
    epochs = [
        epoch_of("w", Phase.WARM, MOUNTED, number, [timed(10, 10)], spent=Spent(server=usage))
        for number, usage in enumerate(usages)
    ]
    [row] = rows_of(epochs)
    assert row.server_cpu_s == pytest.approx(0.1)
    assert row.server_rss_bytes == 30


def test_only_counters_that_grew_are_told() -> None:
    before = {"metrics": {"misses_total": 3, "hits_total": {"nvme": 1, "ram": 2}, "staged_bytes": 1}}
    after = {"metrics": {"misses_total": 3, "hits_total": {"nvme": 5, "ram": 2}, "staged_bytes": 9, "new_total": 2}}
    assert grown(after, since=before) == {"hits_total[nvme]": 4, "new_total": 2}
