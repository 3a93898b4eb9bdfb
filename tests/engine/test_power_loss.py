"""The power goes at the n-th disk, journal or origin call of an engine that mounts and clients work with."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from rig.engine_ground import Ground, make_ground, read_file
from rig.lossy_disk import LossyDisk
from rig.power_cut import Power, is_stopped, stopping_origin
from rig.promises import Promises, Told
from tiercache.engine.engine import Engine
from tiercache.engine.handle import Handle
from tiercache.engine.namespace import Namespace
from tiercache.origins.posix import PosixOrigin
from tiercache.staging import Staging

EVERY = 1 if int(os.environ.get("POWER_CUTS", "1")) > 1 else 7
"""Each n-th call is tried."""

A, B = (bytes(random.Random(seed).choices(range(1, 256), k=9000)) for seed in (1, 2))


class Work:
    """What the scenarios do, and what is promised of it. The profile syncs at fsync, and not at close."""

    def __init__(self, ground: Ground, names: Namespace, promises: Promises) -> None:
        self.ground = ground
        self.names = names
        self.promises = promises

    async def create(self, name: str) -> Handle:
        _, handle = await self.names.create(self.ground.key(name), mode=0o644, uid=0, gid=0, truncate=True)
        return handle

    async def save(self, name: str, data: bytes, *, sync: bool = True) -> None:
        self.promises.begins(name, data)
        handle = await self.create(name)
        await handle.write(0, data)
        if sync:
            await handle.fsync()
            self.promises.acknowledged(name, data)
        await self.close(handle)

    async def close(self, handle: Handle) -> None:
        await handle.flush()
        await handle.close()

    async def rename(self, source: str, target: str, data: bytes) -> None:
        self.promises.begins(source, None)
        self.promises.begins(target, data)
        await self.names.rename(self.ground.key(source), self.ground.key(target))


Scenario = Callable[[Work], Awaitable[None]]


async def saves_over_each_other(work: Work) -> None:
    await work.save("a", A)
    await work.save("tmp", B, sync=False)
    await work.rename("tmp", "a", B)
    await work.save("b", B)


async def a_client_over_an_open_file(work: Work) -> None:
    work.promises.begins("a", A)
    handle = await work.create("a")
    await handle.write(0, A)
    await handle.fsync()
    work.promises.acknowledged("a", A)
    staged, path, _ = await work.names.stage(work.ground.key("a"), exclusive=False, keep=False)
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, B)
    os.close(fd)
    work.promises.begins("a", B)
    await work.names.publish(staged)
    await handle.close()
    await work.save("b", B)


async def an_append_to_a_synced_file(work: Work) -> None:
    await work.save("a", A)
    inode = (await work.names.lookup(work.ground.key("a"))).inode
    handle = await work.names.open(inode, write=True)
    work.promises.begins("a", A + B)
    work.promises.written_on("a", A)
    await handle.write(len(A), B)
    await work.save("b", B)
    await work.close(handle)
    await work.save("c", A)


async def a_cached_copy_is_written(work: Work) -> None:
    """The kernel has it, so it becomes the staged file."""
    key = work.ground.key("clean")
    inode = (await work.names.lookup(key)).inode
    await read_file(work.names, key)
    reader = await work.names.open(inode)
    lent = reader.lendable()
    assert lent is not None
    reader.lend(os.fstat(lent).st_ino)
    writer = await work.names.open(inode, write=True)
    await writer.write_in_place()
    work.promises.begins("clean", B + A[len(B) :])
    await writer.write(0, B)
    await writer.fsync()
    work.promises.acknowledged("clean", B + A[len(B) :])
    await work.close(writer)
    await reader.close()


async def a_clean_file_is_written_and_renamed(work: Work) -> None:
    """What the origin has goes with the old name, before it has what was written."""
    inode = (await work.names.lookup(work.ground.key("clean"))).inode
    handle = await work.names.open(inode, write=True)
    written = B[:5000] + A[5000:]
    work.promises.begins("clean", written)
    await handle.write(0, B[:5000])
    await work.rename("clean", "moved", written)
    work.promises.acknowledged("moved", written)
    await work.save("b", B)
    await work.close(handle)


async def removed_and_made_anew(work: Work) -> None:
    await work.save("a", A)
    work.promises.begins("a", None)
    await work.names.unlink(work.ground.key("a"))
    work.promises.acknowledged("a", None)
    await work.save("a", B)


SCENARIOS: list[Scenario] = [
    saves_over_each_other,
    a_client_over_an_open_file,
    an_append_to_a_synced_file,
    a_cached_copy_is_written,
    a_clean_file_is_written_and_renamed,
    removed_and_made_anew,
]


@contextmanager
def on(disk: LossyDisk) -> Iterator[None]:
    """Engines of this life of the machine. Their catalog is one that is not synced: a cut empties it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiercache.engine.engine.Staging", partial(Staging, disk=disk))
        patch.setattr("tiercache.engine.engine.Journal", disk.journal)
        patch.setattr("tiercache.catalog.state.current_boot_id", disk.boot_id.decode)
        origin = stopping_origin(disk.power, PosixOrigin())
        patch.setattr("tiercache.engine.trees.open_origin", lambda url, **options: (origin, url.encode().lstrip(b"/")))
        yield


async def work_until_the_power_goes(ground: Ground, disk: LossyDisk, scenario: Scenario, promises: Promises) -> bool:
    async def work() -> None:
        async with ground.engine() as (engine, names):
            await scenario(Work(ground, names, promises))
            await engine.drain(30)

    with on(disk):
        return await is_stopped(disk.power, work)


async def look(ground: Ground, disk: LossyDisk, promises: Promises, hint: str) -> None:
    """Start, recover, drain, and look at every name."""
    with on(disk):
        async with ground.engine() as (engine, _):
            await engine.drain(30)
            await engine.drain(30)
            told = told_by(engine, ground)
    promises.check({name: ground.get(name) for name in ground.names()}, told, hint)


def told_by(engine: Engine, ground: Ground) -> dict[str, Told]:
    told = {}
    for record in engine.journal.records():
        places = (engine.staging.directory, engine.staging.lost_directory)
        kept = next((path.read_bytes() for place in places if (path := place / str(record.id)).exists()), b"")
        told[record.key.removeprefix(ground.root + b"/").decode()] = Told(record.state, record.last_error, kept)
    return told


async def cut_everywhere(
    directory: Path, request: pytest.FixtureRequest, scenario: Scenario, *, every: int, seed: int
) -> None:
    stop_at, stopped = 1, True
    while stopped:
        root = directory / str(stop_at)
        root.mkdir(parents=True)
        ground = make_ground("posix", request, root)
        ground.put("clean", A)
        promises = Promises()
        promises.acknowledged("clean", A)
        disk = LossyDisk(ground.cache_dir, power=Power(stop_at))
        stopped = await work_until_the_power_goes(ground, disk, scenario, promises)
        boot_id = disk.cut(random.Random(1000 * seed + stop_at))
        hint = f"{scenario.__name__}, seed {seed}, cut at call {stop_at} ({disk.power.last})"
        disk = LossyDisk(ground.cache_dir, boot_id=boot_id)
        await look(ground, disk, promises, hint)
        disk.close()
        shutil.rmtree(root)
        stop_at += every
    assert stop_at > 20


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_power_cut_at_any_call_takes_nothing_that_was_fsynced(
    memory_path: Path, request: pytest.FixtureRequest, scenario: Scenario
) -> None:
    trio.run(partial(cut_everywhere, memory_path, request, scenario, every=EVERY, seed=0))


async def _nothing(*arguments: object, **options: object) -> None:
    pass


@pytest.mark.parametrize(
    ("scenario", "protection", "instead"),
    [
        (saves_over_each_other, "tiercache.writeback.seals.Seals.secure", _nothing),
        (a_client_over_an_open_file, "tiercache.writeback.seals.Seals.secure", _nothing),
        (a_clean_file_is_written_and_renamed, "tiercache.writeback.seals.Seals.secure", _nothing),
        (a_cached_copy_is_written, "tiercache.staging.staging.Staging.take_in", Staging.open),
        (an_append_to_a_synced_file, "tiercache.writeback.recovery._tear", lambda record, file: ""),
    ],
    ids=lambda value: getattr(value, "__name__", str(value).rpartition(".")[2]),
)
def test_without_these_protections_it_would(
    memory_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    scenario: Scenario,
    protection: str,
    instead: object,
) -> None:
    monkeypatch.setattr(protection, instead)

    async def with_many_seeds() -> None:
        for seed in range(10):
            await cut_everywhere(memory_path / str(seed), request, scenario, every=1, seed=seed)

    with pytest.raises(AssertionError, match=r"was promised|never was"):
        trio.run(with_many_seeds)
