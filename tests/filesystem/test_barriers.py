"""Waiting until files have reached a level, by name: fs.wait_durable and fs.flush."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.callbacks import Callback

from rig.engines import attached_client, small_config
from rig.faultproxy import FaultProxy
from rig.seaweedfs import Bucket
from tiercache.client import Client
from tiercache.filesystem import TierCacheFileSystem

DATA = os.urandom(100_000)


class Place:
    """A directory that an engine uploads to when it is asked only."""

    def __init__(self, client: Client, top: Path) -> None:
        self.client = client
        self.top = top
        self.fs = TierCacheFileSystem(target_protocol="file", cache_dir=str(client.cache_dir))

    def path(self, name: str) -> str:
        return str(self.top / name)

    def write(self, *names: str) -> None:
        for name in names:
            self.fs.pipe_file(self.path(name), DATA)

    def durable(self, name: str) -> str:
        return str(self.fs.info(self.path(name))["tiercache"]["durable"])

    def arrived(self) -> list[str]:
        return sorted(str(path.relative_to(self.top)) for path in self.top.rglob("*") if path.is_file())


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    (tmp_path / "origin").mkdir()
    settings = {"staging.upload_delay_s": "1h", "rules": [{"path": "*.sure", "ack": "origin"}]}
    with attached_client(small_config(tmp_path, **settings)) as client:
        client.status()  # starts it, with these settings
        yield Place(client, tmp_path / "origin")


@pytest.mark.parametrize("path", ["d/f", "d", "", ["d/f", "g"]])
def test_what_was_waited_for_is_at_the_origin(place: Place, path: Any) -> None:
    place.write("d/f", "g")
    assert place.arrived() == []
    place.fs.wait_durable([place.path(p) for p in path] if isinstance(path, list) else place.path(path))
    assert "d/f" in place.arrived()
    assert (place.top / "d/f").read_bytes() == DATA
    assert place.durable("d/f") == "origin"


def test_a_level_on_this_node_sends_nothing(place: Place) -> None:
    place.write("d/f", "g")
    place.fs.wait_durable(place.path("d"), level="memory")
    assert place.durable("d/f") == "memory"
    place.fs.wait_durable(place.path("d"), level="local")
    assert (place.durable("d/f"), place.durable("g")) == ("local", "memory")
    assert place.arrived() == []


def test_flush_brings_each_file_to_what_fsync_promises_of_it(place: Place) -> None:
    place.write("a", "a.sure", "b")
    place.fs.flush(place.path("b"))
    assert [place.durable(name) for name in ("a", "a.sure", "b")] == ["memory", "memory", "local"]
    place.fs.flush()
    assert place.durable("a") == "local"
    assert place.durable("a.sure") == "origin"
    assert "a.sure" in place.arrived()


@pytest.mark.parametrize("level", ["disk", "replica"])
def test_a_level_that_is_none_is_refused(place: Place, level: str) -> None:
    with pytest.raises(ValueError, match="there are: memory" if level == "disk" else "shared cluster"):
        place.fs.wait_durable(place.path(""), level=level)


def test_a_name_that_is_not_there_is_told(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.fs.wait_durable(place.path("missing"))


def test_a_callback_sees_the_bytes_arrive(place: Place) -> None:
    class Seen(Callback):
        def call(self, *args: Any, **kwargs: Any) -> None:
            values.append(self.value)

    values: list[int] = []

    place.write("a", "b")
    callback = Seen()
    place.fs.wait_durable(place.path(""), callback=callback)
    assert callback.value == (callback.size or 0)
    assert values == sorted(values)


def test_files_that_stay_on_this_node_never_reach_the_origin(place: Place, tmp_path: Path) -> None:
    fs = TierCacheFileSystem(target_protocol="file", cache_dir=str(place.client.cache_dir), profile="scratch")
    fs.pipe_file(place.path("f"), DATA)
    fs.wait_durable(place.path("f"), level="local")
    with pytest.raises(OSError, match="its profile scratch keeps it on this node") as caught:
        fs.wait_durable(place.path("f"), deadline=None)
    assert caught.value.errno == errno.EIO


@pytest.fixture
def store(tmp_path: Path, s3_bucket: Bucket, s3_proxy: FaultProxy) -> Iterator[tuple[TierCacheFileSystem, str]]:
    with attached_client(small_config(tmp_path, **{"upload.retry_base_s": 0.05})) as client:
        client.status()
        fs = TierCacheFileSystem(
            target_protocol="s3", target_options=s3_proxy.options(), cache_dir=str(client.cache_dir)
        )
        yield fs, f"{s3_bucket.name}/f"


def test_the_deadline_is_kept_and_says_what_is_left(
    store: tuple[TierCacheFileSystem, str], s3_proxy: FaultProxy
) -> None:
    fs, path = store
    s3_proxy.answer(503, "SlowDown", operation="PutObject")
    fs.pipe_file(path, DATA)
    with pytest.raises(TimeoutError, match=r"not durable at the level origin: .*/f: "):
        fs.wait_durable(path, deadline=0.2)
    s3_proxy.clear()
    fs.wait_durable(path)
    assert fs.info(path)["tiercache"]["durable"] == "origin"


def test_what_no_waiting_can_help_is_told_at_once(store: tuple[TierCacheFileSystem, str], s3_proxy: FaultProxy) -> None:
    fs, path = store
    s3_proxy.answer(403, "AccessDenied", operation="PutObject")
    fs.pipe_file(path, DATA)
    with pytest.raises(OSError, match="not durable") as caught:
        fs.wait_durable(path, deadline=None)
    assert caught.value.errno == errno.EIO
    assert fs.info(path)["tiercache"]["error"]


def test_what_is_written_meanwhile_is_waited_for_too(
    store: tuple[TierCacheFileSystem, str], s3_proxy: FaultProxy
) -> None:
    fs, path = store
    gate = s3_proxy.pause(operation="PutObject")
    fs.pipe_file(path, b"older")
    waiting = threading.Thread(target=fs.wait_durable, args=(path,))
    gate.wait_reached()
    waiting.start()
    fs.pipe_file(path, b"newer")
    gate.open()
    waiting.join(60)
    assert not waiting.is_alive()
    fs.wait_durable(path)
    assert fs.cat_file(path) == b"newer"
    assert fs.info(path)["tiercache"]["durable"] == "origin"


def test_what_was_written_with_other_options_of_the_same_url_is_waited_for(tmp_path: Path, s3_bucket: Bucket) -> None:
    """As a mount may have: else its dirty files would count as durable, or as not there."""
    s3_bucket.put("d/old", b"old")
    options = s3_bucket.server.options()
    other = options | {"endpoint_url": options["endpoint_url"].replace("127.0.0.1", "localhost")}
    with attached_client(small_config(tmp_path, **{"staging.upload_delay_s": "1h"})) as client:
        client.status()
        writing, waiting = (
            TierCacheFileSystem(target_protocol="s3", target_options=dict(each), cache_dir=str(client.cache_dir))
            for each in (other, options)
        )
        for number, path in enumerate(("d", "d/0", "d/2")):
            writing.pipe_file(f"{s3_bucket.name}/d/{number}", DATA)
            if path == "d/0":
                writing.pipe_file(f"{s3_bucket.name}/d/0", DATA[::-1])
            with pytest.raises(TimeoutError, match=f"/d/{number if path != 'd/0' else '[01]'}: "):
                waiting.wait_durable(f"{s3_bucket.name}/d", deadline=0)
            waiting.wait_durable(f"{s3_bucket.name}/{path}")
        assert (s3_bucket.get("d/0"), s3_bucket.get("d/2")) == (DATA[::-1], DATA)
        with pytest.raises(FileNotFoundError):
            waiting.wait_durable(f"{s3_bucket.name}/d/missing")
        waiting.wait_durable(f"{s3_bucket.name}/d")
