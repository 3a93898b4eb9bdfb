"""C21: children of any kind read, write and list, and the parent goes on; with a watchdog."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest

from rig.ground import Ground
from rig.workers import work, work_in_pool
from tiercache.filesystem import TierCacheFileSystem

WATCHDOG_S = 20.0

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def run_in_fork(fs: TierCacheFileSystem, path: str, name: str) -> int:
    """Exit status of a child made by ``os.fork``; the watchdog kills it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(fs, path, name)
            status = 0
        finally:
            os._exit(status)
    watchdog = threading.Timer(WATCHDOG_S, os.kill, (child, signal.SIGKILL))
    watchdog.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        watchdog.cancel()


def prepare(ground: Ground) -> None:
    ground.write("f", b"content")
    ground.fs.ls(ground.path)
    with pytest.raises(FileNotFoundError):
        ground.fs.ls(f"{ground.path}/missing")
    assert ground.fs.cat_file(f"{ground.path}/f") == b"content"


def test_a_forked_works_and_so_does_its_parent(ground: Ground) -> None:
    prepare(ground)
    assert run_in_fork(ground.fs, ground.path, "child") == 0
    assert ground.fs.cat_file(f"{ground.path}/from-child") == b"child"
    assert work(ground.fs, ground.path, "parent") == 3


def test_a_child_forked_while_threads_read_works(ground: Ground) -> None:
    """A fork in the middle of other threads' requests leaves nothing behind that the child waits for."""
    prepare(ground)
    stop = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                ground.fs.invalidate_cache(f"{ground.path}/f")
                ground.fs.cat_file(f"{ground.path}/f")
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(5):
            assert run_in_fork(ground.fs, ground.path, f"child{number}") == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


def test_a_file_opened_before_the_fork_is_read_by_both(ground: Ground) -> None:
    data = bytes(range(256)) * 1000
    ground.write("big", data)
    with ground.fs.open(f"{ground.path}/big") as file:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                file.seek(100)
                status = 0 if file.read(1000) == data[100:1100] else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        file.seek(5)
        assert file.read() == data[5:]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_work_in_poolers_read_write_and_list(ground: Ground, method: str) -> None:
    prepare(ground)
    deadline = time.monotonic() + 3 * WATCHDOG_S
    with multiprocessing.get_context(method).Pool(2) as pool:
        jobs = [(ground.storage_options, ground.path, f"{method}{number}") for number in range(4)]
        counts = pool.map_async(work_in_pool, jobs).get(timeout=deadline - time.monotonic())
    assert max(counts) <= 5
    assert len(ground.fs.ls(ground.path)) == 5


def test_threads_share_a_filesystem(ground: Ground) -> None:
    prepare(ground)
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=number: results.append(work(ground.fs, ground.path, f"thread{n}")))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert len(results) == 8
    assert len(ground.fs.ls(ground.path)) == 9
