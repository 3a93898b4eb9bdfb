"""Small objects are written by the worker that fetched them, and come into the tier by a link."""

from __future__ import annotations

import os
from pathlib import Path

import trio
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, Running, bytes_of
from tiercache.cache import VersionRef
from tiercache.cache.draft import Draft
from tiercache.checksum import block_checksums
from tiercache.tier import FileIdentity


async def opened(rig: Rig, run: Running, version: VersionRef) -> bytes:
    _, _, data = await run.cache.ensure_small(rig.origin, version.origin_id, version.key, BS)
    assert data is not None
    return bytes(data)


def test_a_draft_takes_a_name_in_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    """It is one file with the bytes, known by its identity after the link; without a name nothing is left of it."""
    data = bytes_of("draft", 1000)
    draft = Draft.write(str(tmp_path), memoryview(data))
    assert draft is not None
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "ab" / "name"
    identity = draft.name(str(path))
    draft.close()
    assert path.read_bytes() == data
    assert identity == FileIdentity.of(path.stat())
    assert draft.checksums == block_checksums(data)


def test_a_draft_replaces_what_has_no_record(tmp_path: Path) -> None:
    path = tmp_path / "name"
    path.write_bytes(b"left by a crash")
    draft = Draft.write(str(tmp_path), memoryview(b"right"))
    assert draft is not None
    draft.name(str(path))
    draft.close()
    assert path.read_bytes() == b"right"


def test_where_no_draft_can_be_made_there_is_none(tmp_path: Path) -> None:
    assert Draft.write(str(tmp_path / "absent"), memoryview(b"x")) is None


def bytes_in(path: str) -> bytes:
    return Path(path).read_bytes()


class Steps(trio.abc.Instrument):
    """Counts how often the tasks that open files got a turn: twice more for each trip to a thread."""

    def __init__(self) -> None:
        self.taken = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += "Openings._run" in task.name


async def steps_of(rig: Rig, run: Running, name: str) -> int:
    version = rig.put(name, bytes_of(name, 1000))
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    assert await opened(rig, run, version) == bytes_of(name, 1000)
    trio.lowlevel.remove_instrument(steps)
    return steps.taken


@trio_test
async def test_a_small_file_costs_one_trip_to_a_thread(rig: Rig) -> None:
    """Less than with a RAM tier, which needs the bytes twice: then they are written in a second trip."""
    async with rig.start() as run:
        once = await steps_of(rig, run, "one")
    async with rig.start(ram_bytes=BS) as run:
        twice = await steps_of(rig, run, "two")
    assert 0 < once < twice


@trio_test
async def test_a_draft_is_found_as_any_other_copy(rig: Rig) -> None:
    """Written, recorded, charged, and unchanged since it was recorded."""
    data = bytes_of("small", 1000)
    version = rig.put("f", data)
    async with rig.start() as run:
        assert await opened(rig, run, version) == data
        location = run.cache.locate(version)
        assert location is not None
        assert bytes_in(location.path) == data
        assert run.nvme.used_bytes == 4096
        assert await run.cache.read(version, 0, 1000) == data
        assert run.figure("hits_total", "nvme") == 1
        assert run.figure("fills_total", "nvme") == 1


def bytes_on_disk(directory: str) -> int:
    return sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())


@trio_test
async def test_a_tier_that_is_nearly_full_gets_no_drafts(rig: Rig) -> None:
    """They are written before room is reserved: the usual way evicts first, and the capacity holds."""
    async with rig.start(nvme_bytes=BS + 4096) as run:
        for number in range(8):
            version = rig.put(f"f{number}", data := bytes_of(f"f{number}", BS // 2))
            assert await opened(rig, run, version) == data
            assert bytes_on_disk(run.nvme.directory) <= run.nvme.capacity_bytes
            assert run.cache.locate(version) is not None


def leave(path: str, data: bytes) -> None:
    Path(path).parent.mkdir(parents=True)
    Path(path).write_bytes(data)


@trio_test
async def test_a_file_that_nobody_recorded_is_replaced(rig: Rig) -> None:
    data = bytes_of("again", 500)
    version = rig.put("f", data)
    async with rig.start() as run:
        leave(run.nvme.path(version.id), b"x" * 5000)
        assert await opened(rig, run, version) == data
        assert bytes_in(run.nvme.path(version.id)) == data
        descriptors = len(os.listdir("/proc/self/fd"))
        await opened(rig, run, rig.put("g", data))
        assert len(os.listdir("/proc/self/fd")) == descriptors, "drafts are closed"
