"""The engine's figures can be read as a dictionary and as Prometheus text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tiercache.metrics import Metrics


def test_a_snapshot_has_plain_and_labelled_figures() -> None:
    metrics = Metrics()
    metrics.hits.labels(tier="nvme").inc(3)
    metrics.hits.labels(tier="ram").inc()
    metrics.misses.inc()
    metrics.origin_requests.labels(op="read", outcome="busy").inc()
    metrics.origin_seconds.labels(op="read").observe(0.5)
    metrics.staged_bytes.set(10)
    figures = metrics.snapshot()
    assert figures["hits_total"] == {"nvme": 3, "ram": 1}
    assert figures["misses_total"] == 1
    assert figures["origin_requests_total"] == {"read/busy": 1}
    assert figures["origin_seconds_count"] == {"read": 1}
    assert figures["origin_seconds_sum"] == {"read": 0.5}
    assert figures["staged_bytes"] == 10


def test_the_text_is_prometheus_format_under_one_prefix() -> None:
    metrics = Metrics()
    metrics.fill_bytes.labels(tier="nvme").inc(5)
    families = list(text_string_to_metric_families(metrics.text().decode()))
    assert all(family.name.startswith("tiercache_") for family in families)
    samples = {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
    assert samples["tiercache_fill_bytes_total", "nvme"] == 5


def test_two_engines_in_one_process_do_not_share_figures() -> None:
    one, other = Metrics(), Metrics()
    one.misses.inc()
    assert other.snapshot()["misses_total"] == 0
