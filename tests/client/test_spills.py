"""Files that do not fit in staging: they go to the origin while they are written, and show themselves at close."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.cache_rig import bytes_of
from rig.engines import PATIENCE_S, attached_client, small_config
from rig.faultproxy import FaultProxy
from rig.s3_limits import ScaledLimits, ScaledStore
from rig.seaweedfs import Bucket
from rig.spilling import CAPACITY, KIB, MIB, PART, SETTINGS, SIZE, killed_in_the_middle, write_in_pieces
from tiercache.client import Client, RemoteOrigin
from tiercache.engine.lock import owner_pid
from tiercache.errors import Absent, Changed, NoSpace, TierCacheError
from tiercache.filesystem import TierCacheFileSystem

STORE = ScaledLimits(max_parts=100, min_part_bytes=PART, single_put_bytes=MIB, single_copy_bytes=MIB)
LIMITS = {"max_parts": 100, "min_part": PART, "max_part": "1MiB", "single_copy": "1MiB"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An engine with little staging."""
    with attached_client(small_config(tmp_path_factory.mktemp("engine"), **SETTINGS)) as client:
        yield client


class Ground:
    """A store behind the proxy, with S3's limits scaled down, and an engine with little staging."""

    def __init__(self, client: Client, bucket: Bucket, proxy: FaultProxy) -> None:
        self.client = client
        self.bucket = bucket
        self.proxy = proxy
        self.store: ScaledStore = proxy.limit(STORE)
        self.options = proxy.options() | {"limits": LIMITS}

    def attach(self, profile: str = "general") -> RemoteOrigin:
        return self.client.attach(self.bucket.url, options=self.options, profile=profile)

    def staged(self) -> list[str]:
        return [name for name in os.listdir(self.client.cache_dir / "staging") if name.isdigit()]

    def clean_up(self) -> None:
        """Wait until the engine has noticed that a writer is gone, and nothing is left of what it wrote."""
        while self.staged() or self.store.unfinished:
            self.client.drain(PATIENCE_S)
        self.client.drain(PATIENCE_S)

    def figure(self, name: str) -> float:
        found = self.client.status()["metrics"][name]
        assert isinstance(found, int | float)
        return found


@pytest.fixture
def ground(client: Client, s3_bucket: Bucket, s3_proxy: FaultProxy) -> Ground:
    return Ground(client, s3_bucket, s3_proxy)


@pytest.fixture
def origin(ground: Ground) -> RemoteOrigin:
    return ground.attach()


@pytest.mark.parametrize("piece_bytes", [50_000, SIZE], ids=["pieces", "at once"])
def test_a_file_larger_than_staging_arrives_whole_and_shows_itself_at_close(
    ground: Ground, origin: RemoteOrigin, piece_bytes: int
) -> None:
    data = bytes_of("large", SIZE)
    before = ground.figure("spilled_bytes_total")
    with origin.create(b"large") as writer:
        write_in_pieces(writer, data, piece_bytes)
        assert writer.size == SIZE
        assert ground.figure("staged_bytes") <= CAPACITY
        assert os.stat(writer.path).st_blocks * 512 <= CAPACITY
        with pytest.raises(Absent):
            origin.info(b"large")
        assert ground.bucket.keys() == []
    # It is there when close returns, and nowhere else.
    assert ground.bucket.get("large") == data
    assert ground.figure("spilled_bytes_total") - before == SIZE
    assert ground.figure("spills_in_flight") == 0
    assert ground.figure("staged_bytes") == 0
    assert origin.info(b"large").size_bytes == SIZE
    assert origin.state(b"large") == "clean"
    assert origin.cat(b"large") == data
    assert ground.staged() == []
    assert ground.store.unfinished == []


def test_the_limits_of_s3_itself_hold(s3_bucket: Bucket, s3_server: Any, tmp_path: Path) -> None:
    """64 MiB through 16 MiB of staging, in parts of 5 MiB."""
    data = bytes_of("checkpoint", 64 * MIB)
    with attached_client(small_config(tmp_path, **{"staging.capacity": "16MiB"})) as client:
        origin = client.attach(s3_bucket.url, options=dict(s3_server.options()))
        with origin.create(b"checkpoint") as writer:
            write_in_pieces(writer, data, 8 * MIB)
        assert s3_bucket.get("checkpoint") == data
    assert s3_bucket.unfinished_uploads() == []


def test_it_replaces_an_older_file_and_what_is_staged_of_it(ground: Ground, origin: RemoteOrigin) -> None:
    """The older bytes are never seen again, whether they had arrived or were on their way."""
    data = bytes_of("new", SIZE)
    writer = origin.create(b"a")
    write_in_pieces(writer, data)
    gate = ground.proxy.pause(operation="PutObject", key=b"a")
    with origin.create(b"a") as older:
        older.write(b"older")
    gate.wait_reached()
    assert origin.cat(b"a") == b"older"
    closing = threading.Thread(target=writer.close)
    closing.start()
    gate.open()
    closing.join(PATIENCE_S)
    assert origin.cat(b"a") == data
    assert not ground.client.drain(PATIENCE_S)["left"]
    assert origin.cat(b"a") == data
    assert ground.bucket.get("a") == data
    assert ground.store.unfinished == []


def test_an_append_goes_up_over_what_it_was_made_from_and_over_nothing_else(
    ground: Ground, origin: RemoteOrigin
) -> None:
    base, more = bytes_of("base", 300 * KIB), bytes_of("more", SIZE)
    ground.bucket.put("a", base)
    with origin.create(b"a", keep=True) as writer:
        writer.seek(0, os.SEEK_END)
        write_in_pieces(writer, more)
    assert ground.bucket.get("a") == base + more

    ground.bucket.put("b", base)
    writer = origin.create(b"b", keep=True)
    writer.seek(0, os.SEEK_END)
    write_in_pieces(writer, more)
    ground.bucket.put("b", b"somebody else's")
    with pytest.raises(Changed):
        writer.close()
    assert ground.bucket.get("b") == b"somebody else's"
    ground.clean_up()


def test_what_went_to_the_origin_is_neither_read_as_zeros_nor_changed(ground: Ground, origin: RemoteOrigin) -> None:
    writer = origin.create(b"a")
    write_in_pieces(writer, bytes_of("a", SIZE))
    with pytest.raises(NoSpace, match="does not fit in staging"):
        writer.pread(0, 1)
    writer.seek(0)
    with pytest.raises(NoSpace, match="went to the origin"):
        writer.write(b"x")
    with pytest.raises(NoSpace):
        writer.readinto(bytearray(1))
    with pytest.raises(NoSpace):
        writer.truncate(0)
    descriptor = writer.fileno()
    os.fsync(descriptor)
    for access in (lambda: os.pread(descriptor, 1, 0), lambda: os.pwrite(descriptor, b"x", 0)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            access()
    writer.seek(0, os.SEEK_END)
    writer.write(b"end")
    writer.sync()
    writer.close()
    assert ground.bucket.get("a") == bytes_of("a", SIZE) + b"end"


def test_who_has_the_descriptor_finds_all_bytes_so_that_there_is_no_room(ground: Ground, origin: RemoteOrigin) -> None:
    writer = origin.create(b"a")
    writer.fileno()
    with pytest.raises(NoSpace, match="staging is full"):
        write_in_pieces(writer, bytes_of("a", SIZE))
    writer.discard()
    assert ground.proxy.count("CreateMultipartUpload") == 0


def test_a_discarded_one_leaves_no_parts_and_the_old_content(ground: Ground, origin: RemoteOrigin) -> None:
    ground.bucket.put("a", b"old")
    writer = origin.create(b"a")
    write_in_pieces(writer, bytes_of("a", SIZE))
    assert ground.store.unfinished
    writer.discard()
    assert not ground.client.drain(PATIENCE_S)["left"]
    assert ground.store.unfinished == []
    assert ground.staged() == []
    assert origin.cat(b"a") == b"old"


def test_a_writer_that_is_killed_leaves_no_parts_and_the_old_content(ground: Ground, origin: RemoteOrigin) -> None:
    ground.bucket.put("a", b"old")
    killed_in_the_middle(origin, b"a")
    ground.clean_up()
    assert origin.cat(b"a") == b"old"
    assert ground.figure("staged_bytes") == 0


def test_an_engine_that_is_killed_leaves_parts_that_the_next_one_aborts(
    s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    s3_bucket.put("a", b"old")
    with attached_client(small_config(tmp_path, **SETTINGS)) as client:
        ground = Ground(client, s3_bucket, s3_proxy)
        writer = ground.attach().create(b"a")
        write_in_pieces(writer, bytes_of("a", SIZE))
        assert ground.store.unfinished
        pid = owner_pid(client.cache_dir)
        assert pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TierCacheError):
            writer.close()
        again = ground.attach()
        assert not client.drain(PATIENCE_S)["left"]
        assert again.cat(b"a") == b"old"
        assert ground.store.unfinished == []
        assert ground.staged() == []


def test_an_origin_that_fails_for_a_while_is_waited_for(ground: Ground, origin: RemoteOrigin) -> None:
    data = bytes_of("a", SIZE)
    ground.proxy.script([500] * 20, operation="UploadPart")
    with origin.create(b"a") as writer:
        write_in_pieces(writer, data)
    assert ground.bucket.get("a") == data


def test_a_completion_whose_answer_is_lost_has_happened(ground: Ground, origin: RemoteOrigin) -> None:
    data = bytes_of("a", SIZE)
    ground.proxy.lose_answer(operation="CompleteMultipartUpload", times=1)
    with origin.create(b"a") as writer:
        write_in_pieces(writer, data)
    assert origin.cat(b"a") == data


def test_parts_that_others_abort_are_told_as_an_error(ground: Ground, origin: RemoteOrigin) -> None:
    writer = origin.create(b"a")
    write_in_pieces(writer, bytes_of("a", SIZE))
    ground.store.forget()
    with pytest.raises(TierCacheError, match="gone"):
        writer.close()
    ground.clean_up()
    assert ground.bucket.keys() == []


def test_one_whose_directory_is_moved_meanwhile_is_told_and_leaves_nothing(
    ground: Ground, origin: RemoteOrigin
) -> None:
    ground.bucket.put("old/other", b"other")
    writer = origin.create(b"old/a")
    write_in_pieces(writer, bytes_of("a", SIZE))
    origin.rename(b"old", b"new")
    with pytest.raises(Changed, match="renamed while it was written"):
        writer.close()
    ground.clean_up()
    assert ground.bucket.keys() == ["new/other"]


def test_files_that_are_written_together_share_the_room(ground: Ground, origin: RemoteOrigin) -> None:
    names = [b"a", b"b", b"c"]
    writers = [origin.create(name) for name in names]
    for offset in range(0, SIZE, 50_000):
        for name, writer in zip(names, writers, strict=True):
            writer.write(bytes_of(name.decode(), SIZE)[offset : offset + 50_000])
    for writer in writers:
        writer.close()
    for name in names:
        assert ground.bucket.get(name.decode()) == bytes_of(name.decode(), SIZE)


def test_what_stays_on_this_node_is_not_sent_for_want_of_room(ground: Ground) -> None:
    writer = ground.attach("scratch").create(b"a")
    with pytest.raises(NoSpace, match="staging is full"):
        write_in_pieces(writer, bytes_of("a", SIZE))
    writer.discard()
    assert ground.proxy.count("CreateMultipartUpload") == 0


def test_a_file_of_fsspec_is_written_closed_and_read_like_any_other(ground: Ground) -> None:
    data = bytes_of("a", SIZE)
    directory = ground.client.cache_dir
    fs = TierCacheFileSystem(
        target_protocol="s3",
        target_options=ground.options,
        cache_dir=str(directory),
        settings={**SETTINGS, "ram.directory": str(directory.parent / "ram")},
        skip_instance_cache=True,
    )
    path = f"{ground.bucket.name}/a"
    with fs.open(path, "wb") as file:
        file.write(data[:-1])
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        with pytest.raises(OSError, match="does not fit in staging") as raised:
            file.write(b"x" * MIB)
        assert raised.value.errno == errno.ENOSPC
        file.seek(len(data) - 1)
        file.write(data[-1:])
    assert fs.cat_file(path) == data
    assert ground.bucket.get("a") == data
