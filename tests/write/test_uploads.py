"""From a sealed file to a clean one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from rig.writing_desk import ATTRIBUTES, Desk, in_jumping_time, in_trio
from tiercache.checksum import block_checksums
from tiercache.errors import Absent, Broken, Busy, Changed, Conflict, Denied, Lost, UploadFailed
from tiercache.journal import ConditionKind, Journal, StagedRecord
from tiercache.model import StagedState
from tiercache.origins.base import unfinished
from tiercache.origins.posix_attributes import UPLOAD_XATTR


@in_trio
async def test_a_sealed_file_reaches_the_origin_with_its_attributes_and_ends_clean(desk: Desk) -> None:
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        await desk.write_back.wait(staged_id)
    assert desk.object("a") == b"bytes"
    stat = desk.origin.stat(desk.key("a"))
    assert (stat.attributes.mode, stat.attributes.mtime_ns) == (ATTRIBUTES.mode, ATTRIBUTES.mtime_ns)
    assert stat.upload_id
    assert desk.journal.get(staged_id) is None
    assert desk.staging.used_bytes == 0
    assert [record.id for record, _ in desk.commits] == [staged_id]


@in_trio
async def test_the_staged_file_becomes_the_cached_version_without_a_copy(desk: Desk) -> None:
    data = b"x" * 5_000_000
    async with desk.running():
        staged_id = await desk.save("a", data)
        inode = desk.record(staged_id).file_inode
        await desk.write_back.wait(staged_id)
    [path] = desk.shelf.directory.iterdir()
    assert path.stat().st_ino == inode
    assert desk.shelf.data() == [data]
    assert list(desk.shelf.adopted.values()) == [block_checksums(data)]
    assert desk.staged_names() == set()


@in_trio
async def test_a_file_that_the_cache_does_not_admit_is_removed_from_staging(desk: Desk) -> None:
    desk.shelf.admits = False
    async with desk.running():
        await desk.write_back.wait(await desk.save("a", b"bytes"))
    assert desk.staged_names() == set()
    assert desk.staging.used_bytes == 0


@in_jumping_time
async def test_a_write_in_place_that_was_torn_is_taken_up_again(desk: Desk) -> None:
    (desk.files / "a").write_bytes(b"old")
    os.link(desk.files / "a", desk.files / "b")

    def tear() -> None:
        desk.origin.before_write = lambda: None
        os.setxattr(desk.files / "a", UPLOAD_XATTR, unfinished(desk.record(staged_id).upload_id).encode())
        (desk.files / "a").write_bytes(b"by")
        raise Busy("interrupted")

    desk.origin.before_write = tear
    async with desk.running():
        staged_id = await desk.stage(
            "a", b"bytes", condition=ConditionKind.IF_MATCH, base_etag=desk.etag("a"), in_place=True
        )
        await desk.write_back.seal(staged_id)
        await desk.write_back.wait(staged_id)
    assert desk.objects() == {"a": b"bytes", "b": b"bytes"}


@in_trio
async def test_an_empty_file_reaches_the_origin(desk: Desk) -> None:
    async with desk.running():
        await desk.write_back.wait(await desk.save("a", b""))
    assert desk.object("a") == b""


@in_trio
async def test_an_open_file_is_not_uploaded(desk: Desk) -> None:
    async with desk.running():
        staged_id = await desk.stage("open", b"half")
        await desk.write_back.wait(await desk.save("a", b"bytes"))
        with pytest.raises(UploadFailed, match="open for writing"):
            await desk.write_back.wait(staged_id)
    assert desk.objects() == {"a": b"bytes"}


@in_jumping_time
async def test_a_busy_origin_is_tried_again_until_it_answers(desk: Desk) -> None:
    desk.origin.write_errors = [Busy("503"), Busy("timeout"), Broken("nonsense"), OSError(5, "cable")]
    async with desk.running():
        await desk.write_back.wait(await desk.save("a", b"bytes"))
    assert desk.object("a") == b"bytes"
    assert len(desk.origin.written()) == 5


@in_jumping_time
async def test_a_failure_is_remembered_with_the_number_of_tries_and_told(desk: Desk) -> None:
    desk.origin.write_errors = [Busy("503 slow down")]
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        while not desk.record(staged_id).last_error:
            await desk.write_back.changed()
        [status] = desk.write_back.status()
        assert (status.state, status.attempts, status.last_error) == (StagedState.SEALED, 1, "503 slow down")
        assert 0 < status.retry_in_s <= 0.5
        error = desk.write_back.error_of(staged_id)
        assert isinstance(error, UploadFailed)
        assert "503 slow down" in str(error)
        await desk.write_back.wait(staged_id)
        assert desk.write_back.error_of(staged_id) is None


@in_jumping_time
async def test_a_denied_upload_is_told_at_once_and_still_tried_again(desk: Desk) -> None:
    desk.origin.write_errors = [Denied("403")]
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        with pytest.raises(UploadFailed, match="403"):
            await desk.write_back.wait(staged_id)
        assert desk.object("a") is None
        while desk.journal.get(staged_id) is not None:
            await desk.write_back.changed()
    assert desk.object("a") == b"bytes"


@in_jumping_time
async def test_an_upload_whose_answer_was_lost_is_recognised_and_not_sent_again(desk: Desk) -> None:
    desk.origin.error_after_landing = Busy("reset")
    async with desk.running():
        await desk.write_back.wait(await desk.save("a", b"bytes"))
    assert len(desk.origin.written()) == 1
    assert len(desk.commits) == 1


@in_jumping_time
@pytest.mark.parametrize("condition", list(ConditionKind))
async def test_a_lost_answer_is_no_conflict_whatever_the_condition(tmp_path: Path, condition: ConditionKind) -> None:
    desk = Desk(tmp_path)
    base_etag = ""
    if condition is ConditionKind.IF_MATCH:
        (desk.files / "a").write_bytes(b"old")
        base_etag = desk.etag("a")
    desk.origin.error_after_landing = Busy("reset")
    async with desk.running():
        await desk.write_back.wait(await desk.save("a", b"new bytes", condition=condition, base_etag=base_etag))
    assert desk.object("a") == b"new bytes"
    desk.close()


@in_jumping_time
async def test_an_edit_after_a_lost_answer_replaces_what_the_first_seal_brought(desk: Desk) -> None:
    (desk.files / "a").write_bytes(b"old")
    desk.origin.error_after_landing = Busy("reset")
    async with desk.running():
        staged_id = await desk.save("a", b"one", condition=ConditionKind.IF_MATCH, base_etag=desk.etag("a"))
        while not desk.record(staged_id).last_error:
            await desk.write_back.changed()
        assert desk.object("a") == b"one"
        assert await desk.write_back.unseal(staged_id)
        desk.staging.open(staged_id).write(0, b"two, longer")
        await desk.write_back.seal(staged_id)
        await desk.write_back.wait(staged_id)
    assert desk.object("a") == b"two, longer"


@in_trio
async def test_a_foreign_change_under_a_modification_is_a_conflict_kept_and_told(desk: Desk) -> None:
    (desk.files / "a").write_bytes(b"old")
    base_etag = desk.etag("a")
    (desk.files / "a").write_bytes(b"foreign")
    async with desk.running():
        staged_id = await desk.save("a", b"mine", condition=ConditionKind.IF_MATCH, base_etag=base_etag)
        with pytest.raises(Conflict, match="somebody else"):
            await desk.write_back.wait(staged_id)
        result = await desk.write_back.drain(60)
    assert desk.object("a") == b"foreign"
    assert desk.staged_bytes(staged_id) == b"mine"
    assert result.left == [staged_id]
    assert "somebody else" in result.errors[staged_id]
    assert desk.record(staged_id).state is StagedState.CONFLICT


@in_trio
async def test_a_foreign_delete_under_a_modification_is_a_conflict(desk: Desk) -> None:
    async with desk.running():
        staged_id = await desk.save("a", b"mine", condition=ConditionKind.IF_MATCH, base_etag="gone-1-1")
        with pytest.raises(Conflict, match="gone there"):
            await desk.write_back.wait(staged_id)
    assert desk.object("a") is None


@in_trio
async def test_an_exclusive_create_over_a_foreign_object_is_a_conflict(desk: Desk) -> None:
    (desk.files / "a").write_bytes(b"foreign")
    async with desk.running():
        staged_id = await desk.save("a", b"mine", condition=ConditionKind.IF_ABSENT)
        with pytest.raises(Conflict):
            await desk.write_back.wait(staged_id)
    assert desk.object("a") == b"foreign"


@in_trio
async def test_a_conflicting_file_renamed_goes_up_under_its_new_name(desk: Desk) -> None:
    (desk.files / "a").write_bytes(b"foreign")
    async with desk.running():
        staged_id = await desk.save("a", b"mine", condition=ConditionKind.IF_ABSENT)
        await desk.reaches(staged_id, StagedState.CONFLICT)
        await desk.write_back.rename(staged_id, desk.key("mine"))
        await desk.write_back.wait(staged_id)
        await desk.write_back.drain(60)
    assert desk.objects() == {"a": b"foreign", "mine": b"mine"}


@in_jumping_time
async def test_a_file_written_behind_its_seal_is_uploaded_again_whole(desk: Desk) -> None:
    async with desk.running():
        staged_id = await desk.stage("a", b"A" * 100)
        path = Path(desk.staging.path(staged_id))

        def scribble() -> None:
            desk.origin.before_write = lambda: None
            path.write_bytes(b"B" * 150)

        desk.origin.before_write = scribble
        await desk.write_back.seal(staged_id)
        await desk.write_back.wait(staged_id)
    assert desk.object("a") == b"B" * 150


@in_trio
async def test_a_file_written_behind_the_seal_that_synced_it_is_not_taken_for_a_damaged_one(desk: Desk) -> None:
    staged_id = await desk.save("a", b"A" * 100)
    desk.staging.open(staged_id).write(0, b"B" * 100)
    async with desk.running():
        await desk.write_back.wait(staged_id)
    assert desk.object("a") == b"B" * 100


@in_trio
async def test_a_staged_file_that_shrank_before_its_upload_is_lost_and_set_aside(desk: Desk) -> None:
    desk.origin.hold_writes = True
    staged_id = await desk.save("a", b"0123456789")
    desk.shrink(staged_id, 4)
    async with desk.running():
        await desk.reaches(staged_id, StagedState.LOST)
        while (desk.staging.lost_directory / str(staged_id)).exists() is False:
            await desk.write_back.changed()
    assert desk.object("a") is None
    assert (desk.staging.lost_directory / str(staged_id)).read_bytes() == b"0123"
    assert "4 of 10 bytes" in desk.record(staged_id).last_error


@in_trio
async def test_bytes_that_rot_between_their_sync_and_their_upload_are_lost_and_never_sent(desk: Desk) -> None:
    staged_id = await desk.save("a", b"0123456789" * 1_000_000)
    desk.scribble(staged_id, 5_000_000)
    async with desk.running():
        await desk.reaches(staged_id, StagedState.LOST)
        with pytest.raises(Lost, match="not those that were synced"):
            await desk.write_back.wait(staged_id)
    assert desk.object("a") is None


@in_trio
async def test_uploads_at_a_time_are_bounded_and_small_files_pass_a_large_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path, concurrency=2)
    desk.origin.hold_writes = True
    large = await desk.save("large", b"", sync=False)
    await desk.write_back.unseal(large)
    desk.staging.open(large).truncate(32 << 20)
    await desk.write_back.seal(large)
    async with desk.running():
        await desk.origin.held.wait()
        desk.origin.hold_writes = False
        for number in range(5):
            await desk.write_back.wait(await desk.save(f"small{number}", b"s"))
        assert desk.object("large") is None
        desk.origin.release.set()
        await desk.write_back.wait(large)
    assert (desk.files / "large").stat().st_size == 32 << 20
    desk.close()


@in_jumping_time
async def test_the_upload_delay_spares_a_temporary_file_and_a_waiter_ends_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, upload_delay_s=3600)
    async with desk.running():
        temporary = await desk.save("t.tmp", b"t")
        await desk.write_back.cancel(temporary)
        kept = await desk.save("kept", b"k")
        begun_s = trio.current_time()
        await desk.write_back.wait(kept)
        assert trio.current_time() - begun_s < 3600
    assert desk.origin.written() == [desk.key("kept")]
    desk.close()


@in_trio
async def test_a_missing_bucket_is_a_failure_and_not_a_conflict(desk: Desk) -> None:
    desk.origin.write_errors = [Absent("no such bucket")]
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        with pytest.raises(UploadFailed, match="no such bucket"):
            await desk.write_back.wait(staged_id)
    assert desk.record(staged_id).state is StagedState.SEALED


@in_trio
async def test_a_changed_answer_for_a_replacing_write_does_not_loop(desk: Desk) -> None:
    desk.origin.write_errors = [Changed("412")] * 2
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        while not desk.record(staged_id).last_error:
            await desk.write_back.changed()
    assert len(desk.origin.written()) == 1


class StoppingJournal(Journal):
    """Says when a change that ``stops_at`` picks has been made, and never returns from it."""

    reached: trio.Event | None = None

    def stops_at(self, put: list[StagedRecord], drop: list[int]) -> bool:
        return bool(drop) or any(record.committed_etag for record in put)

    async def apply(self, *, put: Iterable[StagedRecord] = (), drop: Iterable[int] = (), undo: bool = False) -> None:
        put, drop = list(put), list(drop)
        await super().apply(put=put, drop=drop, undo=undo)
        if self.reached is not None and self.stops_at(put, drop):
            self.reached.set()
            await trio.sleep_forever()


@in_trio
async def test_an_upload_stopped_between_confirmation_and_end_is_finished_by_the_next_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path, make_journal=StoppingJournal)
    assert isinstance(desk.journal, StoppingJournal)
    desk.journal.reached = trio.Event()
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        await desk.journal.reached.wait()
    assert desk.record(staged_id).committed_etag
    desk.journal.reached = None
    async with desk.running():
        result = await desk.write_back.drain(20)
    assert not result.left
    assert (desk.objects(), desk.staging.used_bytes) == ({"a": b"bytes"}, 0)
    assert desk.origin.written() == [desk.key("a")]
    assert [record.id for record, _ in desk.commits] == [staged_id]
    desk.close()


@in_trio
async def test_a_retraction_stopped_on_its_way_is_finished_by_the_next_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.origin.error_after_landing = Denied("403")
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        with pytest.raises(UploadFailed):
            await desk.write_back.wait(staged_id)
        desk.origin.hold_deletes = True
        await desk.write_back.cancel(staged_id, wait=False)
        await desk.origin.held.wait()
    assert len(desk.journal.retractions()) == 1
    desk.origin.hold_deletes = False
    async with desk.running():
        assert not (await desk.write_back.drain(20)).left
    assert desk.journal.retractions() == []
    assert desk.objects() == {}
    desk.close()
