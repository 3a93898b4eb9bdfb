"""The simulated origin: how it is spelled, and that it changes nothing but the time."""

from __future__ import annotations

import pytest

from rig.seaweedfs import Bucket, client
from tiercache.bench.proxy import SlowLine, Traffic, kind_of
from tiercache.bench.slowness import SlowDisk, Slowness, parse_slowness
from tiercache.errors import ConfigError


def test_latency_bandwidth_and_serial_are_read() -> None:
    found = parse_slowness("latency=10ms, bandwidth=100MB/s,serial=yes")
    assert found == Slowness(0.01, 100e6, serial=True)
    assert str(found) == "10 ms latency, 95.4 MiB/s, one request at a time"


@pytest.mark.parametrize("text", ["latency", "latency=fast", "bandwidth=-1", "speed=1", "serial=1", ""])
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--simulate-origin: .*(allowed|out of range)"):
        parse_slowness(text)


def test_a_slow_disk_waits_for_the_one_before() -> None:
    disk = SlowDisk(Slowness(latency_s=0.0, bandwidth_bytes_per_s=1e12))
    disk.wait(1000, request=True)
    disk.wait(1000, request=False)


def test_every_request_goes_through_the_line_unchanged_and_is_counted(s3_bucket: Bucket) -> None:
    data = bytes(range(256)) * 4096
    with SlowLine(s3_bucket.server.endpoint, Slowness(latency_s=0.001, bandwidth_bytes_per_s=1e9)) as line:
        s3 = client(s3_bucket.server._replace(endpoint=line.endpoint))
        s3.put_object(Bucket=s3_bucket.name, Key="a", Body=data)
        before = line.traffic()
        for _ in range(5):
            assert s3.get_object(Bucket=s3_bucket.name, Key="a")["Body"].read() == data
        seen = line.traffic().since(before)
        s3.close()
    assert seen.requests == 5
    assert seen.received_bytes > 5 * len(data)
    assert s3_bucket.get("a") == data


def test_the_line_tells_reads_from_looks_and_listings(s3_bucket: Bucket) -> None:
    with SlowLine(s3_bucket.server.endpoint, Slowness()) as line:
        line.set_latency(0.001)
        s3 = client(s3_bucket.server._replace(endpoint=line.endpoint))
        client(s3_bucket.server).put_object(Bucket=s3_bucket.name, Key="a?prefix=", Body=b"data")
        for _ in range(3):
            s3.get_object(Bucket=s3_bucket.name, Key="a?prefix=")["Body"].read()
        for _ in range(2):
            s3.head_object(Bucket=s3_bucket.name, Key="a?prefix=")
        s3.list_objects_v2(Bucket=s3_bucket.name)
        seen = line.traffic()
        s3.close()
    assert (seen.requests, seen.gets, seen.heads, seen.lists) == (6, 3, 2, 1)


@pytest.mark.parametrize(
    ("request_line", "kind"),
    [
        (b"GET /b/key HTTP/1.1\r\n", "gets"),
        (b"GET /b/prefix=1 HTTP/1.1\r\n", "gets"),
        (b"GET /b?delimiter=/&list-type=2 HTTP/1.1\r\n", "lists"),
        (b"GET /b?prefix=a HTTP/1.1\r\n", "lists"),
        (b"HEAD /b/key HTTP/1.1\r\n", "heads"),
        (b"PUT /b/key HTTP/1.1\r\n", ""),
        (b"", ""),
    ],
)
def test_a_request_is_told_by_how_it_begins(request_line: bytes, kind: str) -> None:
    assert kind_of(request_line) == kind
    assert not kind or kind in Traffic._fields


@pytest.mark.parametrize("endpoint", ["https://s3.example.com", ""])
def test_a_line_needs_plain_http(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="cannot be slowed down"):
        SlowLine(endpoint, Slowness())
