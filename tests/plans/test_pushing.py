"""Planned files are in the kernel's page cache before they are read, on mounts that keep their pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from rig.mounts import EngineProcess, Mounted, Source, mounted_for, wait_for
from tiercache.cache import Location
from tiercache.client import Plan
from tiercache.fuse.pushing import MOST_WAITING, TRIED_THEN, UNKNOWN_IN_A_ROW, Pusher
from tiercache.metrics import Metrics
from tiercache.model import Entry, Kind, Tier
from tiercache.planning import planner_of

FILES = 60
AHEAD = 8


def content(number: int) -> bytes:
    return b"%d " % number * 5000


@pytest.fixture
def short_engine(tmp_path: Path) -> Iterator[EngineProcess]:
    """One that is no more than a few files ahead, so that a test knows which ones."""
    process = EngineProcess(tmp_path / "own-cache", **{"plan.lead_min": AHEAD, "plan.lead_max": AHEAD})
    yield process
    process.stop()


@pytest.fixture
def data(short_engine: EngineProcess, source: Source, mountpoint: Path) -> Iterator[Mounted]:
    """A read-only mount of the files, of none of which the kernel knows."""
    for number in range(FILES):
        source.put(f"d/f{number}", content(number))
    yield from mounted_for(short_engine, source, mountpoint, "kernel", profile="dataset")


def paths_in(mounted: Mounted) -> list[str]:
    return [str(mounted.path / f"d/f{number}") for number in range(FILES)]


def figures(engine: EngineProcess, name: str) -> dict[str, float]:
    found = engine.client.status()["metrics"][name]
    assert isinstance(found, dict)
    return found


def reached(plan: Plan, position: int) -> None:
    """Tell it at once."""
    plan.reached(position, count=FILES)


def test_the_kernel_reads_them_without_asking(data: Mounted, short_engine: EngineProcess) -> None:
    paths = paths_in(data)
    assert len([path.stat() for path in (data.path / "d").iterdir()]) == FILES  # now it knows them
    with planner_of(paths).begin() as plan:
        reached(plan, 20)
        wait_for(lambda: figures(short_engine, "pushed_files_total").get("pushed") == 20 + AHEAD)
        before = sum(figures(short_engine, "mount_requests_total").values())
        for number in range(20, 20 + AHEAD):
            assert Path(paths[number]).read_bytes() == content(number)
        assert sum(figures(short_engine, "mount_requests_total").values()) == before
        reached(plan, 20 + AHEAD)
        wait_for(lambda: figures(short_engine, "pushed_files_total").get("pushed") == 20 + 2 * AHEAD)
    assert figures(short_engine, "plan_reads_total")["ready"] == 20 + AHEAD, "nobody saw them read"


def test_what_the_kernel_does_not_know_is_left_to_its_read(data: Mounted, short_engine: EngineProcess) -> None:
    paths = paths_in(data)
    with planner_of(paths).begin() as plan:
        reached(plan, 20)
        wait_for(lambda: figures(short_engine, "pushed_files_total").get("unknown") >= AHEAD)
        for number in range(20, 20 + AHEAD):
            assert Path(paths[number]).read_bytes() == content(number)
    assert figures(short_engine, "pushed_files_total").get("pushed", 0) == 0


def test_a_reader_that_does_not_tell_where_it_is_gets_none(data: Mounted, short_engine: EngineProcess) -> None:
    """Nobody would see it go on."""
    paths = paths_in(data)
    assert len([path.stat() for path in (data.path / "d").iterdir()]) == FILES
    with planner_of(paths).begin():
        for number, path in enumerate(paths):
            assert Path(path).read_bytes() == content(number)
    assert sum(figures(short_engine, "pushed_files_total").values()) == 0
    assert sum(figures(short_engine, "plan_reads_total").values()) == FILES, "each was seen to be read"


def test_what_was_pushed_and_then_replaced_is_read_as_it_is_now(
    data: Mounted, short_engine: EngineProcess, source: Source, tmp_path: Path
) -> None:
    paths = paths_in(data)
    assert len([path.stat() for path in (data.path / "d").iterdir()]) == FILES
    (tmp_path / "writable").mkdir()
    for writable in mounted_for(short_engine, source, tmp_path / "writable", "kernel"):
        with planner_of(paths).begin() as plan:
            reached(plan, 20)
            wait_for(lambda: figures(short_engine, "pushed_files_total").get("pushed") == 20 + AHEAD)
            (writable.path / "d/f20").write_bytes(b"new")
            (writable.path / "d/f21").write_bytes(content(99))
            short_engine.drain()
            wait_for(lambda: Path(paths[20]).read_bytes() == b"new")
            wait_for(lambda: Path(paths[21]).read_bytes() == content(99))
            assert Path(paths[22]).read_bytes() == content(22)


class Kernel:
    """Takes pages of the nodes that it knows, as slowly as a test wants."""

    def __init__(self, *known: int) -> None:
        self.known = set(known)
        self.pages: dict[int, bytes] = {}
        self.asked: list[int] = []
        self.dropped: list[int] = []
        self.on_store = lambda: None

    def store(self, node: int, data: memoryview) -> None:
        self.asked.append(node)
        self.on_store()
        if node not in self.known:
            raise FileNotFoundError
        self.pages[node] = bytes(data)

    def invalidate_attributes(self, node: int) -> None:
        self.dropped.append(node)
        self.pages.pop(node, None)


class Pushing:
    def __init__(self, directory: Path, kernel: Kernel) -> None:
        self.metrics = Metrics()
        self.pusher = Pusher(lambda inode: inode, kernel, self.metrics, most_bytes=1000)
        self._directory = directory

    def push(self, node: int, data: bytes = b"bytes", *, size_bytes: int | None = None, inode: int = 0) -> bool:
        path = self._directory / str(node)
        path.write_bytes(data)
        entry = Entry(Kind.FILE, node, size_bytes=len(data) if size_bytes is None else size_bytes)
        return self.pusher.push(entry, Location(str(path), inode or path.stat().st_ino, Tier.NVME))

    def figure(self, outcome: str) -> float:
        found = self.metrics.snapshot()["pushed_files_total"]
        assert isinstance(found, dict)
        return found[outcome]


def test_old_bytes_that_came_after_the_notice_of_a_change_are_dropped(tmp_path: Path) -> None:
    kernel = Kernel(1, 2)
    pushing = Pushing(tmp_path, kernel)
    kernel.on_store = lambda: pushing.pusher.note_change(b"f", 1)
    assert pushing.push(1)
    wait_for(lambda: kernel.dropped == [1])
    assert kernel.pages == {}
    kernel.on_store = lambda: None
    assert pushing.push(2)
    wait_for(lambda: kernel.pages == {2: b"bytes"})
    pushing.pusher.disarm()


def test_who_changed_a_file_waits_until_old_bytes_on_their_way_to_the_kernel_are_dropped(tmp_path: Path) -> None:
    kernel, stores, may_end = Kernel(1), threading.Event(), threading.Event()
    pushing = Pushing(tmp_path, kernel)
    told: list[list[int]] = []

    def on_store() -> None:
        stores.set()
        assert may_end.wait(30)

    async def tell() -> None:
        await pushing.pusher.told()
        told.append(kernel.dropped)

    async def scenario() -> None:
        await pushing.pusher.told()  # nothing is on its way
        kernel.on_store = on_store
        assert pushing.push(1)
        assert await trio.to_thread.run_sync(stores.wait, 30)
        pushing.pusher.note_change(b"f", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            await trio.testing.wait_all_tasks_blocked()
            assert told == []
            may_end.set()
        assert told == [[1]]

    trio.run(scenario)
    pushing.pusher.disarm()


def test_another_file_a_shorter_one_and_none_are_not_pushed(tmp_path: Path) -> None:
    kernel = Kernel(1, 2, 3, 4)
    pushing = Pushing(tmp_path, kernel)
    assert pushing.push(1, inode=1)
    assert pushing.push(2, size_bytes=100)
    assert not pushing.push(3, b"")
    assert not pushing.push(4, bytes(1001))
    wait_for(lambda: pushing.figure("failed") == 2)
    assert kernel.asked == []
    pushing.pusher.disarm()


def test_a_kernel_that_knows_none_is_seldom_asked(tmp_path: Path) -> None:
    kernel = Kernel()
    pushing = Pushing(tmp_path, kernel)
    for node in range(UNKNOWN_IN_A_ROW):
        assert pushing.push(node)
    wait_for(lambda: pushing.figure("unknown") == UNKNOWN_IN_A_ROW)
    assert sum(pushing.push(100 + number) for number in range(3 * TRIED_THEN)) == 3
    wait_for(lambda: pushing.figure("unknown") == UNKNOWN_IN_A_ROW + 3)
    kernel.known.update(range(1000, 2000))
    assert [pushing.push(1000 + number) for number in range(TRIED_THEN)].index(True) == TRIED_THEN - 1
    wait_for(lambda: pushing.figure("pushed") == 1)
    assert pushing.push(2000), "it knows one: all are tried again"
    pushing.pusher.disarm()


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    kernel, may_go_on = Kernel(*range(2 * MOST_WAITING)), threading.Event()
    pushing = Pushing(tmp_path, kernel)
    kernel.on_store = lambda: may_go_on.wait(30)
    queued = sum(pushing.push(node) for node in range(2 * MOST_WAITING))
    assert MOST_WAITING <= queued <= MOST_WAITING + 1
    assert pushing.figure("shed") == 2 * MOST_WAITING - queued
    may_go_on.set()
    wait_for(lambda: len(kernel.pages) == queued)
    pushing.pusher.disarm()
