"""C26: one engine per cache directory, whatever happened to the one before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tiercache.engine.lock import EngineLock, owner_pid, prepare_cache_dir
from tiercache.errors import Denied, EngineRunning, NotDirectory, TierCacheError

HOLD = """
import sys, pathlib
from tiercache.engine.lock import EngineLock
lock = EngineLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def _holder(cache_dir: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(cache_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_engine_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with _holder(tmp_path) as holder:
        with pytest.raises(EngineRunning, match=rf"already has an engine \(pid {holder.pid}\)"):
            EngineLock(tmp_path)
        assert owner_pid(tmp_path) == holder.pid
        holder.communicate()


def test_the_lock_of_a_killed_engine_is_taken_over(tmp_path: Path) -> None:
    with _holder(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert owner_pid(tmp_path) is None
    lock = EngineLock(tmp_path)
    assert owner_pid(tmp_path) == os.getpid()
    lock.release()


def test_asking_for_the_owner_does_not_disturb_one_who_takes_the_lock(tmp_path: Path) -> None:
    lock = EngineLock(tmp_path)
    for _ in range(3):
        assert owner_pid(tmp_path) == os.getpid()
    lock.release()
    assert owner_pid(tmp_path) is None


def test_a_forked_child_that_outlives_the_engine_does_not_keep_its_lock(tmp_path: Path) -> None:
    lock = EngineLock(tmp_path)
    context = multiprocessing.get_context("fork")
    inherited, released = context.Pipe(), context.Event()

    def child() -> None:
        inherited[1].send("forked")
        released.wait()

    process = context.Process(target=child)
    process.start()
    assert inherited[0].recv() == "forked"
    lock.release()
    EngineLock(tmp_path).release()
    released.set()
    process.join()


def test_nobody_owns_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert owner_pid(tmp_path / "absent") is None


def test_a_missing_cache_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    prepare_cache_dir(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("below", ["", "b"])
def test_a_file_in_the_way_is_one_clear_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotDirectory, match="is not a directory: choose another with --cache-dir"):
        EngineLock(tmp_path / "file" / below)


def test_a_place_that_cannot_be_written_is_one_clear_line() -> None:
    with pytest.raises(TierCacheError) as caught:
        EngineLock(Path("/proc/self/tiercache"))
    assert "\n" not in str(caught.value)
    assert "cache directory /proc/self/tiercache" in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_directory_of_somebody_else_is_denied(tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"
    cache_dir.mkdir(mode=0o700)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        tmp_path.chmod(0o755)
        os.seteuid(65534)
        try:
            EngineLock(cache_dir)
        except Denied as error:
            theirs.send(str(error))

    process = context.Process(target=child)
    process.start()
    process.join()
    assert ours.poll()
    assert "not writable for user 65534" in ours.recv()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a tmpfs")
def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(tmp_path)], check=True)
    try:
        with (tmp_path / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)) == 4096:
                if os.statvfs(tmp_path).f_bfree == 0:
                    break
        with pytest.raises(TierCacheError, match=r"is full: free some space or choose another with --cache-dir"):
            EngineLock(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
