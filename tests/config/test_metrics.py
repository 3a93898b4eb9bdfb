"""The engine's figures can be read as a dictionary and as Prometheus text."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tiercache.errors import ConfigError
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def test_the_figures_are_served_over_http_until_closed() -> None:
    metrics = Metrics()
    metrics.misses.inc(7)
    port = free_port()
    close = metrics.serve(f"127.0.0.1:{port}")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert "tiercache_misses_total 7.0" in answer.read().decode()
        with pytest.raises(
            ConfigError, match=rf"^metrics\.listen: cannot listen on 127\.0\.0\.1:{port} \(Address already in use"
        ):
            Metrics().serve(f"127.0.0.1:{port}")
    finally:
        close()
    metrics.serve(f"127.0.0.1:{port}")()
