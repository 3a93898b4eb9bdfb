"""Whoever waits for some files to go up hurries those, and what has to go up before them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.writing_desk import Desk, in_trio
from tiercache.errors import Denied
from tiercache.model import StagedState

HOUR_S = 3600.0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Nothing goes up by itself in the time of a test."""
    desk = Desk(tmp_path, upload_delay_s=HOUR_S)
    for name in ("c", "other"):
        (desk.files / name).mkdir()
    yield desk
    desk.origin.release.set()
    desk.close()


@in_trio
async def test_a_drain_of_some_files_leaves_the_others_their_delay(desk: Desk) -> None:
    wanted, other = await desk.save("c/wanted", b"w"), await desk.save("other/file", b"o")
    async with desk.running():
        result = await desk.write_back.drain(HOUR_S, ids=[wanted])
        assert (result.done, result.left) == (1, [])
        await desk.save("other/later", b"l")
    assert desk.landed() == ["c/wanted"]
    assert desk.record(other).attempts == 0


@in_trio
async def test_what_failed_is_tried_at_once_only_if_it_is_meant(desk: Desk) -> None:
    desk.origin.write_errors += [Denied("403"), Denied("403")]  # what only a change of rights helps is tried rarely
    files = [await desk.save(name, b"x") for name in ("c/wanted", "other/file")]
    async with desk.running():
        with desk.write_back.hurrying(None):
            while not all(desk.record(staged_id).last_error for staged_id in files):
                await desk.write_back.changed()
        await desk.write_back.drain(HOUR_S, ids=files[:1])
    assert desk.landed() == ["c/wanted"]
    assert desk.record(files[1]).attempts == 1


@in_trio
async def test_what_goes_up_before_a_hurried_file_is_hurried_too(desk: Desk) -> None:
    shards = [await desk.save(f"c/{number}", b"s") for number in range(3)]
    manifest = await desk.save("c/.metadata", b"m")
    after, outside = await desk.save("c/after", b"a"), await desk.save("other/file", b"o")
    async with desk.running():
        await desk.write_back.drain(HOUR_S, ids=[manifest])
        assert sorted(desk.landed()[:3]) == ["c/0", "c/1", "c/2"]
        assert desk.landed()[3:] == ["c/.metadata"]
    assert all(desk.journal.get(staged_id) is None for staged_id in shards)
    assert [desk.record(staged_id).state for staged_id in (after, outside)] == [StagedState.SEALED] * 2


@in_trio
async def test_what_is_closed_while_somebody_waits_for_it_is_hurried(desk: Desk) -> None:
    wanted, other = await desk.stage("c/wanted", b"w"), await desk.stage("other/file", b"o")
    async with desk.running():
        with desk.write_back.hurrying(lambda record: record.id == wanted):
            for staged_id in (other, wanted):
                await desk.write_back.seal(staged_id)
            await desk.write_back.wait(wanted)
    assert desk.landed() == ["c/wanted"]
