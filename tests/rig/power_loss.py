"""What a power cut leaves of a cache directory, by what the kernel says it has not written to the disk yet."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from rig.engines import PATIENCE_S, small_config
from tiercache.client import Client
from tiercache.engine.engine import Engine
from tiercache.journal import StagedRecord

_CACHESTAT = 451
_libc = ctypes.CDLL(None, use_errno=True)


def bring_home(client: Client, scratch: Path) -> list[StagedRecord]:
    """Cut the power of an engine's machine now, start the machine and an engine anew, and let it bring what it has to
    the origins. What it could not."""
    cut(int(client.status()["engine"]["pid"]), client.cache_dir, scratch / "after" / "cache")
    return bring_on(scratch)


def bring_on(scratch: Path) -> list[StagedRecord]:
    """The second half of it, when the cache directory was ``cut`` to ``scratch / "after" / "cache"``."""
    config = small_config(scratch / "after")

    async def run() -> list[StagedRecord]:
        engine = Engine(config)
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            try:
                await engine.drain(PATIENCE_S)
                return list(engine.journal.records())
            finally:
                engine.stop()

    with another_boot(scratch):
        return trio.run(run)


def cut(pid: int, cache_dir: Path, to: Path) -> None:
    """Copy the cache directory of the engine ``pid`` as a power cut at this moment would leave it: what is only
    in the page cache reads as zeros. The engine itself goes on. Names are all there, synced or not."""
    os.kill(pid, signal.SIGSTOP)
    try:
        shutil.copytree(cache_dir, to, ignore=_ignore)
        for path in (path for path in to.rglob("*") if path.is_file()):
            _forget_unwritten(cache_dir / path.relative_to(to), path)
    finally:
        os.kill(pid, signal.SIGCONT)


def _ignore(directory: str, names: list[str]) -> list[str]:
    """Sockets."""
    return [
        name for name in names if not os.path.isdir(f"{directory}/{name}") and not os.path.isfile(f"{directory}/{name}")
    ]


@contextmanager
def another_boot(scratch: Path) -> Iterator[None]:
    """Engines that are started in this process find that the machine was started anew."""
    boot_id = scratch / "boot_id"
    boot_id.write_text("another\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiercache.journal.journal._BOOT_ID", boot_id)
        patch.setattr("tiercache.catalog.state.current_boot_id", lambda: "another")
        yield


def _forget_unwritten(original: Path, copy: Path) -> None:
    descriptor = os.open(original, os.O_RDWR)
    try:
        with copy.open("r+b") as file:
            for offset in _unwritten(descriptor, 0, os.fstat(descriptor).st_size):
                file.seek(offset)
                file.write(bytes(min(mmap.PAGESIZE, copy.stat().st_size - offset)))
    finally:
        os.close(descriptor)


def _unwritten(descriptor: int, start: int, end: int) -> Iterator[int]:
    """The offsets of the pages in a range that wait to be written."""
    if start >= end or not _count_unwritten(descriptor, start, end - start):
        return
    if end - start <= mmap.PAGESIZE:
        yield start
        return
    middle = start + max(mmap.PAGESIZE, (end - start) // 2 // mmap.PAGESIZE * mmap.PAGESIZE)
    yield from _unwritten(descriptor, start, middle)
    yield from _unwritten(descriptor, middle, end)


def _count_unwritten(descriptor: int, offset: int, length: int) -> int:
    """Pages that are dirty, or on their way to the disk."""
    statistics = (ctypes.c_uint64 * 5)()
    asked = (ctypes.c_uint64 * 2)(offset, length)
    if _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(asked), ctypes.byref(statistics), 0) != 0:
        pytest.skip(f"the kernel does not tell what it has not written: {os.strerror(ctypes.get_errno())}")
    return int(statistics[1] + statistics[2])
