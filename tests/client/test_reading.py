"""What a client reads: always the bytes of one version, without the engine where it can."""

from __future__ import annotations

import io
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rig.engines import PATIENCE_S, HttpOrigin, attached_client, small_config
from rig.failing_disk import failing_disk
from tiercache.client import Client, RemoteOrigin, connection
from tiercache.errors import Absent, Broken, Changed, IsDirectory
from tiercache.model import BLOCK_SIZE_BYTES, Kind

FILES = ["empty", "tiny", "picture", "two", "many"]


@contextmanager
def counted_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operations that this process asks of engines meanwhile; notices are not among them."""
    asked: list[str] = []
    send = connection.Connection.send

    def spy(self: connection.Connection, op: str, arguments: dict[str, Any]) -> int:
        asked.append(op)
        return send(self, op, arguments)

    with monkeypatch.context() as patch:
        patch.setattr(connection.Connection, "send", spy)
        yield asked


@pytest.mark.parametrize("name", FILES)
def test_cold_and_warm_reads_are_the_origins_bytes(origin: RemoteOrigin, tree: Path, name: str) -> None:
    key = origin.root + b"/" + name.encode()
    expected = (tree / name).read_bytes()
    assert origin.cat(key) == expected
    assert origin.cat(key) == expected
    with origin.open_read(key) as reader:
        assert reader.size == len(expected)
        assert reader.pread(0, len(expected) + 10) == expected


def test_a_warm_read_asks_the_engine_nothing(client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = client.attach(str(tree), profile="dataset")
    keys = [origin.root + b"/" + name.encode() for name in FILES]
    for key in keys:
        origin.cat(key)
    with counted_requests(monkeypatch) as asked:
        for key in keys:
            origin.cat(key)
            with origin.open_read(key) as reader:
                reader.pread(0, reader.size)
            origin.info(key)
    assert asked == []


def test_a_cold_small_file_is_one_request(client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = client.attach(str(tree))
    with counted_requests(monkeypatch) as asked:
        origin.cat(origin.root + b"/picture")
    assert asked == ["open"]


def test_small_reads_of_a_cold_large_file_ask_once_a_block(
    client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = client.attach(str(tree))
    expected = (tree / "many").read_bytes()
    with counted_requests(monkeypatch) as asked, origin.open_read(origin.root + b"/many") as reader:
        got = b"".join(reader.pread(offset, 10_000) for offset in range(0, len(expected), 10_000))
    assert got == expected
    blocks = -(-len(expected) // BLOCK_SIZE_BYTES)
    assert len(asked) <= 1 + blocks


def test_an_old_entry_is_asked_for_again_and_one_request_is_enough(
    client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = client.attach(str(tree))
    key = origin.root + b"/picture"
    origin.cat(key)
    origin.invalidate(key)
    with counted_requests(monkeypatch) as asked:
        origin.cat(key)
    assert asked == ["open"]


@pytest.mark.parametrize("name", FILES)
def test_slices_are_those_of_python(origin: RemoteOrigin, tree: Path, name: str) -> None:
    """C08, C09: past the end, at the end, negative, empty."""
    data = (tree / name).read_bytes()
    key = origin.root + b"/" + name.encode()
    size = len(data)
    bounds = [None, 0, 1, -1, size - 1, size, size + 1, BLOCK_SIZE_BYTES - 1, BLOCK_SIZE_BYTES, BLOCK_SIZE_BYTES + 1]
    for start in bounds:
        for end in bounds:
            assert origin.cat(key, start, end) == data[start:end]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reads=st.lists(st.tuples(st.integers(0, 17_000_100), st.integers(0, 6_000_000)), min_size=1, max_size=8))
def test_any_reads_by_one_handle_are_slices(origin: RemoteOrigin, tree: Path, reads: list[tuple[int, int]]) -> None:
    data = (tree / "many").read_bytes()
    with origin.open_read(origin.root + b"/many") as reader:
        for offset, length in reads:
            assert reader.pread(offset, length) == data[offset : offset + length]
            buffer = bytearray(min(length, 100_000))
            got = reader.readinto(offset, buffer)
            assert bytes(buffer[:got]) == data[offset : offset + len(buffer)]


def test_a_whole_local_file_has_a_descriptor_for_mmap(origin: RemoteOrigin, tree: Path) -> None:
    with (
        origin.open_read(origin.root + b"/picture") as reader,
        mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        assert mapped[:] == (tree / "picture").read_bytes()


def test_a_large_cold_file_has_a_descriptor_once_it_is_whole(origin: RemoteOrigin, tree: Path) -> None:
    with origin.open_read(origin.root + b"/many") as reader:
        with pytest.raises(io.UnsupportedOperation):
            reader.fileno()
        assert reader.make_whole()
        assert os.pread(reader.fileno(), 1 << 26, 0) == (tree / "many").read_bytes()


def test_a_version_that_cannot_be_kept_is_streamed(tmp_path: Path, tree: Path) -> None:
    config = small_config(tmp_path, **{"nvme.capacity": "8MiB", "ram.capacity": "0"})
    data = (tree / "many").read_bytes()
    with attached_client(config) as client:
        origin = client.attach(str(tree))
        key = origin.root + b"/many"
        assert origin.cat(key) == data
        assert origin.cat(key, -100, None) == data[-100:]
        with origin.open_read(key) as reader:
            assert b"".join(reader.pread(at, 70_000) for at in range(0, len(data), 70_000)) == data
            assert not reader.make_whole()
            with pytest.raises(io.UnsupportedOperation):
                reader.fileno()


def test_checking_at_each_read_goes_through_the_engine(tmp_path: Path, tree: Path) -> None:
    with attached_client(small_config(tmp_path, verify="read")) as client:
        origin = client.attach(str(tree))
        for name in FILES:
            for _ in range(2):
                assert origin.cat(origin.root + b"/" + name.encode()) == (tree / name).read_bytes()


def test_a_damaged_cache_file_is_not_read(client: Client, tree: Path) -> None:
    """Whoever writes to a cache file changes its ctime: the hit path sees it and the engine fetches anew."""
    origin = client.attach(str(tree), profile="dataset")
    key = origin.root + b"/picture"
    data = origin.cat(key)
    found = origin.open_local(key)
    assert found is not None
    path = os.readlink(f"/proc/self/fd/{found.descriptor}")
    os.close(found.descriptor)
    with open(path, "r+b", buffering=0) as file:
        file.write(b"\0" * 100)
    assert origin.cat(key) == data


def test_a_reader_outlives_the_eviction_of_its_file(client: Client, tree: Path) -> None:
    origin = client.attach(str(tree), profile="dataset")
    key = origin.root + b"/two"
    data = origin.cat(key)
    with origin.open_read(key) as reader:
        os.unlink(os.readlink(f"/proc/self/fd/{reader.fileno()}"))
        assert reader.pread(0, len(data)) == data
    assert origin.cat(key) == data


def test_a_handle_reads_one_version_or_tells_that_it_is_gone(client: Client, tmp_path: Path) -> None:
    """C05: never a mix of old and new bytes."""
    path = tmp_path / "object"
    old, new = b"o" * (4 * BLOCK_SIZE_BYTES), b"n" * (4 * BLOCK_SIZE_BYTES)
    path.write_bytes(old)
    origin = client.attach(str(tmp_path))
    key = origin.root + b"/object"
    with origin.open_read(key) as reader:
        assert reader.pread(0, 100) == old[:100]
        replacement = tmp_path / "replacement"
        replacement.write_bytes(new)
        replacement.rename(path)
        with suppress(Changed):
            # Read-ahead may have fetched it before the change.
            assert reader.pread(3 * BLOCK_SIZE_BYTES, 100) == old[:100]
        assert reader.pread(0, 100) == old[:100]
    origin.invalidate(key)
    assert origin.cat(key) == new


def test_a_blocked_miss_of_one_thread_keeps_no_other_from_hits_and_misses(client: Client, http: HttpOrigin) -> None:
    http.objects.update(slow=b"s" * 1000, warm=b"w" * 1000, cold=b"c" * 1000)
    origin = client.attach(http.url, profile="dataset")
    assert origin.cat(b"warm") == http.objects["warm"]
    http.hold("slow")
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(origin.cat(b"slow")))
    thread.start()
    http.wait_until_asked("slow")
    assert origin.cat(b"warm") == http.objects["warm"]
    assert origin.cat(b"cold") == http.objects["cold"]
    assert not got
    http.release("slow")
    thread.join(PATIENCE_S)
    assert got == [http.objects["slow"]]


def test_many_threads_that_miss_one_object_cause_one_fetch(client: Client, http: HttpOrigin) -> None:
    http.objects["shared"] = b"x" * 100_000
    origin = client.attach(http.url, profile="dataset")
    http.hold("shared")
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(origin.cat(b"shared"))) for _ in range(12)]
    for thread in threads:
        thread.start()
    http.wait_until_asked("shared")
    http.release("shared")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert got == [http.objects["shared"]] * 12
    assert http.requests["shared"] == 1


def test_prefetched_files_are_hits_and_their_errors_are_told_by_the_read(
    client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = client.attach(str(tree), profile="dataset")
    small = [origin.root + b"/" + name for name in (b"empty", b"tiny", b"picture")]
    missing = origin.root + b"/nothing"
    with counted_requests(monkeypatch) as asked:
        origin.prefetch([*small, missing])
        for key in small:
            origin.cat(key)
        origin.prefetch(small)
    assert asked == ["prefetch"]
    with pytest.raises(Absent):
        origin.cat(missing)


def test_prefetch_waits_for_all_at_once_and_not_for_one_after_the_other(client: Client, http: HttpOrigin) -> None:
    names = [f"n{number}" for number in range(20)]
    http.objects.update({name: name.encode() for name in names})
    origin = client.attach(http.url, profile="dataset")
    for name in names:
        http.hold(name)
    thread = threading.Thread(target=origin.prefetch, args=([name.encode() for name in names],))
    thread.start()
    for name in names:
        http.wait_until_asked(name)
    for name in names:
        http.release(name)
    thread.join(PATIENCE_S)
    assert [origin.cat(name.encode()) for name in names] == [name.encode() for name in names]


def test_absence_and_directories_are_told_as_such(origin: RemoteOrigin, tree: Path) -> None:
    (tree / "sub").mkdir()
    with pytest.raises(Absent):
        origin.cat(origin.root + b"/nothing")
    with pytest.raises(Absent):
        origin.info(origin.root + b"/nothing")
    with pytest.raises(IsDirectory):
        origin.open_read(origin.root + b"/sub")
    assert not origin.exists(origin.root + b"/nothing")
    assert origin.info(origin.root + b"/sub").kind is Kind.DIRECTORY


def test_a_reader_that_is_closed_reads_no_more(origin: RemoteOrigin) -> None:
    reader = origin.open_read(origin.root + b"/tiny")
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.pread(0, 1)


def test_hits_reach_the_engines_figures(client: Client, tree: Path) -> None:
    origin = client.attach(str(tree), profile="dataset")
    key = origin.root + b"/picture"
    origin.cat(key)
    before = _hits(client)
    for _ in range(128):
        origin.cat(key)
    assert _hits(client) - before >= 64


def _hits(client: Client) -> float:
    return sum(tier["hits"] for tier in client.status()["tiers"].values())


def test_an_origin_that_fails_is_an_error_and_not_absence(client: Client, http: HttpOrigin) -> None:
    http.objects["there"] = b"x"
    origin = client.attach(http.url)
    http.close()
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which kind is the origin's affair, see tests/origins
        origin.exists(b"there")
    assert not isinstance(caught.value, Absent)
    assert not isinstance(caught.value, Broken)


def test_a_client_reads_past_a_cache_disk_that_fails(tmp_path: Path, tree: Path) -> None:
    config = small_config(tmp_path, **{"ram.capacity": 0, "staging.capacity": "1MiB"})
    config.cache_dir.mkdir()
    contents = {b"/file%d" % number: os.urandom(100_000) for number in range(8)}
    for name, data in contents.items():
        (tree / os.fsdecode(name[1:])).write_bytes(data)
    with failing_disk(config.cache_dir / "nvme", 64) as disk, attached_client(config) as client:
        origin = client.attach(str(tree))
        for name in contents:
            origin.cat(origin.root + name)
        assert client.status()["tiers"]["nvme"]["resident"] == len(contents)
        disk.fail()
        for name, data in contents.items():
            assert origin.cat(origin.root + name) == data
        assert client.status()["tiers"]["nvme"]["state"] in ("out", "probing")
        for name, data in contents.items():
            assert origin.cat(origin.root + name) == data
