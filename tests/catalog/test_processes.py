"""Readers in other processes and threads: forked, spawned, killed, and left behind by a new engine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tiercache.catalog import Catalog, CatalogReader, environment
from tiercache.errors import EngineUnreachable
from tiercache.model import Entry, Kind, OriginId

FILE = Entry(Kind.FILE, 5, etag='"e"')


def in_fork(check: Callable[[], bool]) -> int:
    """Exit status of a forked child: 0 if ``check`` holds there, 1 if not, 2 if it raises."""
    pid = os.fork()
    if not pid:
        status = 2
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_new_process(source: str, *args: str) -> subprocess.Popen[str]:
    """A program that can say a line, and ends or is killed when its input does."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", source, *args]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[2])


def test_a_forked_child_reads_with_the_parents_reader(catalog: Catalog, directory: Path, origin: OriginId) -> None:
    reader = CatalogReader(directory)
    catalog.put_entry(origin, b"k", FILE)
    inherited = reader._environment.lmdb
    assert reader.resolve(origin, b"k") == (FILE, None)

    def check() -> bool:
        fresh = reader.resolve(origin, b"k") == (FILE, None) and reader._environment.lmdb is not inherited
        return fresh and in_fork(lambda: reader.entry(origin, b"k") == FILE) == 0

    assert in_fork(check) == 0
    assert reader.resolve(origin, b"k") == (FILE, None)
    reader.close()


def test_a_forked_child_sees_what_the_parent_writes_later(catalog: Catalog, directory: Path, origin: OriginId) -> None:
    ready, go = os.pipe(), os.pipe()
    reader = CatalogReader(directory)

    def check() -> bool:
        first = reader.entry(origin, b"later")
        os.write(ready[1], b"r")
        os.read(go[0], 1)
        return first is None and reader.entry(origin, b"later") == FILE

    pid = os.fork()
    if not pid:
        status = 2
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    os.read(ready[0], 1)
    catalog.put_entry(origin, b"later", FILE)
    os.write(go[1], b"g")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for descriptor in (*ready, *go):
        os.close(descriptor)
    reader.close()


def test_the_engines_catalog_can_be_read_but_not_written_in_a_fork(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"k", FILE)

    def check() -> bool:
        try:
            catalog.put_entry(origin, b"k", FILE._replace(inode=6))
        except EngineUnreachable:
            pass
        else:
            return False
        seen = catalog.entry(origin, b"k") == FILE
        catalog.close()
        return seen

    assert in_fork(check) == 0
    catalog.put_entry(origin, b"k", FILE._replace(inode=7))
    assert catalog.entry(origin, b"k") == FILE._replace(inode=7)


def test_a_fork_in_the_middle_of_a_batch_hurts_neither_side(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"k", FILE)
    with catalog.batch():
        catalog.put_entry(origin, b"k", FILE._replace(inode=6))
        assert in_fork(lambda: catalog.entry(origin, b"k") == FILE) == 0
    assert catalog.entry(origin, b"k") == FILE._replace(inode=6)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_read_at_the_same_time(
    catalog: Catalog, directory: Path, origin: OriginId, method: str
) -> None:
    catalog.put_entry(origin, b"k", FILE)
    reader = CatalogReader(directory)
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap(CatalogReader.resolve, [(reader, origin, b"k")] * 6)
    assert found == [(FILE, None)] * 6
    reader.close()


def test_readers_and_the_engine_of_one_process_share_one_environment(directory: Path, origin: OriginId) -> None:
    Catalog(directory).close()
    reader = CatalogReader(directory)
    assert reader.entry(origin, b"k") is None
    catalog = Catalog(directory)  # the engine starts in a process that reads already
    catalog.put_entry(origin, b"k", FILE)
    assert reader.resolve(origin, b"k") == (FILE, None)
    other = CatalogReader(directory)
    assert other._environment is reader._environment
    catalog.close()
    assert reader.entry(origin, b"k") == FILE
    reader.close()
    assert other.entry(origin, b"k") == FILE
    other.close()
    assert environment.identity_of(directory) not in environment._process.environments


def test_threads_read_consistent_snapshots_while_the_engine_writes(
    catalog: Catalog, directory: Path, origin: OriginId
) -> None:
    reader = CatalogReader(directory)
    names = [b"%d" % number for number in range(20)]
    torn: list[object] = []
    stop = threading.Event()

    def write_all(generation: int) -> None:
        with catalog.batch():
            for number, name in enumerate(names, 1):
                catalog.put_entry(origin, b"d/" + name, Entry(Kind.FILE, number, size_bytes=generation))

    def read() -> None:
        while not stop.is_set():
            sizes = {entry.size_bytes for _, entry in reader.children(origin, b"d")}
            if len(sizes) != 1:
                torn.append(sizes)

    write_all(0)
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for generation in range(1, 150):
        write_all(generation)
    stop.set()
    for thread in threads:
        thread.join()
    assert torn == []
    reader.close()


HOLD_A_READER = """
import os, sys
from tiercache.catalog import CatalogReader
reader = CatalogReader(sys.argv[1])
transaction = reader._environment.lmdb.begin()
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_slot_of_a_killed_reader_is_freed(catalog: Catalog, directory: Path) -> None:
    child = in_new_process(HOLD_A_READER, str(directory))
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    assert catalog.reap_readers() == 0
    child.kill()
    child.communicate()
    assert catalog.reap_readers() == 1
    assert catalog.reap_readers() == 0


WRITE_FOR_EVER = """
import os, sys
from tiercache.catalog import Catalog
from tiercache.model import Entry, Kind, OriginId
origin = OriginId(sys.argv[2].encode())
catalog = Catalog(sys.argv[1])
for number in range(500):
    catalog.put_entry(origin, b"old/%d" % number, Entry(Kind.FILE, number + 1))
with catalog.batch():
    for number in range(20_000):
        catalog.put_entry(origin, b"old/%d" % (number % 500), Entry(Kind.DIRECTORY, number + 1))
        if number == 10_000:
            print("mid-batch", flush=True)
            sys.stdin.read()
"""


def test_kill_9_of_the_writer_in_mid_batch_keeps_the_old_state(directory: Path) -> None:
    origin = OriginId(b"origin-1")
    child = in_new_process(WRITE_FOR_EVER, str(directory), origin.decode())
    assert child.stdout is not None
    assert child.stdout.readline() == "mid-batch\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    catalog = Catalog(directory)
    assert {entry.kind for _, entry in catalog.children(origin, b"old")} == {Kind.FILE}
    assert len(catalog.children(origin, b"old")) == 500
    catalog.put_entry(origin, b"next", FILE)
    catalog.close()


def test_a_reader_follows_an_engine_that_started_an_empty_catalog(
    directory: Path, origin: OriginId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.catalog.reader._LOOK_EVERY_S", 0.0)
    catalog = Catalog(directory, boot_id="boot-1")
    catalog.put_entry(origin, b"k", FILE)
    reader = CatalogReader(directory)
    run = reader.run_id()
    catalog.close(clean=False)
    successor = Catalog(directory, boot_id="boot-2")
    assert reader.entry(origin, b"k") is None
    assert reader.run_id() == successor.run_id() != run
    successor.put_entry(origin, b"k", FILE._replace(inode=9))
    assert reader.resolve(origin, b"k") == (FILE._replace(inode=9), None)
    successor.close()
    reader.close()


GROW = """
import sys
from tiercache.catalog import Catalog
from tiercache.model import Entry, Kind, OriginId
catalog = Catalog(sys.argv[1], map_size_bytes=1 << 27)
with catalog.batch():
    for number in range(200):
        catalog.put_entry(OriginId(b"origin-1"), b"d/%d" % number, Entry(Kind.FILE, 1, xattrs=((b"x", b"v" * 60_000),)))
catalog.close()
"""


FORK_AMONG_THREADS = """
import os, sys, threading
from tiercache.catalog import Catalog, CatalogReader
from tiercache.model import Entry, Kind, OriginId
origin, entry = OriginId(b"origin-1"), Entry(Kind.FILE, 5)
catalog = Catalog(sys.argv[1])
catalog.put_entry(origin, b"k", entry)
reader = CatalogReader(sys.argv[1])
stop = threading.Event()
def read():
    while not stop.is_set():
        reader.resolve(origin, b"k")
threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for number in range(10):
    catalog.put_entry(origin, b"other", entry)
    pid = os.fork()
    if not pid:
        sys.exit(0 if reader.resolve(origin, b"k") == (entry, None) else 1)  # with the interpreter's whole tidying up
    children.append(pid)
failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
stop.set()
for thread in threads:
    thread.join()
catalog.close()
sys.exit(failed)
"""


def test_forks_among_reading_threads_read_and_end(directory: Path) -> None:
    child = in_new_process(FORK_AMONG_THREADS, str(directory))
    child.communicate(timeout=60)
    assert child.returncode == 0


def test_a_reader_follows_a_map_that_outgrew_its_own(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Catalog(directory, map_size_bytes=1 << 20).close()
    shared = environment.acquire(directory, map_size_bytes=1 << 20)  # what the reader will share
    reader = CatalogReader(directory)
    child = in_new_process(GROW, str(directory))
    child.communicate()
    assert child.returncode == 0
    assert len(reader.children(OriginId(b"origin-1"), b"d")) == 200
    reader.close()
    environment.release(shared)
