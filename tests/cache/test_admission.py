"""What a choosy tier writes to its disk, as readers see it: the bytes are right whether they are let in or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import trio_test

from rig.cache_rig import BS, Rig, Running, bytes_of
from tiercache.cache import VersionRef
from tiercache.cache.draft import Draft
from tiercache.checksum import block_checksums
from tiercache.config import Config
from tiercache.engine.admission import admission_of
from tiercache.policies.admission import Admission

MINUTE_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def admission(**settings: object) -> Admission:
    """As the configuration makes it, at the time 0."""
    made = admission_of(Config.model_validate({"nvme": settings}).nvme, 0.0)
    assert made is not None
    return made


def files_in(run: Running) -> list[Path]:
    return [path for path in Path(run.nvme.directory).rglob("*") if path.is_file()]


async def read(run: Running, version: VersionRef, name: str) -> None:
    """In steps of a block, as a program does."""
    data = bytes_of(name, version.size_bytes)
    for offset in range(0, version.size_bytes, BS):
        assert await run.cache.read(version, offset, BS) == data[offset : offset + BS]


def test_a_tier_lets_everything_in_unless_told_otherwise() -> None:
    assert admission_of(Config().nvme, 0.0) is None


@trio_test
async def test_an_excluded_name_is_read_from_the_origin_and_never_written(rig: Rig) -> None:
    """Through read, ensure, and the opening of a small file by its name, which elsewhere writes before it has room."""
    async with rig.start(admission=admission(include=["/data/"], exclude=["*.tmp"])) as run:
        for name, kept in (("data/a.jpg", True), ("data/b.tmp", False), ("c.jpg", False)):
            version = rig.put(name, bytes_of(name, 1000))
            await read(run, version, name)
            assert (await run.cache.ensure(version, 0, 1000) is not None) is kept
            assert (version.id in run.nvme) is kept
            _, _, data = await run.cache.ensure_small(rig.origin, version.origin_id, version.key, BS)
            assert data is None or bytes(data) == bytes_of(name, 1000)
        assert len(files_in(run)) == 1
        assert run.figure("refused_total", "nvme/name") >= 2
        assert run.figure("rejected_total", "nvme") == run.figure("refused_total", "nvme/name")


@pytest.mark.parametrize(("choosy", "drafts"), [(False, 1), (True, 0)])
@trio_test
async def test_a_choosy_tier_gets_no_drafts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, choosy: bool, drafts: int
) -> None:
    """They are written before anybody asks whether the object is let in."""
    written: list[str] = []
    write = Draft.write

    def write_and_tell(directory: str, data: memoryview) -> Draft | None:
        written.append(directory)
        return write(directory, data)

    monkeypatch.setattr(Draft, "write", write_and_tell)
    version = rig.put("f", bytes_of("f", 1000))
    async with rig.start(admission=admission(exclude=["*"]) if choosy else None) as run:
        _, _, data = await run.cache.ensure_small(rig.origin, version.origin_id, version.key, BS)
        assert data is not None
        assert bytes(data) == bytes_of("f", 1000)
        assert (version.id in run.nvme) is not choosy
    assert len(written) == drafts


@trio_test
async def test_what_is_read_once_is_not_written_however_many_parts_it_has(rig: Rig) -> None:
    clock = Clock()
    version = rig.put("large", bytes_of("large", 3 * BS))
    async with rig.start(admission=admission(second_miss_s="1h"), clock=clock) as run:
        await read(run, version, "large")
        assert files_in(run) == []
        clock.now_s += MINUTE_S
        run.cache.drop(version.id)  # what could not be kept stays in memory for a while
        await read(run, version, "large")
        assert run.nvme.used_bytes == 3 * BS
        assert run.cache.locate(version) is not None


@trio_test
async def test_what_somebody_asks_for_is_let_in_at_once(rig: Rig) -> None:
    version = rig.put("f", bytes_of("f", BS))
    async with rig.start(admission=admission(second_miss_s="1h")) as run:
        run.cache.welcome(version.id)
        assert await run.cache.ensure(version, 0, BS) is not None


@trio_test
async def test_reads_write_no_more_than_the_budget_and_go_on_when_it_is_made_up_for(rig: Rig) -> None:
    """The hour's part of the budget is two blocks."""
    clock = Clock()
    async with rig.start(admission=admission(daily_writes_max=24 * 2 * BS), clock=clock) as run:
        for name in ("a", "b", "c"):
            await read(run, rig.put(name, bytes_of(name, BS)), name)
        assert run.nvme.used_bytes == 2 * BS
        assert run.figure("refused_total", "nvme/write budget") == 1
        clock.now_s += 30 * MINUTE_S
        await read(run, rig.put("d", bytes_of("d", 3 * BS)), "d")
        assert run.nvme.used_bytes == 5 * BS, "what was let in is written to its end"
        clock.now_s += 30 * MINUTE_S
        await read(run, rig.put("e", bytes_of("e", BS)), "e")
        assert run.nvme.used_bytes == 5 * BS, "it is overdrawn by two blocks"


@pytest.mark.parametrize("settings", [{"exclude": ["*"]}, {"second_miss_s": "1h"}])
@trio_test
async def test_an_uploaded_file_stays_for_its_bytes_are_written_already(rig: Rig, settings: dict[str, object]) -> None:
    data = bytes_of("staged", BS)
    version = rig.put("f", data)
    path = rig.directory / "staged"
    path.write_bytes(data)
    async with rig.start(admission=admission(**settings)) as run:
        assert run.cache.adopt(version, str(path), block_checksums(data))
        assert run.cache.locate(version) is not None
