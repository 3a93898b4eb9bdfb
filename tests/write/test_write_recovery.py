"""What a start makes of what an earlier run left (C14, C15, C27)."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rig.writing_desk import Desk, crash, in_trio
from tiercache.errors import Conflict
from tiercache.journal import ConditionKind, Journal, OriginSource, StagedRecord
from tiercache.model import OriginId, StagedState
from tiercache.staging import FoundFile
from tiercache.writeback.recovery import make_plan


def record(**fields: Any) -> StagedRecord:
    defaults: dict[str, Any] = {"state": StagedState.SEALED, "size_bytes": 10, "synced_bytes": 10, "upload_id": "x.1"}
    return StagedRecord(1, 2, OriginId(b"12345678"), OriginSource("s3://b"), b"k", **{**defaults, **fields})


def found(size_bytes: int = 10, mtime_ns: int = 0) -> dict[int, FoundFile]:
    return {1: FoundFile(size_bytes, size_bytes, 77, mtime_ns)}


def plan_of(row: StagedRecord, files: dict[int, FoundFile], *, rebooted: bool = False, uploads: bool = True) -> Any:
    return make_plan([row], files, rebooted=rebooted, uploads=lambda _: uploads, now_ns=5)


LOST, QUEUED, DISCARDED, KEPT, COMMITTED, TORN = "lost", "queued", "discarded", "kept", "committed", "torn"


@pytest.mark.parametrize(
    ("row", "files", "rebooted", "end"),
    [
        (record(), found(), False, QUEUED),
        (record(state=StagedState.UPLOADING), found(), False, QUEUED),
        (record(state=StagedState.STAGED, size_bytes=3), found(), False, QUEUED),
        (record(state=StagedState.STAGED, size_bytes=30), found(), False, QUEUED),
        (record(), {}, False, LOST),
        (record(), found(9), False, LOST),
        (record(state=StagedState.STAGED), {}, False, LOST),
        (record(suspect=True), found(), False, LOST),
        (record(synced_bytes=-1), found(), False, QUEUED),
        (record(synced_bytes=-1), found(), True, LOST),
        (record(state=StagedState.STAGED, synced_bytes=-1), found(), True, LOST),
        (record(), found(), True, QUEUED),
        (record(unsynced=True), found(), True, TORN),
        (record(unsynced=True), found(), False, QUEUED),
        (record(size_bytes=20), found(20), True, TORN),
        (record(size_bytes=20), found(12), True, TORN),
        (record(size_bytes=20), found(9), True, LOST),
        (record(), found(11), True, TORN),
        (record(size_bytes=5), found(5), True, TORN),
        (record(size_bytes=0, synced_bytes=-1), found(0), True, QUEUED),
        (record(size_bytes=0, synced_bytes=-1), found(1), True, LOST),
        (record(state=StagedState.STAGED, size_bytes=0, synced_bytes=-1), found(0), True, LOST),
        (record(state=StagedState.STAGED, synced_ns=5), found(10, 5), True, QUEUED),
        (record(state=StagedState.STAGED, synced_ns=5), found(10, 6), True, TORN),
        (record(state=StagedState.STAGED, synced_ns=5), found(11, 5), True, TORN),
        (record(state=StagedState.STAGED, synced_ns=5), found(9, 5), True, TORN),
        (record(state=StagedState.STAGED, torn=True), found(), False, TORN),
        (record(torn=True), found(9), False, TORN),
        (record(torn=True), {}, False, LOST),
        (record(state=StagedState.CONFLICT, torn=True), found(), True, KEPT),
        (record(published=False), found(), False, DISCARDED),
        (record(published=False), {}, False, DISCARDED),
        (record(state=StagedState.CONFLICT), found(), False, KEPT),
        (record(state=StagedState.CONFLICT), {}, False, LOST),
        (record(state=StagedState.LOST), {}, False, KEPT),
        (record(committed_etag="e"), found(), False, COMMITTED),
        (record(committed_etag="e"), {}, False, COMMITTED),
    ],
)
def test_every_record_has_one_end(row: StagedRecord, files: dict[int, FoundFile], rebooted: bool, end: str) -> None:
    plan = plan_of(row, files, rebooted=rebooted)
    ends = {
        LOST: bool(plan.lost),
        QUEUED: bool(plan.queued) and not plan.torn,
        TORN: bool(plan.torn),
        DISCARDED: bool(plan.discarded),
        COMMITTED: bool(plan.committed),
    }
    assert [name for name, reached in ends.items() if reached] == ([] if end == KEPT else [end])


def test_a_plan_carried_out_needs_no_second_one() -> None:
    for row, files, rebooted in (
        (record(state=StagedState.STAGED), found(), False),
        (record(), found(3), False),
        (record(), found(20), False),
        (record(), found(20), True),
        (record(state=StagedState.STAGED), found(20), True),
    ):
        first = plan_of(row, files, rebooted=rebooted)
        [changed] = first.put
        left = {} if first.set_aside else files
        second = plan_of(changed, left)
        assert second.put == second.drop == second.set_aside == second.delete == second.lost == []


def test_what_a_killed_engine_left_unsynced_is_remembered_as_such() -> None:
    row = record(state=StagedState.STAGED, synced_ns=5)
    for files, unsynced in ((found(10, 5), False), (found(10, 6), True), (found(11, 5), True)):
        [sealed] = plan_of(row, files).put
        assert sealed.unsynced is unsynced
    [sealed] = plan_of(row._replace(synced_bytes=-1), found(10, 6)).put
    assert not sealed.unsynced


def test_a_scratch_file_is_kept_and_not_sealed() -> None:
    row = record(state=StagedState.STAGED)
    plan = plan_of(row, found(), uploads=False)
    assert plan.put == plan.queued == plan.drop == plan.delete == []


@in_trio
async def test_saved_files_survive_a_kill_and_damaged_ones_are_set_aside_and_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    ids = [await desk.save(f"f{number}", b"%03d" % number * 100) for number in range(50)]
    for staged_id in ids[:3]:
        desk.shrink(staged_id, 7)
    crash(desk)

    interrupted = Desk(tmp_path)
    await interrupted.write_back.recover()
    crash(interrupted)

    again = Desk(tmp_path)
    report = await again.write_back.recover()
    assert report.lost == []
    assert len(report.queued) == 47
    async with again.running():
        result = await again.write_back.drain(60)
    assert again.objects() == {f"f{number}": b"%03d" % number * 100 for number in range(3, 50)}
    assert sorted(result.left) == sorted(ids[:3])
    assert all("7 of 300 bytes" in error for error in result.errors.values())
    assert {int(path.name) for path in again.staging.lost_directory.iterdir()} == set(ids[:3])
    assert again.staging.used_bytes == 0
    again.close()


@in_trio
async def test_a_thousand_files_are_ready_before_the_origin_says_a_word(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    ids = [await desk.stage(f"f{number}", b"x") for number in range(1000)]
    await desk.journal.put_many(
        desk.record(i)._replace(state=StagedState.SEALED, size_bytes=1, upload_id=f"{i:016x}.1") for i in ids
    )
    crash(desk)
    again = Desk(tmp_path)
    begun_s = time.monotonic()
    report = await again.write_back.recover()
    took_s = time.monotonic() - begun_s
    assert len(report.queued) == 1000
    assert again.origin.calls == []
    assert again.staging.used_bytes == 1000
    print(f"recovery of 1,000 records: {took_s * 1000:.0f} ms")
    again.close()


@in_trio
async def test_files_saved_just_before_a_stop_go_up_after_the_next_start(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.origin.hold_writes = True
    async with desk.running():
        for number in range(20):
            await desk.save(f"f{number}", b"%d" % number)
        result = await desk.write_back.drain(0)
        assert len(result.left) == 20
    again = desk.again()
    await again.write_back.recover()
    async with again.running():
        result = await again.write_back.drain(60)
    assert result.left == []
    assert again.objects() == {f"f{number}": b"%d" % number for number in range(20)}
    again.close()


@in_trio
async def test_what_is_at_the_origin_already_is_committed_and_not_sent_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.origin.hold_landed = True
    async with desk.running():
        staged_id = await desk.save("a", b"bytes", condition=ConditionKind.IF_ABSENT)
        await desk.origin.held.wait()
        crash(desk)
        desk.journal._owed.clear()
    again = Desk(tmp_path)
    await again.write_back.recover()
    async with again.running():
        await again.write_back.wait(staged_id)
    assert again.origin.written() == []
    assert again.object("a") == b"bytes"
    assert again.shelf.data() == [b"bytes"]
    again.close()


@in_trio
async def test_an_open_file_of_a_crashed_engine_goes_up_and_an_unpublished_one_does_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    await desk.stage("mount", b"written by a mount")
    await desk.stage("client", b"half of it", published=False)
    await desk.stage("scratch", b"stays here", profile="scratch")
    (desk.root / "staging" / "123").write_bytes(b"without a row")
    crash(desk)
    again = Desk(tmp_path)
    report = await again.write_back.recover()
    assert [record.key for record in report.discarded] == [again.key("client")]
    assert report.removed_files == 1
    async with again.running():
        result = await again.write_back.drain(60)
    assert result.left == []
    assert again.objects() == {"mount": b"written by a mount"}
    [kept] = again.journal.records()
    assert (kept.key, kept.state) == (again.key("scratch"), StagedState.STAGED)
    assert again.staged_names() == {str(kept.id)}
    again.close()


async def torn_desk(root: Path, *, seal: bool = True) -> tuple[Desk, int]:
    """The machine went down after a file was synced, appended to and closed."""
    desk = Desk(root)
    staged_id = await desk.stage("a", b"synced")
    await desk.write_back.sync(staged_id)
    desk.staging.open(staged_id).write(6, b" and not synced")
    if seal:
        await desk.write_back.seal(staged_id)
        await desk.write_back.flush()
    crash(desk)
    desk.shrink(staged_id, 10)
    again = Desk(root, make_journal=partial(Journal, boot_id=b"next boot"))
    report = await again.write_back.recover()
    assert [record.id for record in report.torn] == [staged_id]
    return again, staged_id


@pytest.mark.parametrize("seal", [True, False], ids=["closed", "open"])
@in_trio
async def test_a_file_that_a_power_loss_tore_is_kept_and_told_and_goes_up_when_it_is_written_again(
    tmp_path: Path, seal: bool
) -> None:
    desk, staged_id = await torn_desk(tmp_path, seal=seal)
    async with desk.running():
        result = await desk.write_back.drain(60)
        assert result.left == [staged_id]
        assert "6 bytes were, 10 are here" in result.errors[staged_id]
        with pytest.raises(Conflict, match="before all of it was synced"):
            await desk.write_back.wait(staged_id)
        assert await desk.write_back.rename(staged_id, desk.key("b"))
        assert (await desk.write_back.drain(60)).left == [staged_id]
    assert desk.objects() == {}
    crash(desk)
    desk = Desk(tmp_path, make_journal=partial(Journal, boot_id=b"next boot"))
    await desk.write_back.recover()
    async with desk.running():
        assert (await desk.write_back.drain(60)).left == [staged_id]
        assert await desk.write_back.unseal(staged_id)
        assert desk.write_back.error_of(staged_id) is None
        desk.staging.open(staged_id).write(6, b", and whole again")
        await desk.write_back.seal(staged_id)
        assert (await desk.write_back.drain(60)).left == []
    assert desk.objects() == {"b": b"synced, and whole again"}
    desk.close()


@in_trio
async def test_what_a_power_loss_left_of_a_file_goes_up_when_somebody_says_so(tmp_path: Path) -> None:
    desk, staged_id = await torn_desk(tmp_path, seal=True)
    async with desk.running():
        assert (await desk.write_back.drain(60)).left == [staged_id]
        here = desk.staged_bytes(staged_id)
        await desk.write_back.insist(staged_id)
        assert (await desk.write_back.drain(60)).left == []
    assert list(desk.objects().values()) == [here]
    desk.close()


@in_trio
async def test_a_torn_file_that_the_origin_had_before_is_clean_and_what_is_here_of_it_is_no_copy(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    desk.origin.hold_landed = True
    async with desk.running():
        staged_id = await desk.stage("a", b"synced")
        await desk.write_back.sync(staged_id)
        desk.staging.open(staged_id).write(6, b" and not")
        await desk.write_back.seal(staged_id)
        await desk.origin.held.wait()
        crash(desk)
        desk.journal._owed.clear()
    (tmp_path / "staging" / str(staged_id)).write_bytes(b"synced\0\0\0\0\0\0\0\0")
    again = Desk(tmp_path, make_journal=partial(Journal, boot_id=b"next boot"))
    report = await again.write_back.recover()
    assert [record.id for record in report.torn] == [staged_id]
    async with again.running():
        assert (await again.write_back.drain(60)).left == []
    assert again.origin.written() == []
    assert again.objects() == {"a": b"synced and not"}
    assert again.shelf.data() == []
    assert again.staged_names() == set()
    again.close()


@in_trio
async def test_a_start_that_does_not_get_through_its_recovery_hides_no_power_loss(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    staged_id = await desk.save("a", b"never synced", sync=False)
    await desk.write_back.flush()
    crash(desk)
    first = Desk(tmp_path, make_journal=partial(Journal, boot_id=b"next boot"))
    first.journal.put_later(put=[first.record(staged_id)])
    await first.write_back.flush()
    crash(first)
    again = Desk(tmp_path, make_journal=partial(Journal, boot_id=b"next boot"))
    report = await again.write_back.recover()
    assert [record.id for record in report.lost] == [staged_id]
    again.close()


@in_trio
async def test_a_retraction_outlives_a_crash(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.origin.hold_landed = True
    async with desk.running():
        staged_id = await desk.save("old", b"bytes")
        await desk.origin.held.wait()
        await desk.write_back.rename(staged_id, desk.key("new"))
        crash(desk)
    assert desk.objects() == {"old": b"bytes"}
    again = Desk(tmp_path)
    await again.write_back.recover()
    async with again.running():
        await again.write_back.drain(60)
    assert again.objects() == {"new": b"bytes"}
    assert again.journal.retractions() == []
    again.close()
