"""Rename, unlink, overwrite and rewrite of a staged file in every state (C01, C02, C03, C17)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from rig.writing_desk import Desk, in_jumping_time, in_trio
from tiercache.errors import Busy, Denied, UploadFailed
from tiercache.journal import ConditionKind
from tiercache.model import StagedState


@pytest.fixture(params=["stoppable", "unstoppable"])
def held(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """Uploads stop before they land; a small PUT that is on its way cannot be stopped, a large one can."""
    desk.origin.hold_writes = True
    desk.origin.stoppable = request.param == "stoppable"
    yield desk
    desk.origin.release.set()


def let_go(desk: Desk) -> None:
    desk.origin.hold_writes = False
    desk.origin.release.set()


@in_trio
async def test_an_open_file_renamed_and_written_on_arrives_whole_under_the_new_name(desk: Desk) -> None:
    (desk.files / "t").write_bytes(b"old t")
    async with desk.running():
        staged_id = await desk.stage("t.tmp", b"A")
        await desk.write_back.sync(staged_id)
        await desk.write_back.rename(staged_id, desk.key("t"))
        desk.staging.open(staged_id).write(1, b"B")
        await desk.write_back.seal(staged_id)
        await desk.write_back.wait(staged_id)
    assert desk.objects() == {"t": b"AB"}


@in_trio
async def test_a_file_renamed_while_it_goes_up_ends_only_under_the_new_name(held: Desk) -> None:
    async with held.running():
        staged_id = await held.save("old", b"bytes")
        await held.origin.held.wait()
        assert await held.write_back.rename(staged_id, held.key("new"))
        let_go(held)
        await held.write_back.wait(staged_id)
        await held.write_back.drain(60)
    assert held.objects() == {"new": b"bytes"}
    assert held.journal.retractions() == []


@in_trio
async def test_a_rename_does_not_wait_for_the_upload_to_the_old_name(held: Desk) -> None:
    async with held.running():
        staged_id = await held.save("old", b"bytes")
        await held.origin.held.wait()
        held.origin.hold_writes = False
        await held.write_back.rename(staged_id, held.key("new"))
        await held.write_back.wait(staged_id)
        assert held.objects() == {"new": b"bytes"}
        held.origin.release.set()
        await held.write_back.drain(60)
    assert held.objects() == {"new": b"bytes"}


@in_trio
async def test_a_file_unlinked_while_it_goes_up_leaves_nothing_at_the_origin(held: Desk) -> None:
    async with held.running():
        staged_id = await held.save("gone", b"bytes")
        await held.origin.held.wait()
        assert await held.write_back.cancel(staged_id, wait=False)
        assert held.journal.get(staged_id) is None
        let_go(held)
        await held.write_back.settle(held.origin_id, held.key("gone"))
        assert held.objects() == {}
    assert held.staged_names() == set()
    assert held.journal.retractions() == []


@in_trio
async def test_cancel_waits_until_no_upload_can_land_any_more(held: Desk) -> None:
    async with held.running(), trio.open_nursery() as nursery:
        staged_id = await held.save("gone", b"bytes")
        await held.origin.held.wait()
        nursery.start_soon(held.write_back.cancel, staged_id)
        await trio.testing.wait_all_tasks_blocked()
        let_go(held)
    assert held.objects() == {}


@in_trio
async def test_a_directory_moved_and_removed_leaves_neither_old_nor_new_names(held: Desk) -> None:
    async with held.running():
        staged_id = await held.save("old-f", b"bytes")
        await held.origin.held.wait()
        await held.write_back.rename(staged_id, held.key("new-f"))
        await held.write_back.cancel(staged_id, wait=False)
        let_go(held)
        await held.write_back.drain(60)
        await held.write_back.settle(held.origin_id, held.key("old-f"))
    assert held.objects() == {}
    assert list(held.journal.records()) == held.journal.retractions() == []


@in_trio
async def test_a_file_renamed_before_its_upload_never_touches_the_old_name(tmp_path: Path) -> None:
    desk = Desk(tmp_path, upload_delay_s=3600)
    async with desk.running():
        staged_id = await desk.save("old", b"bytes")
        await desk.write_back.rename(staged_id, desk.key("new"))
        await desk.write_back.drain(60)
    assert desk.origin.written() == [desk.key("new")]
    assert desk.objects() == {"new": b"bytes"}
    desk.close()


@in_trio
async def test_renamed_over_a_file_that_goes_up_the_newest_bytes_win(held: Desk) -> None:
    (held.files / "t").write_bytes(b"older")
    async with held.running():
        emptied = await held.save("t", b"")
        await held.origin.held.wait()
        staged_id = await held.save("t.tmp", b"A")
        await held.write_back.cancel(emptied, wait=False)
        await held.write_back.rename(staged_id, held.key("t"))
        let_go(held)
        await held.write_back.drain(60)
    assert held.objects() == {"t": b"A"}
    assert held.origin.most_at_once[held.key("t")] == 1


@in_trio
async def test_a_rename_replaces_the_staged_file_of_the_target_in_one_step(held: Desk) -> None:
    async with held.running():
        source = await held.save("t.tmp", b"A")
        target = await held.save("t", b"newer id, older bytes")
        await held.origin.held.wait()
        await held.write_back.rename(source, held.key("t"))
        assert [record.id for record in held.journal.records()] == [source]
        let_go(held)
        await held.write_back.drain(60)
        assert not await held.write_back.cancel(target)
    assert held.objects() == {"t": b"A"}
    assert held.staged_names() == set()
    assert held.journal.retractions() == []


@in_trio
async def test_of_two_files_of_a_name_the_last_closed_wins_whichever_was_opened_first(held: Desk) -> None:
    async with held.running():
        first_opened = await held.stage("a", b"closed last", published=False)
        await held.save("a", b"closed first")
        await held.origin.held.wait()
        await held.write_back.seal(first_opened)
        let_go(held)
        await held.write_back.drain(60)
    assert held.objects() == {"a": b"closed last"}
    assert held.journal.retractions() == []


@in_trio
async def test_renamed_away_and_back_while_it_goes_up_it_is_there(held: Desk) -> None:
    async with held.running():
        staged_id = await held.save("a", b"bytes")
        await held.origin.held.wait()
        await held.write_back.rename(staged_id, held.key("b"))
        await held.write_back.rename(staged_id, held.key("a"))
        let_go(held)
        await held.write_back.drain(60)
    assert held.objects() == {"a": b"bytes"}


@in_trio
async def test_a_second_staged_file_follows_the_one_that_goes_up(held: Desk) -> None:
    (held.files / "a").write_bytes(b"base")
    base_etag = held.etag("a")
    async with held.running():
        first = await held.save("a", b"one", inode=7, condition=ConditionKind.IF_MATCH, base_etag=base_etag)
        await held.origin.held.wait()
        assert not await held.write_back.unseal(first)
        second = await held.stage("a", b"two!", inode=7, condition=ConditionKind.IF_MATCH, base_etag=base_etag)
        let_go(held)
        await held.write_back.wait(first)
        assert held.object("a") == b"one"
        assert held.record(second).state is StagedState.STAGED
        assert held.staged_bytes(second) == b"two!"
        await held.write_back.seal(second)
        await held.write_back.wait(second)
    assert held.objects() == {"a": b"two!"}
    assert held.origin.most_at_once[held.key("a")] == 1


@in_trio
async def test_an_upload_that_a_newer_seal_made_obsolete_gives_way(held: Desk) -> None:
    async with held.running():
        first = await held.save("a", b"one", inode=7, condition=ConditionKind.IF_ABSENT)
        await held.origin.held.wait()
        second = await held.save("a", b"two", inode=7, condition=ConditionKind.IF_MATCH)
        let_go(held)
        await held.write_back.wait(first)
        await held.write_back.drain(60)
        assert held.journal.get(second) is None
    assert held.objects() == {"a": b"two"}
    assert held.staged_names() == set()
    assert held.journal.retractions() == []


@in_trio
async def test_a_file_that_is_rewritten_all_the_time_gets_up_at_last(desk: Desk) -> None:
    desk.origin.hold_writes = True
    async with desk.running():
        await desk.save("a", b"one", inode=7)
        await desk.origin.held.wait()
        second = await desk.save("a", b"two", inode=7)
        desk.origin.held = trio.Event()
        desk.origin.release.set()
        await desk.origin.held.wait()
        third = await desk.save("a", b"three", inode=7)
        await desk.write_back.wait(second)
        await desk.write_back.wait(third)
    assert [stat.size_bytes for _, stat in desk.commits] == [3, 5]
    assert desk.objects() == {"a": b"three"}


@in_jumping_time
async def test_of_two_sealed_files_of_a_name_only_the_newer_goes_up(desk: Desk) -> None:
    (desk.files / "a").write_bytes(b"base")
    base_etag = desk.etag("a")
    desk.origin.error_after_landing = Busy("reset")
    async with desk.running():
        first = await desk.save("a", b"one", inode=7, condition=ConditionKind.IF_MATCH, base_etag=base_etag)
        while not desk.record(first).last_error:
            await desk.write_back.changed()
        second = await desk.save("a", b"two", inode=7, condition=ConditionKind.IF_MATCH, base_etag=base_etag)
        await desk.write_back.wait([first, second])
    assert desk.objects() == {"a": b"two"}
    assert desk.journal.retractions() == []


@in_trio
async def test_a_second_file_and_the_one_that_goes_up_are_renamed_together(held: Desk) -> None:
    async with held.running():
        await held.save("a", b"one", inode=7)
        await held.origin.held.wait()
        second = await held.stage("a", b"two", inode=7)
        await held.write_back.rename(second, held.key("b"))
        await held.write_back.seal(second)
        let_go(held)
        await held.write_back.drain(60)
    assert held.objects() == {"b": b"two"}


@in_trio
async def test_a_second_file_and_the_one_that_goes_up_are_unlinked_together(held: Desk) -> None:
    async with held.running():
        await held.save("a", b"one", inode=7)
        await held.origin.held.wait()
        second = await held.stage("a", b"two", inode=7)
        await held.write_back.cancel(second, wait=False)
        let_go(held)
        await held.write_back.drain(60)
        await held.write_back.settle(held.origin_id, held.key("a"))
    assert held.objects() == {}
    assert list(held.journal.records()) == []


@in_jumping_time
async def test_a_file_waiting_for_its_next_try_can_be_written_in_place(desk: Desk) -> None:
    desk.origin.write_errors = [Busy("503")]
    async with desk.running():
        staged_id = await desk.save("a", b"one")
        while not desk.record(staged_id).last_error:
            await desk.write_back.changed()
        assert await desk.write_back.unseal(staged_id)
        file = desk.staging.open(staged_id)
        file.truncate(0)
        file.write(0, b"2")
        await desk.write_back.seal(staged_id)
        await desk.write_back.wait(staged_id)
    assert desk.objects() == {"a": b"2"}


@in_trio
async def test_whoever_has_an_unlinked_file_open_goes_on_reading_it(desk: Desk) -> None:
    staged_id = await desk.save("a", b"bytes")
    file = desk.staging.open(staged_id)
    await desk.write_back.cancel(staged_id)
    assert desk.staged_names() == set()
    assert file.pread(10, 0) == b"bytes"
    desk.staging.delete(staged_id)
    assert desk.staging.used_bytes == 0


@in_jumping_time
async def test_a_retraction_is_tried_until_the_origin_allows_it(desk: Desk) -> None:
    desk.origin.error_after_landing = Denied("403")
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        with pytest.raises(UploadFailed):
            await desk.write_back.wait(staged_id)
        assert desk.object("a") == b"bytes"
        await desk.write_back.cancel(staged_id)
    assert desk.objects() == {}


@in_jumping_time
async def test_what_others_put_under_the_name_meanwhile_is_not_retracted(desk: Desk) -> None:
    desk.origin.error_after_landing = Busy("reset")
    async with desk.running():
        staged_id = await desk.save("a", b"bytes")
        while not desk.record(staged_id).last_error:
            await desk.write_back.changed()
        (desk.files / "b").write_bytes(b"foreign")
        (desk.files / "b").rename(desk.files / "a")
        await desk.write_back.cancel(staged_id)
    assert desk.objects() == {"a": b"foreign"}
    assert desk.journal.retractions() == []
