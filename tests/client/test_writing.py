"""What a client writes: straight into staging, invisible until it is published, and gone without a trace otherwise."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rig.engines import PATIENCE_S, attached_client, small_config
from tiercache import ipc
from tiercache.client import Client, RemoteOrigin
from tiercache.errors import Absent, Broken, Exists, IsDirectory, NoSpace

MIB = 1 << 20


def _staged_names(client: Client) -> list[str]:
    return sorted(name for name in os.listdir(client.cache_dir / "staging") if name.isdigit())


def _drained(client: Client) -> None:
    answer = client.drain(PATIENCE_S)
    assert not answer["left"]


def test_a_published_file_is_read_at_once_and_reaches_the_origin(
    client: Client, origin: RemoteOrigin, tree: Path
) -> None:
    key = origin.root + b"/new"
    with origin.create(key) as writer:
        assert writer.write(b"hello ") == 6
        assert writer.write(bytearray(b"world")) == 5
        with pytest.raises(Absent):
            origin.info(key)
    assert writer.entry is not None
    assert origin.cat(key) == b"hello world"
    assert origin.info(key).size_bytes == 11
    _drained(client)
    assert (tree / "new").read_bytes() == b"hello world"
    assert origin.cat(key) == b"hello world"
    assert origin.state(key) == "clean"


def test_bytes_go_to_the_staging_directory_by_plain_system_calls(origin: RemoteOrigin, client: Client) -> None:
    with origin.create(origin.root + b"/direct") as writer:
        assert Path(writer.path).parent == client.cache_dir / "staging"
        writer.write(b"12345")
        os.pwrite(writer.fileno(), b"67890", 5)
        assert Path(writer.path).read_bytes() == b"1234567890"
        assert writer.tell() == 5
        assert writer.size == 10
        writer.discard()


def test_seek_truncate_and_sparse_writes_end_as_posix_says(client: Client, origin: RemoteOrigin, tree: Path) -> None:
    key = origin.root + b"/odd"
    with origin.create(key) as writer:
        writer.write(b"abcdef")
        writer.seek(2)
        writer.write(b"XY")
        writer.seek(10)
        writer.write(b"end")
        writer.truncate(12)
        writer.truncate(15)
    expected = b"abXYef\0\0\0\0en\0\0\0"
    assert origin.cat(key) == expected
    _drained(client)
    assert (tree / "odd").read_bytes() == expected


@pytest.mark.parametrize("dirty", [False, True], ids=["clean", "dirty"])
def test_keep_starts_with_the_present_bytes(client: Client, origin: RemoteOrigin, tree: Path, dirty: bool) -> None:
    key = origin.root + b"/picture"
    data = (tree / "picture").read_bytes()
    if dirty:
        data = b"newer"
        with origin.create(key) as writer:
            writer.write(data)
    with origin.create(key, keep=True) as writer:
        assert writer.size == len(data)
        writer.seek(0, os.SEEK_END)
        writer.write(b"more")
    assert origin.cat(key) == data + b"more"
    _drained(client)
    assert (tree / "picture").read_bytes() == data + b"more"


def test_exclusive_refuses_a_name_that_is_taken_at_open_or_at_close(origin: RemoteOrigin) -> None:
    with pytest.raises(Exists):
        origin.create(origin.root + b"/picture", exclusive=True)
    late = origin.create(origin.root + b"/raced", exclusive=True)
    with origin.create(origin.root + b"/raced") as winner:
        winner.write(b"first")
    late.write(b"second")
    with pytest.raises(Exists):
        late.close()
    assert origin.cat(origin.root + b"/raced") == b"first"


def test_a_directory_cannot_be_written(origin: RemoteOrigin) -> None:
    origin.mkdir(origin.root + b"/sub")
    with pytest.raises(IsDirectory):
        origin.create(origin.root + b"/sub")


def test_an_exception_leaves_the_old_content(client: Client, origin: RemoteOrigin, tree: Path) -> None:
    """C16."""
    before = (tree / "tiny").read_bytes()

    def write_half() -> None:
        with origin.create(origin.root + b"/tiny") as writer:
            writer.write(b"half of something")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert origin.cat(origin.root + b"/tiny") == before
    assert _staged_names(client) == []


def test_a_forgotten_writer_leaves_the_old_content(client: Client, origin: RemoteOrigin, tree: Path) -> None:
    """C16: never closed, garbage collected."""
    writer = origin.create(origin.root + b"/tiny")
    writer.write(b"half")
    path = Path(writer.path)
    del writer
    gc.collect()
    while path.exists():
        client.status()
    assert origin.cat(origin.root + b"/tiny") == (tree / "tiny").read_bytes()


def test_a_discarded_writer_writes_no_more(origin: RemoteOrigin) -> None:
    writer = origin.create(origin.root + b"/gone")
    writer.discard()
    writer.discard()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"x")
    with pytest.raises(Absent):
        origin.cat(origin.root + b"/gone")


def test_buffered_file_objects_work_on_top(origin: RemoteOrigin) -> None:
    key = origin.root + b"/buffered"
    writer = origin.create(key)
    raw = writer.raw()
    file = io.BufferedRandom(raw)
    file.write(b"x" * 300_000)
    file.seek(10)
    assert file.read(5) == b"xxxxx"
    file.seek(0)
    file.write(b"start")
    file.close()
    assert raw.closed
    writer.close()
    assert origin.cat(key) == b"start" + b"x" * 299_995


KILLED = """
import sys, os
from pathlib import Path
from tiercache.client import Client
from tiercache.config import load_config
from rig.engines import small_config
client = Client(small_config(Path(sys.argv[1])))
origin = client.attach(sys.argv[2])
writer = origin.create(origin.root + b"/unfinished")
writer.write(b"x" * 1000000)
writer.sync()
print(writer.path, flush=True)
sys.stdin.read()
"""


def test_a_client_that_is_killed_leaves_nothing(tmp_path: Path, tree: Path) -> None:
    with attached_client(small_config(tmp_path)) as client:
        origin = client.attach(str(tree))
        before = sorted(os.listdir(tree))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            assert process.stdout is not None
            path = Path(process.stdout.readline().strip())
            assert path.stat().st_size == 1_000_000
            assert client.status()["dirty"]["files"] <= 1
            process.send_signal(signal.SIGKILL)
            process.communicate()
        while path.exists():
            client.status()
        assert _staged_names(client) == []
        _drained(client)
        assert sorted(os.listdir(tree)) == before
        assert not origin.exists(origin.root + b"/unfinished")
        assert client.status()["dirty"]["files"] == 0


def test_writing_more_than_the_budget_waits_for_uploads_and_all_of_it_arrives(tmp_path: Path, tree: Path) -> None:
    """Back-pressure: sixteen files of 4 MiB through a budget of 16 MiB."""
    with attached_client(small_config(tmp_path, **{"staging.capacity": "16MiB"})) as client:
        origin = client.attach(str(tree))
        for number in range(16):
            with origin.create(origin.root + b"/part%d" % number) as writer:
                for _ in range(4):
                    writer.write(bytes([number]) * MIB)
        _drained(client)
        for number in range(16):
            assert (tree / f"part{number}").read_bytes() == bytes([number]) * (4 * MIB)


def test_a_file_over_the_whole_budget_that_goes_nowhere_is_refused_and_leaves_nothing(
    tmp_path: Path, tree: Path
) -> None:
    with attached_client(small_config(tmp_path, **{"staging.capacity": "4MiB"})) as client:
        origin = client.attach(str(tree), profile="scratch")  # else it would spill

        def write_too_much() -> None:
            with origin.create(origin.root + b"/huge") as writer:
                for _ in range(10):
                    writer.write(b"x" * MIB)

        with pytest.raises(NoSpace):
            write_too_much()
        assert _staged_names(client) == []
        with origin.create(origin.root + b"/fits") as writer:
            writer.write(b"x" * MIB)
        assert origin.cat(origin.root + b"/fits") == b"x" * MIB


def test_many_small_writes_ask_for_room_seldom(origin: RemoteOrigin, monkeypatch: pytest.MonkeyPatch) -> None:
    with origin.create(origin.root + b"/stream") as writer:
        asked: list[int] = []
        request = type(writer)._request

        def spy(self: object, op: str, **arguments: int) -> object:
            asked.append(arguments.get("length", 0))
            return request(writer, op, **arguments)

        monkeypatch.setattr(type(writer), "_request", spy)
        for _ in range(500):
            writer.write(b"x" * 10_000)
    assert len(asked) <= 5_000_000 // (2 * MIB) + 2


def test_a_write_larger_than_a_grant_is_taken_whole(tmp_path: Path, tree: Path) -> None:
    with attached_client(small_config(tmp_path, **{"staging.capacity": "512MiB"})) as client:
        origin = client.attach(str(tree))
        data = os.urandom(MIB) * (ipc.STAGING_GRANT_BYTES // MIB + 2)
        with origin.create(origin.root + b"/large") as writer:
            assert writer.write(data) == len(data)
        assert origin.cat(origin.root + b"/large") == data


def test_the_budget_is_given_back(client: Client, origin: RemoteOrigin) -> None:
    _drained(client)
    for end in ("close", "discard"):
        writer = origin.create(origin.root + b"/budget")
        writer.write(b"x" * MIB)
        getattr(writer, end)()
    _drained(client)
    assert client.status()["metrics"]["staged_bytes"] == 0


def test_threads_write_their_own_files_at_once(client: Client, origin: RemoteOrigin, tree: Path) -> None:
    def write(number: int) -> None:
        with origin.create(origin.root + b"/thread%d" % number) as writer:
            writer.write(b"%d" % number * 1000)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    _drained(client)
    for number in range(8):
        assert (tree / f"thread{number}").read_bytes() == b"%d" % number * 1000


def test_a_failed_sync_is_never_turned_into_success(
    client: Client, origin: RemoteOrigin, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = origin.create(origin.root + b"/tiny")
    writer.write(b"suspect")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(Broken, match="cannot sync"):
            writer.sync()
    with pytest.raises(Broken, match="cannot be trusted"):
        writer.close()
    assert origin.cat(origin.root + b"/tiny") == (tree / "tiny").read_bytes()


def test_names_are_changed_through_the_engine(client: Client, origin: RemoteOrigin, tree: Path) -> None:
    root = origin.root
    origin.mkdir(root + b"/d")
    origin.copy(root + b"/picture", root + b"/d/copy")
    origin.rename(root + b"/d/copy", root + b"/d/moved")
    assert [name for name, _ in origin.list(root + b"/d")] == [b"moved"]
    assert origin.cat(root + b"/d/moved") == (tree / "picture").read_bytes()
    assert origin.setattr(root + b"/d/moved", mode=0o600).mode == 0o600
    assert {key for key, _ in origin.walk(root + b"/d")} == {root + b"/d/moved"}
    origin.unlink(root + b"/d/moved")
    assert origin.list(root + b"/d") == []
    origin.rmdir(root + b"/d")
    assert not origin.exists(root + b"/d")
    assert not (tree / "d").exists()
