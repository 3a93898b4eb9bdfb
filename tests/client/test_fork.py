"""C21: forked and spawned children, with threads about, use the client as if it were their own; the parent goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.engines import PATIENCE_S, Ended, read_and_write, small_config, stop_engine
from tiercache import ipc
from tiercache.client import Client, RemoteOrigin
from tiercache.config import Config
from tiercache.errors import Absent, InvalidArgument

WATCHDOG_S = 20


def _in_child(work: Callable[[], object]) -> int:
    """Exit status of a forked child that does ``work``; 0 if it returned. A child that hangs is killed by its alarm."""
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(WATCHDOG_S)
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _use(origin: RemoteOrigin, tree: Path, name: str) -> None:
    """A listing, a hit, a miss, an error, a write."""
    root = origin.root
    assert (b"picture" in [found for found, _ in origin.list(root)]) is True
    for file in ("picture", "two"):
        assert origin.cat(root + b"/" + file.encode()) == (tree / file).read_bytes()
    with pytest.raises(Absent):
        origin.cat(root + b"/nothing")
    with origin.create(root + b"/" + name.encode()) as writer:
        writer.write(name.encode() * 1000)
    assert origin.cat(root + b"/" + name.encode()) == name.encode() * 1000


def test_a_forked_child_lists_reads_and_writes_and_so_does_its_parent(client: Client, tree: Path) -> None:
    origin = client.attach(str(tree))
    _use(origin, tree, "before")
    assert _in_child(lambda: _use(origin, tree, "child")) == 0
    _use(origin, tree, "after")
    assert origin.cat(origin.root + b"/child") == b"child" * 1000


def test_a_grandchild_works_too(client: Client, tree: Path) -> None:
    origin = client.attach(str(tree))
    assert _in_child(lambda: _in_child(lambda: _use(origin, tree, "grandchild")) and os._exit(3)) == 0
    assert origin.exists(origin.root + b"/grandchild")


def test_forks_while_other_threads_are_in_the_middle_of_requests(client: Client, tree: Path) -> None:
    origin = client.attach(str(tree))
    stop = threading.Event()
    failures: list[BaseException] = []

    def busy() -> None:
        try:
            while not stop.is_set():
                origin.request("lookup", key=origin.root)
                origin.cat(origin.root + b"/picture")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = [_in_child(lambda: _use(origin, tree, "busy")) for _ in range(5)]
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert codes == [0] * 5
    assert failures == []


def test_a_client_that_was_never_used_is_first_used_in_children(client: Client, tree: Path) -> None:
    fresh = Client(small_config(client.cache_dir.parent))
    for name in ("first", "second"):
        assert _in_child(lambda name=name: _use(fresh.attach(str(tree)), tree, name)) == 0
    _use(fresh.attach(str(tree)), tree, "third")
    fresh.close()


def test_a_child_uses_no_descriptor_of_its_parent(client: Client, tree: Path) -> None:
    """Else two processes would read each other's answers, and the engine would not see the parent's end."""
    origin = client.attach(str(tree))
    origin.list(origin.root)
    inherited = _sockets()
    assert inherited

    def work() -> None:
        assert not inherited & _sockets()
        origin.request("lookup", key=origin.root)
        assert not inherited & _sockets()

    assert _in_child(work) == 0
    assert inherited <= _sockets()


def _sockets() -> set[str]:
    """The connections to an engine; what other libraries keep in this process is not ours to close."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:") and _leads_to_engine(int(name)):
                found.add(target)
        except OSError:
            continue
    return found


def _leads_to_engine(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        return sock.family == socket.AF_UNIX and str(sock.getpeername()).endswith(ipc.SOCKET_NAME)


def test_a_reader_goes_on_in_both_processes(client: Client, tree: Path) -> None:
    origin = client.attach(str(tree))
    data = (tree / "many").read_bytes()
    with origin.open_read(origin.root + b"/many") as reader:
        assert reader.pread(0, 1000) == data[:1000]

        def work() -> None:
            assert reader.pread(5 << 20, 1000) == data[5 << 20 : (5 << 20) + 1000]
            reader.close()

        assert _in_child(work) == 0
        assert reader.pread(9 << 20, 1000) == data[9 << 20 : (9 << 20) + 1000]


def test_a_writer_belongs_to_the_process_that_made_it(client: Client, tree: Path) -> None:
    """C18: the child closes its copy, the parent writes on; nothing is published or discarded by the child."""
    origin = client.attach(str(tree))
    key = origin.root + b"/shared"
    writer = origin.create(key)
    writer.write(b"parent ")

    def work() -> None:
        with pytest.raises(InvalidArgument, match="before the fork"):
            writer.write(b"child ")
        writer.close()
        writer.discard()

    assert _in_child(work) == 0
    assert not origin.exists(key)
    writer.write(b"again")
    writer.close()
    assert origin.cat(key) == b"parent again"


def test_a_dead_parent_leaves_nothing_although_its_child_lives(config: Config, tree: Path) -> None:
    """The child closes its copies of the parent's connections, which are the leases of unfinished files."""
    client = Client(config)
    origin = client.attach(str(tree))
    ours, theirs = multiprocessing.Pipe()

    def parent() -> None:
        writer = origin.create(origin.root + b"/unfinished")
        writer.write(b"x" * 1000)
        child = os.fork()
        if not child:
            signal.alarm(WATCHDOG_S)
            theirs.send((os.getpid(), writer.path))
            signal.pause()
        os._exit(0)

    assert _in_child(parent) == 0
    child, path = ours.recv()
    while Path(path).exists():
        client.status()
    ended = Ended(child)
    os.kill(child, signal.SIGKILL)
    assert ended.wait()
    client.close()
    stop_engine(config)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method(client: Client, tree: Path, method: str) -> None:
    origin = client.attach(str(tree))
    origin.list(origin.root)
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        results = [
            pool.apply_async(read_and_write, (str(client.cache_dir.parent), str(tree), f"{method}{number}"))
            for number in range(4)
        ]
        assert [result.get(timeout=60) for result in results] == [(tree / "picture").read_bytes()] * 4
    for number in range(4):
        assert origin.cat(origin.root + f"/{method}{number}".encode()) == f"{method}{number}".encode()
