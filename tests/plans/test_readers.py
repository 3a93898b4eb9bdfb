"""Readers that tell their order: through fsspec, through a mount, and by PyTorch's samplers."""

from __future__ import annotations

import copy
import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rig.mounts import EngineProcess, Source, mounted_for, wait_for
from tiercache.errors import MountError
from tiercache.filesystem import TierCacheFileSystem
from tiercache.planning import planner_of
from tiercache.torch import PlannedBatchSampler, PlannedSampler

FILES = 60


class Epochs:
    """A sampler as DistributedSampler is one."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(FILES), FILES))

    def __len__(self) -> int:
        return FILES


class Batches:
    """As torch's BatchSampler."""

    def __init__(self, sampler: Epochs, size: int) -> None:
        self.sampler = sampler
        self._size = size

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        return (order[start : start + self._size] for start in range(0, FILES, self._size))

    def __len__(self) -> int:
        return -(-FILES // self._size)


def content(number: int) -> bytes:
    return b"%d " % number * 50


def put_files(source: Source) -> list[str]:
    names = [f"d{number % 3}/f{number}" for number in range(FILES)]
    for number, name in enumerate(names):
        source.put(name, content(number))
    return names


def told(engine: EngineProcess, name: str) -> dict[str, float]:
    found = engine.client.status()["metrics"][name]
    assert isinstance(found, dict)
    return found


def all_brought(engine: EngineProcess, files: int = FILES) -> bool:
    return told(engine, "plan_files_total").get("fetched") == files


@pytest.fixture
def fs(own_engine: EngineProcess, source: Source) -> TierCacheFileSystem:
    own_engine.client.status()  # starts it, with its settings
    protocol = source.url.partition("://")[0]
    return TierCacheFileSystem(
        target_protocol=protocol,
        target_options=source.options,
        cache_dir=str(own_engine.config.cache_dir),
        profile="dataset",
        skip_instance_cache=True,
    )


def paths_in(source: Source, names: list[str]) -> list[str]:
    return [f"{source.url.partition('://')[2]}/{name}" for name in names]


def test_what_a_reader_tells_is_here_when_it_is_read(
    fs: TierCacheFileSystem, own_engine: EngineProcess, source: Source
) -> None:
    paths = paths_in(source, put_files(source))
    order = random.Random(1).sample(range(FILES), FILES)
    with fs.plan([paths[number] for number in order]) as plan:
        wait_for(lambda: all_brought(own_engine))
        for position, number in enumerate(order):
            plan.reached(position)
            assert fs.cat_file(paths[number]) == content(number)
    assert own_engine.client.status()["metrics"]["misses_total"] == 0
    assert own_engine.client.status()["plans"] == []


def test_a_plan_may_name_what_is_not_there(fs: TierCacheFileSystem, own_engine: EngineProcess, source: Source) -> None:
    paths = paths_in(source, put_files(source))
    with fs.plan([paths[0], paths[0] + "-missing", paths[1]]):
        wait_for(lambda: all_brought(own_engine, 2))
        wait_for(lambda: told(own_engine, "plan_files_total").get("absent") == 1)
        with pytest.raises(FileNotFoundError):
            fs.cat_file(paths[0] + "-missing")
        assert fs.cat_file(paths[1]) == content(1)


def test_a_plan_is_of_files_of_one_place(fs: TierCacheFileSystem) -> None:
    with pytest.raises(ValueError, match="without files"):
        fs.plan([])
    if fs.target_protocol == "s3":
        with pytest.raises(OSError, match="does not exist"):
            fs.plan(["no-such-bucket/a"])


def test_a_sampler_tells_each_epoch_of_its_own(
    fs: TierCacheFileSystem, own_engine: EngineProcess, source: Source
) -> None:
    paths = paths_in(source, put_files(source))
    sampler = PlannedSampler(Epochs(), paths, fs=fs)
    assert len(sampler) == FILES
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert order == random.Random(epoch).sample(range(FILES), FILES)
        [plan] = own_engine.client.status()["plans"]
        assert plan["reader"].startswith(f"{os.getpid()}-")


def test_batches_are_yielded_as_they_are(fs: TierCacheFileSystem, own_engine: EngineProcess, source: Source) -> None:
    paths = paths_in(source, put_files(source))
    sampler = PlannedBatchSampler(Batches(Epochs(), 8), paths, fs=fs)
    sampler.set_epoch(3)
    assert len(sampler) == 8
    assert list(sampler) == list(sampler.batch_sampler)
    wait_for(lambda: all_brought(own_engine))


def test_an_epoch_that_is_left_early_is_given_up(
    fs: TierCacheFileSystem, own_engine: EngineProcess, source: Source
) -> None:
    paths = paths_in(source, put_files(source))
    epoch = iter(PlannedSampler(Epochs(), paths, fs=fs))
    next(epoch)
    assert len(own_engine.client.status()["plans"]) == 1
    del epoch
    assert own_engine.client.status()["plans"] == []


def test_a_sampler_without_length_is_drawn_from_bit_by_bit(
    fs: TierCacheFileSystem, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.torch.DRAWN", 10)
    paths = paths_in(source, put_files(source))
    drawn: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            drawn.append(len(drawn) % FILES)
            yield drawn[-1]

    epoch = iter(PlannedSampler(endless(), paths, fs=fs))
    assert [next(epoch) for _ in range(25)] == list(range(25))
    assert len(drawn) == 30


def test_training_goes_on_when_nothing_can_be_planned(
    fs: TierCacheFileSystem, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    assert list(PlannedSampler([2, 0, 1], ["/nowhere/a", "/nowhere/b", "/nowhere/c"])) == [2, 0, 1]
    assert "is not planned: /nowhere/a: lies under no mount of tiercache" in caplog.text
    assert list(PlannedSampler([7], paths_in(source, ["a"]), fs=fs)) == [7]  # of a longer data set
    pairs: Any = [(0, "crop"), (1, "flip")]
    assert list(PlannedSampler(pairs, paths_in(source, ["a", "b"]), fs=fs)) == pairs


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
def test_a_sampler_that_has_planned_can_be_copied(
    fs: TierCacheFileSystem, own_engine: EngineProcess, source: Source, copied: Callable[[Any], Any]
) -> None:
    sampler = PlannedSampler(Epochs(), paths_in(source, put_files(source)), fs=fs)
    assert list(copied(sampler)) == list(sampler) == list(copied(sampler))
    assert len(own_engine.client.status()["plans"]) == 3, "each is a reader of its own"


def test_a_fork_plans_beside_its_parent(fs: TierCacheFileSystem, own_engine: EngineProcess, source: Source) -> None:
    planner = fs.planner(paths_in(source, put_files(source)))
    planner.begin()
    if not (child := os.fork()):
        with suppress(BaseException):
            planner.begin()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    readers = [plan["reader"].partition("-")[0] for plan in own_engine.client.status()["plans"]]
    assert sorted(readers) == sorted([str(os.getpid()), str(child)])


@pytest.mark.parametrize("read_only", [True, False])
def test_a_program_on_a_mount_reads_what_its_plan_brought(
    own_engine: EngineProcess, source: Source, driver: str, mountpoint: Path, read_only: bool
) -> None:
    names = put_files(source)
    settings: dict[str, Any] = {"profile": "dataset"} if read_only else {}
    for mounted in mounted_for(own_engine, source, mountpoint, driver, **settings):
        paths = [str(mounted.path / name) for name in names]
        for epoch, sampler in enumerate([PlannedSampler(Epochs(), paths)] * 2):
            sampler.set_epoch(epoch)
            for place in sampler:
                assert Path(paths[place]).read_bytes() == content(place)
        reads, files = told(own_engine, "plan_reads_total"), told(own_engine, "plan_files_total")
        # What lies in the kernel's pages at the end of a plan is read without anybody's knowing.
        assert sum(reads.values()) + files["skipped"] >= FILES
        assert files["fetched"] + own_engine.client.status()["metrics"]["misses_total"] >= FILES
        with pytest.raises(MountError, match="another mount"):
            planner_of([paths[0], "/elsewhere"])


class Spellings(list[Any]):
    """As an array of numpy, which is neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_paths_may_be_spelled_in_any_way_that_leads_into_the_mount(
    own_engine: EngineProcess, source: Source, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = put_files(source)
    link = mountpoint.with_name("link")
    link.symlink_to(mountpoint / "d0")
    for mounted in mounted_for(own_engine, source, mountpoint, "kernel", profile="dataset"):
        monkeypatch.chdir(link)
        spellings = [mounted.path / names[0], os.fsencode(link / "f3"), "f6", str(mounted.path / "d0/../d1/f1")]
        for path, name in zip(spellings, [names[0], names[3], names[6], names[1]], strict=True):
            planner = planner_of(Spellings([path]))
            assert [key.rpartition(b"/d")[2] for key in planner._keys] == [name[1:].encode()]
        with pytest.raises(MountError, match="without files"):
            planner_of(Spellings())
        monkeypatch.undo()
