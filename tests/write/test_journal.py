"""The journal: durable, grouped, authoritative in memory, and never silently empty."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest
import trio
import trio.testing
import xxhash

from rig.small_disk import free_bytes, small_disk
from rig.writing_desk import in_trio
from tiercache.errors import Broken, JournalDamaged, NoSpace
from tiercache.journal import (
    ConditionKind,
    DirectoryMove,
    Intent,
    Journal,
    Member,
    OriginSource,
    Phase,
    StagedRecord,
    TreeChange,
    TreePart,
    fresh_upload_id,
    is_earlier_seal,
    next_upload_id,
)
from tiercache.journal.intents import decode_row, encode_row
from tiercache.journal.records import DamagedRow, decode, encode, frame
from tiercache.journal.rescue import read_journal
from tiercache.model import Attributes, BaseVersion, OriginId, PartedUpload, StagedState

ORIGIN = OriginId(b"12345678")


def record(staged_id: int, key: bytes = b"a/b", **fields: Any) -> StagedRecord:
    return StagedRecord(staged_id, staged_id + 100, ORIGIN, OriginSource("s3://bucket"), key, **fields)


FULL = StagedRecord(
    7,
    2**63,
    ORIGIN,
    OriginSource("s3://bücket/\udc80", "s3fs", {"client_kwargs": {"endpoint_url": "http://h"}, "anon": True}),
    b"a\xff//b\n",
    StagedState.UPLOADING,
    'etag"',
    ConditionKind.IF_MATCH,
    False,
    Attributes(0o4755, 1, 2, 3, 4, 5, ((b"user.a", b"\0\xff"), (b"user.b", b""))),
    10,
    9,
    11,
    "abc.3",
    4,
    "no \udcff luck",
    True,
    "e2",
    12,
    13,
    14,
    15,
    "checkpoint",
    16,
    True,
    "e3",
    DirectoryMove(b"a\xff", b"c", 2**64 - 1),
    parted=PartedUpload("the store's", 5, {1: "e4", 3: "e5"}),
    parted_digest=b"\xff\0",
    base=BaseVersion("e6", 2**43, b"\0" * 16),
    synced_ns=17,
    unsynced=True,
    digest=b"\0digest",
    torn=True,
    link_target=b"../\xff",
    first_seal=18,
    part_of=TreePart(TreeChange.RETURN, b"a\xff", b"c", 3, True, 18),
)

INTENT = Intent(
    9,
    Phase.MOVED,
    ORIGIN,
    OriginSource("s3://bucket", "s3fs", {"anon": True}),
    b"d\xff",
    b"e",
    (Member(b"/a", "e1", 19, "e2"), Member(b"//", "e3", 20, None)),
    (b"/sub", b""),
    True,
)


@pytest.mark.parametrize("original", [record(1), FULL])
def test_a_row_comes_back_as_it_was_written(original: StagedRecord) -> None:
    back = decode(encode(original))
    assert back == original._replace(source=original.source._replace(options=dict(original.source.options)))
    assert isinstance(back.state, StagedState)
    assert isinstance(back.condition, ConditionKind)


def test_an_intent_comes_back_as_it_was_written() -> None:
    assert decode_row(encode_row(INTENT)) == INTENT
    with pytest.raises(DamagedRow, match="another format"):
        decode_row(frame({"intent": [1, 2]}))


@in_trio
async def test_an_intent_is_no_staged_file_and_stays_until_it_is_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    await journal.apply(put=[record(1), INTENT])
    journal._env.close()
    assert [r.id for r in read_journal(tmp_path / "journal").records] == [1]
    again = Journal(tmp_path / "journal")
    assert (again.intents(), [r.id for r in again.records()], again.last_id) == ([INTENT], [1], INTENT.id)
    again.put_later(put=[INTENT._replace(phase=Phase.COPYING)])
    be_killed(again)
    third = Journal(tmp_path / "journal")
    assert [intent.phase for intent in third.intents()] == [Phase.COPYING]
    await third.drop(INTENT.id)
    assert third.intents() == []
    third.close()


def _row(record_format: int, payload: object) -> bytes:
    packed = msgpack.packb(payload, unicode_errors="surrogateescape")
    return bytes([record_format]) + xxhash.xxh3_64_digest(packed) + packed


def test_a_row_of_the_first_format_is_read() -> None:
    """Its payload was the fields in order, and of the last ones only those that there were."""
    there_were = StagedRecord._fields.index("moves")
    fields = StagedRecord(*FULL[:there_were])
    fields = fields._replace(source=FULL.source._replace(options=dict(FULL.source.options)))
    assert decode(_row(1, tuple(fields)[:there_were])) == fields


def test_a_row_of_a_later_version_is_not_taken_for_one_of_ours() -> None:
    with pytest.raises(DamagedRow, match="unknown fields: later"):
        decode(_row(2, {"id": 1, "inode": 2, "origin": ORIGIN, "source": ("s3://b", "", {}), "key": b"a", "later": 3}))


def test_every_flipped_byte_of_a_row_is_noticed() -> None:
    row = encode(FULL)
    for position in range(len(row)):
        damaged = bytearray(row)
        damaged[position] ^= 0x40
        with pytest.raises(DamagedRow):
            decode(bytes(damaged))
    for length in range(len(row)):
        with pytest.raises(DamagedRow):
            decode(row[:length])


def test_an_upload_id_tells_which_seal_of_which_file_it_was() -> None:
    first = fresh_upload_id()
    second = next_upload_id(first)
    assert is_earlier_seal(first, second)
    assert not is_earlier_seal(second, second)
    assert not is_earlier_seal(second, first)
    assert not is_earlier_seal(fresh_upload_id(), second)
    assert not is_earlier_seal("", second)
    assert next_upload_id("").endswith(".1")


@in_trio
async def test_what_was_put_is_there_after_a_crash_and_what_was_dropped_is_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    await journal.put_many([record(1), record(2), FULL])
    await journal.apply(put=[record(2, b"moved")], drop=[1, 99])
    journal._env.close()
    again = Journal(tmp_path / "journal")
    assert [(r.id, r.key) for r in again.records()] == [(2, b"moved"), (7, FULL.key)]
    assert again.last_id == FULL.taken
    assert not again.rebooted
    again.close()


def be_killed(journal: Journal) -> None:
    """What reached the kernel stays, nothing else happens."""
    journal._pending.close()
    journal._env.close()


def notes_of(journal: Journal) -> Path:
    """The file that has the changes which are not committed."""
    return max(journal.directory.glob("pending.*"), key=lambda path: path.stat().st_size)


def lose_power(journal: Journal) -> None:
    """What was not synced is gone."""
    for name in ("pending.0", "pending.1"):
        os.truncate(journal.directory / name, 0)
    be_killed(journal)


@in_trio
async def test_a_killed_engine_loses_no_change(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    await journal.put_many([record(1), record(2)])
    journal.put_later(put=[record(3), record(4)], drop=[1])
    journal.put_later(put=[record(3)._replace(key=b"moved")], drop=[4])
    be_killed(journal)
    again = Journal(tmp_path / "journal")
    assert [(r.id, r.key) for r in again.records()] == [(2, record(2).key), (3, b"moved")]
    assert again.last_id == 4
    lose_power(again)  # they were made durable at the start
    third = Journal(tmp_path / "journal")
    assert [r.id for r in third.records()] == [2, 3]
    third.close()


@in_trio
async def test_changes_during_a_commit_and_after_a_failed_one_survive_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    write = journal._write

    def fail(*args: Any) -> None:
        raise lmdb.Error("not now")

    monkeypatch.setattr(journal, "_write", fail)
    with pytest.raises(Broken):
        await journal.put(record(1))
    journal.put_later(put=[record(2)])
    with pytest.raises(Broken):
        await journal.flush()
    journal.put_later(put=[record(3)])

    def change_meanwhile(*args: Any) -> None:
        write(*args)
        trio.from_thread.run_sync(lambda: journal.put_later(put=[record(4)], drop=[3]))

    monkeypatch.setattr(journal, "_write", change_meanwhile)
    await journal.flush()
    be_killed(journal)
    again = Journal(tmp_path / "journal")
    assert [r.id for r in again.records()] == [1, 2, 4]
    again.close()


@in_trio
async def test_a_change_that_was_only_half_noted_when_the_engine_was_killed_did_not_happen(tmp_path: Path) -> None:
    """Nobody was told of it."""
    journal = Journal(tmp_path / "journal")
    journal.put_later(put=[record(1)])
    notes = notes_of(journal)
    whole = notes.stat().st_size
    journal.put_later(put=[record(2), record(3)])
    be_killed(journal)
    os.truncate(notes, whole + 100)
    again = Journal(tmp_path / "journal")
    assert [r.id for r in again.records()] == [1]
    again.close()


@in_trio
async def test_what_was_pending_at_another_boot_means_nothing(tmp_path: Path) -> None:
    """The commit is durable, the emptied file may not be."""
    journal = Journal(tmp_path / "journal")
    journal.put_later(put=[record(1)])
    notes = notes_of(journal)
    stale = notes.read_bytes()
    await journal.drop(1)
    journal.close()
    boot_id = journal._boot_id
    notes.write_bytes(stale.replace(boot_id, boot_id[::-1]))
    again = Journal(tmp_path / "journal")
    assert list(again.records()) == []
    again.close()


@in_trio
async def test_what_was_noted_before_the_disk_was_full_survives_a_kill(tmp_path: Path) -> None:
    """Somebody was told of it; of what comes later nobody is before a commit."""
    with small_disk(tmp_path / "disk", 1) as disk:
        journal = Journal(disk / "journal")
        await journal.put(record(1))
        journal.put_later(put=[record(1)._replace(key=b"older")])
        filler = disk / "filler"
        filler.write_bytes(bytes(free_bytes(disk)))
        number = 2
        while journal.note_now([record(number)]):  # what is left of the last page
            number += 1
        journal.put_later(put=[record(1)._replace(key=b"newer")])
        be_killed(journal)
        filler.unlink()
        again = Journal(disk / "journal")
        expected = [record(1)._replace(key=b"older"), *map(record, range(2, number))]
        assert list(again.records()) == expected
        again.put_later(put=[record(number)])
        be_killed(again)
        third = Journal(disk / "journal")
        assert list(third.records()) == [*expected, record(number)]
        third.close()


@in_trio
async def test_a_commit_after_a_note_that_failed_covers_all_that_was_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FailingJournal(tmp_path / "journal")
    journal.put_later(put=[record(1)])
    journal.failures = [lmdb.Error("not now")]
    with pytest.raises(Broken):
        await journal.flush()
    journal.put_later(put=[record(2)])  # noted beside what the commit did not cover
    with monkeypatch.context() as full:
        full.setattr("tiercache.journal.pending.os.write", lambda *_: 3)
        journal.put_later(put=[record(3)])
    await journal.drop_many([1, 2])
    assert journal.note_now([record(4)])
    be_killed(journal)
    again = Journal(tmp_path / "journal")
    assert list(again.records()) == [record(3), record(4)]
    again.close()


@in_trio
async def test_a_commit_does_not_cover_a_note_that_failed_while_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    journal.put_later(put=[record(1)])
    write = journal._write

    def fail_meanwhile(*args: Any) -> None:
        write(*args)
        with monkeypatch.context() as full:
            full.setattr("tiercache.journal.pending.os.write", lambda *_: 3)
            trio.from_thread.run_sync(lambda: journal.put_later(put=[record(2)]))

    monkeypatch.setattr(journal, "_write", fail_meanwhile)
    await journal.flush()
    monkeypatch.setattr(journal, "_write", write)
    assert not journal.note_now([record(3)])
    await journal.flush()
    assert journal.note_now([record(3)])
    be_killed(journal)
    again = Journal(tmp_path / "journal")
    assert list(again.records()) == [record(1), record(2), record(3)]
    again.close()


@in_trio
async def test_a_note_that_needs_no_waiting_is_kept_by_a_kill_and_one_that_fails_has_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    await journal.put(record(1))
    assert journal.note_now([record(1)._replace(key=b"noted"), record(2)])
    with monkeypatch.context() as full:
        full.setattr("tiercache.journal.pending.os.write", lambda *_: 3)
        assert not journal.note_now([record(2)._replace(key=b"unnoted"), record(3)])
    expected = [record(1)._replace(key=b"noted"), record(2)]
    assert list(journal.records()) == expected
    assert not journal.note_now([record(4)])  # until a commit has brought the disk up to date
    assert list(journal.records()) == expected
    await journal.flush()
    assert journal.note_now([record(4)])
    be_killed(journal)
    again = Journal(tmp_path / "journal")
    assert list(again.records()) == [*expected, record(4)]
    again.close()


@in_trio
async def test_memory_is_right_before_the_disk_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.put_later(put=[record(1)])
    assert journal.get(1) == record(1)
    lose_power(journal)
    again = Journal(tmp_path / "journal")
    assert list(again.records()) == []
    again.put_later(put=[record(2)])
    again.close()
    third = Journal(tmp_path / "journal")
    assert [r.id for r in third.records()] == [2]
    third.close()


@in_trio
async def test_callers_that_wait_together_share_commits(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    before = journal.commits
    async with trio.open_nursery() as nursery:
        for staged_id in range(1, 201):
            nursery.start_soon(journal.put, record(staged_id))
    assert 1 <= journal.commits - before <= 2  # at most the first caller's, and one for all the others
    journal._env.close()
    again = Journal(tmp_path / "journal")
    assert len(list(again.records())) == 200
    again.close()


@in_trio
async def test_a_caller_that_gives_up_does_not_take_the_others_commit_along(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.put, record(1))
        with trio.CancelScope() as scope:
            scope.cancel()
            await journal.put(record(2))
        nursery.start_soon(journal.put, record(3))
    journal._env.close()
    again = Journal(tmp_path / "journal")
    assert [r.id for r in again.records()] == [1, 2, 3]
    again.close()


class FailingJournal(Journal):
    failures: list[lmdb.Error]

    def _write(self, *arguments: Any) -> None:
        if getattr(self, "failures", None):
            raise self.failures.pop(0)
        super()._write(*arguments)


@in_trio
async def test_a_failed_commit_is_told_and_made_good_by_the_next(tmp_path: Path) -> None:
    journal = FailingJournal(tmp_path / "journal")
    journal.failures = [lmdb.DiskError("No space left on device"), lmdb.Error("Input/output error")]
    with pytest.raises(NoSpace, match="disk of the journal"):
        await journal.put(record(1))
    with pytest.raises(Broken, match="Input/output error"):
        await journal.put(record(2))
    assert [r.id for r in journal.records()] == [1, 2]
    await journal.put(record(3))
    journal._env.close()
    again = Journal(tmp_path / "journal")
    assert [r.id for r in again.records()] == [1, 2, 3]
    again.close()


@in_trio
async def test_the_map_grows_when_it_is_full(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", map_size_bytes=64 * 1024)
    rows = [record(i, last_error="x" * 1000) for i in range(1, 500)]
    await journal.put_many(rows)
    journal.close()
    again = Journal(tmp_path / "journal", map_size_bytes=64 * 1024)
    assert list(again.records()) == [decode(encode(row)) for row in rows]
    again.close()


@in_trio
async def test_names_are_found_by_lane_also_after_a_rename(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    await journal.put_many([record(2, b"x"), record(1, b"x"), record(3, b"y", state=StagedState.CANCELLED)])
    await journal.put(record(1, b"y"))
    await journal.put(record(1, b"x"))
    assert [r.id for r in journal.at(ORIGIN, b"x")] == [1, 2]
    assert journal.at(ORIGIN, b"y") == []
    assert [r.id for r in journal.retractions(ORIGIN, b"y")] == [3]
    assert journal.get(3) is None
    await journal.drop(2)
    assert [r.id for r in journal.at(ORIGIN, b"x")] == [1]
    journal.close()


@in_trio
async def test_a_restart_of_the_machine_is_noticed_until_a_recovery_is_through(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", boot_id=b"first")
    await journal.put_many([record(1), record(2)])
    be_killed(journal)
    for _ in range(2):  # the first of these starts does not get far
        again = Journal(tmp_path / "journal", boot_id=b"second")
        assert again.rebooted
        await again.put(record(3))  # whatever else it commits
        be_killed(again)
    recovering = Journal(tmp_path / "journal", boot_id=b"second")
    await recovering.recovered(put=[record(2, b"decided")], drop=[1])
    be_killed(recovering)
    after = Journal(tmp_path / "journal", boot_id=b"second")
    assert not after.rebooted
    assert [(r.id, r.key) for r in after.records()] == [(2, b"decided"), (3, record(3).key)]
    after.close()


@in_trio
async def test_a_recovery_that_could_not_be_written_has_not_seen_the_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", boot_id=b"first")
    await journal.put(record(1))
    be_killed(journal)
    recovering = FailingJournal(tmp_path / "journal", boot_id=b"second")
    recovering.failures = [lmdb.Error("Input/output error")]
    with pytest.raises(Broken):
        await recovering.recovered(put=[record(1, b"decided")], drop=[])
    be_killed(recovering)
    notes = recovering.directory.glob("pending.*")
    assert any(path.stat().st_size for path in notes)
    after = Journal(tmp_path / "journal", boot_id=b"second")
    assert after.rebooted
    after.close()


@in_trio
async def test_a_journal_that_is_opened_and_closed_stays_what_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", boot_id=b"first")
    await journal.put(record(1))
    journal.close()
    before = (tmp_path / "journal" / "data.mdb").read_bytes()
    Journal(tmp_path / "journal", boot_id=b"second").close()
    assert (tmp_path / "journal" / "data.mdb").read_bytes() == before


async def _filled(tmp_path: Path) -> tuple[Path, Path]:
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "1").write_bytes(b"precious")
    journal = Journal(tmp_path / "journal")
    await journal.put_many([record(i) for i in range(1, 300)])
    journal.close()
    return tmp_path / "journal" / "data.mdb", staging


@in_trio
@pytest.mark.parametrize("damage", ["removed", "emptied", "halved", "cut short", "zeroed", "scribbled"])
async def test_a_damaged_journal_is_an_error_that_names_the_staged_bytes(tmp_path: Path, damage: str) -> None:
    data, staging = await _filled(tmp_path)
    raw = data.read_bytes()
    match damage:
        case "removed":
            data.unlink()
        case "emptied":
            data.write_bytes(b"")
        case "halved":
            data.write_bytes(raw[: len(raw) // 2])
        case "cut short":
            data.write_bytes(raw[: 3 * 4096])
        case "zeroed":
            data.write_bytes(bytes(len(raw)))
        case "scribbled":
            data.write_bytes(raw.replace(b"s3://bucket", b"s3://bukket"))
    with pytest.raises(JournalDamaged, match=str(staging)):
        Journal(tmp_path / "journal", staging_directory=staging)
    assert (staging / "1").read_bytes() == b"precious"


def test_a_new_journal_beside_staged_files_is_refused(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    (staging / "lost").mkdir(parents=True)
    (staging / "12").write_bytes(b"precious")
    with pytest.raises(JournalDamaged, match="copy them"):
        Journal(tmp_path / "journal", staging_directory=staging)


def test_a_journal_that_a_crash_left_unborn_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "data.mdb").write_bytes(b"")
    journal = Journal(tmp_path / "journal", staging_directory=tmp_path / "staging")
    assert list(journal.records()) == []
    journal.close()


@in_trio
async def test_a_commit_under_way_does_not_stop_the_engine(tmp_path: Path) -> None:
    release = threading.Event()

    class SlowJournal(Journal):
        def _write(self, *arguments: Any) -> None:
            super()._write(*arguments)
            assert release.wait(30)

    release.set()
    journal = SlowJournal(tmp_path / "journal")
    release.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.put, record(1))
        await trio.testing.wait_all_tasks_blocked()
        assert journal.get(1) is not None
        release.set()
    journal.close()


def test_a_child_of_a_fork_leaves_the_journal_to_its_parent(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    child = os.fork()
    if not child:
        status = 2
        try:
            journal.close()
            others = [lmdb.open(str(tmp_path / "other"))]
            # One reference that nobody gives back: it is never collected, and so never closed.
            status = 0 if sys.getrefcount(journal._env) == sys.getrefcount(others[0]) + 1 else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    trio.run(journal.put, record(1))
    journal.close()
    again = Journal(tmp_path / "journal")
    assert again.get(1) == record(1)
    again.close()
