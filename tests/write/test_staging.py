"""Staged files and their budget."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from rig.writing_desk import Desk, in_jumping_time, in_trio
from tiercache import durable
from tiercache.errors import Broken, Lost, NoSpace
from tiercache.journal import Journal
from tiercache.metrics import Metrics
from tiercache.model import StagedState
from tiercache.staging import Budget, Disk, Hope, Staging


class SickDisk(Disk):
    """Fails where it is told to, and notes the order of what is made durable."""

    def __init__(self) -> None:
        self.sync_error = 0
        self.write_error = 0
        self.log: list[str] = []

    def sync_data(self, fd: int) -> None:
        self.log.append("data")
        if self.sync_error:
            error, self.sync_error = self.sync_error, 0
            raise OSError(error, os.strerror(error))
        super().sync_data(fd)

    def sync_directory(self, path: str) -> None:
        self.log.append("directory")
        super().sync_directory(path)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        super().write(fd, data, offset)


@pytest.fixture
def disk() -> SickDisk:
    return SickDisk()


@pytest.fixture
def staging(tmp_path: Path, disk: SickDisk) -> Iterator[Staging]:
    staging = Staging(tmp_path / "staging", 1000, Metrics(), disk=disk)
    yield staging
    staging.close()


def test_a_staged_file_reads_back_what_was_written(staging: Staging) -> None:
    file = staging.create()
    assert file.write(3, memoryview(b"abc")) == 3
    assert file.pread(100, 0) == b"\0\0\0abc"
    assert file.size_bytes == 6
    file.truncate(4)
    assert file.pread(100, 2) == b"\0a"
    assert staging.open(file.id) is file


def test_ids_are_never_given_out_twice(staging: Staging, tmp_path: Path) -> None:
    ids = [staging.new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    staging.ids_after(ids[-1] + 10**9)
    assert staging.new_id() == ids[-1] + 10**9 + 1


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EIO, Broken)])
def test_a_full_or_failing_disk_is_told_in_the_domains_words(
    staging: Staging, disk: SickDisk, code: int, kind: type[Exception]
) -> None:
    file = staging.create()
    disk.write_error = code
    with pytest.raises(kind):
        file.write(0, b"x")


def test_a_file_whose_fsync_failed_once_never_syncs_again(staging: Staging, disk: SickDisk) -> None:
    file = staging.create()
    disk.sync_error = errno.EIO
    for _ in range(2):
        with pytest.raises(Lost, match="fsync failed"):
            file.fsync()
    assert disk.log == ["data"]


@in_trio
async def test_a_failed_fsync_is_told_for_ever_and_never_becomes_a_success(tmp_path: Path, disk: SickDisk) -> None:
    desk = Desk(tmp_path, disk=disk)
    staged_id = await desk.stage("a", b"bytes")
    disk.sync_error = errno.EIO
    for _ in range(3):
        with pytest.raises(Lost, match="fsync failed"):
            await desk.write_back.sync(staged_id)
    assert desk.record(staged_id).suspect
    assert disk.log == ["data"]
    with pytest.raises(Lost):
        await desk.write_back.seal(staged_id)
    with pytest.raises(Lost):
        await desk.write_back.seal(staged_id)
    async with desk.running():
        result = await desk.write_back.drain(60)
    assert desk.objects() == {}
    assert result.left == [staged_id]
    assert (desk.staging.lost_directory / str(staged_id)).read_bytes() == b"bytes"
    desk.close()


@in_trio
async def test_a_file_whose_fsync_failed_after_its_close_does_not_go_up(tmp_path: Path, disk: SickDisk) -> None:
    desk = Desk(tmp_path, disk=disk)
    staged_id = await desk.save("a", b"bytes", sync=False)
    disk.sync_error = errno.EIO
    with pytest.raises(Lost):
        await desk.write_back.sync(staged_id)
    async with desk.running():
        assert (await desk.write_back.drain(60)).left == [staged_id]
    assert desk.record(staged_id).state is StagedState.LOST
    assert desk.objects() == {}
    desk.close()


@in_trio
async def test_a_failed_fsync_is_not_forgotten_by_a_restart(tmp_path: Path, disk: SickDisk) -> None:
    desk = Desk(tmp_path, disk=disk)
    staged_id = await desk.stage("a", b"bytes")
    disk.sync_error = errno.ENOSPC
    with pytest.raises(Lost):
        await desk.write_back.sync(staged_id)
    again = desk.again()
    report = await again.write_back.recover()
    assert [record.id for record in report.lost] == [staged_id]
    again.close()


@in_trio
async def test_sync_makes_data_then_journal_then_name_durable(tmp_path: Path, disk: SickDisk) -> None:
    desk = Desk(tmp_path, disk=disk)
    staged_id = await desk.stage("a", b"bytes")
    put = desk.journal.put

    async def noted(record: object) -> None:
        disk.log.append("journal")
        await put(record)  # type: ignore[arg-type]

    desk.journal.put = noted  # type: ignore[method-assign,assignment]
    await desk.write_back.sync(staged_id)
    assert disk.log == ["data", "journal", "directory"]
    assert desk.record(staged_id).synced_bytes == 5
    await desk.write_back.sync(staged_id)
    assert disk.log == ["data", "journal", "directory", "data", "journal"]
    desk.close()


@in_trio
async def test_what_takes_the_name_of_a_synced_file_is_synced_before(tmp_path: Path, disk: SickDisk) -> None:
    desk = Desk(tmp_path, disk=disk)
    await desk.save("t", b"synced")
    mover = await desk.save("t.tmp", b"not synced", sync=False)
    disk.sync_error = errno.EIO
    with pytest.raises(Lost):
        await desk.write_back.rename(mover, desk.key("t"))
    assert [desk.staged_bytes(record.id) for record in desk.journal.at(desk.origin_id, desk.key("t"))] == [b"synced"]
    mover = await desk.save("t.tmp", b"not synced", sync=False)
    assert await desk.write_back.rename(mover, desk.key("t"))
    assert desk.record(mover).synced_bytes == len(b"not synced")
    disk.log.clear()
    await desk.write_back.rename(mover, desk.key("other"))  # there is nothing to lose
    assert disk.log == []
    desk.close()


@in_trio
async def test_a_newer_file_of_a_name_that_cannot_be_synced_is_lost_and_the_older_one_goes_up(
    tmp_path: Path, disk: SickDisk
) -> None:
    desk = Desk(tmp_path, disk=disk)
    await desk.save("a", b"synced")
    newer = await desk.save("a", b"not synced", sync=False)
    disk.sync_error = errno.EIO
    async with desk.running():
        result = await desk.write_back.drain(60)
        await desk.write_back.drain(60)
    assert result.left == [newer]
    assert desk.record(newer).state is StagedState.LOST
    assert desk.objects() == {"a": b"synced"}
    desk.close()


def test_the_directories_of_staging_and_journal_are_durable_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync_directory = durable.sync_directory

    def noted(path: str | Path) -> None:
        synced.append(Path(path))
        sync_directory(path)

    monkeypatch.setattr(durable, "sync_directory", noted)
    root = tmp_path / "deep" / "cache"
    Staging(root / "staging", 1000, Metrics()).close()
    assert synced == [tmp_path, tmp_path / "deep", root, root / "staging"]
    synced.clear()
    Journal(root / "journal").close()
    assert synced == [root, root / "journal"]
    synced.clear()
    Staging(root / "staging", 1000, Metrics()).close()
    Journal(root / "journal").close()
    assert synced == []


@in_trio
async def test_new_names_that_wait_together_share_one_fsync_of_the_directory(staging: Staging, disk: SickDisk) -> None:
    files = [staging.create() for _ in range(20)]
    async with trio.open_nursery() as nursery:
        for file in files:
            nursery.start_soon(staging.sync, file)
    assert disk.log.count("data") == 20
    assert disk.log.count("directory") < 20


@in_trio
async def test_a_clone_has_the_same_bytes_and_holes_and_is_independent(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging", 1 << 30, Metrics())
    source, target = staging.create(), staging.create()
    source.write(0, b"head")
    source.write(8 << 20, b"tail")
    target.write(0, b"x" * 100)
    await staging.clone(source, target)
    assert target.size_bytes == (8 << 20) + 4
    assert target.pread(4, 0) == b"head"
    assert target.pread(10, 8 << 20) == b"tail"
    assert target.allocated_bytes < 1 << 20
    target.write(0, b"HEAD")
    assert source.pread(4, 0) == b"head"
    copy = staging.create()
    await staging.fill_from(copy, source.path)
    assert copy.size_bytes == source.size_bytes
    with pytest.raises(Lost):
        await staging.fill_from(copy, str(tmp_path / "missing"))
    staging.close()


@in_trio
async def test_thousands_of_waiting_files_hold_few_descriptors(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    ids = [await desk.save(f"f{number}", b"%d" % number, sync=False) for number in range(300)]
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    for number, staged_id in enumerate(ids):
        assert desk.staging.open(staged_id).pread(10, 0) == b"%d" % number
    assert len(os.listdir("/proc/self/fd")) <= before + 130
    desk.close()


# -- the budget ---------------------------------------------------------------------------------------------------


@in_trio
async def test_writers_wait_in_order_until_there_is_room() -> None:
    budget = Budget(100)
    await budget.reserve(90)
    order: list[str] = []

    async def writer(name: str, amount_bytes: int) -> None:
        await budget.reserve(amount_bytes)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name, amount_bytes in (("large", 80), ("small", 5), ("last", 15)):
            nursery.start_soon(writer, name, amount_bytes)
            await trio.testing.wait_all_tasks_blocked()
        assert order == []
        assert budget.used_bytes == 90
        budget.release(50)
        await trio.testing.wait_all_tasks_blocked()
        assert order == []  # nobody passes the large one, which would starve
        budget.release(20)
        await trio.testing.wait_all_tasks_blocked()
        assert order[0] == "large"
        assert sorted(order) == ["large", "small"] or order == ["large"]
        budget.release(80)
    assert order[0] == "large"
    assert sorted(order) == ["large", "last", "small"]
    assert budget.used_bytes == 90 + 100 - 150


@in_trio
async def test_what_can_never_fit_is_refused_at_once() -> None:
    budget = Budget(100)
    with pytest.raises(NoSpace, match="staging is full"):
        await budget.reserve(101)
    assert budget.used_bytes == 0


@in_trio
async def test_a_full_budget_without_hope_refuses_instead_of_hanging() -> None:
    budget = Budget(100)
    budget.hope = lambda waiting: Hope.NONE
    await budget.reserve(100)
    with pytest.raises(NoSpace):
        await budget.reserve(1)


@in_trio
async def test_when_the_last_hope_goes_the_latest_writers_are_refused_first() -> None:
    budget = Budget(100)
    await budget.reserve(100)
    refused: list[int] = []

    async def writer(staged_id: int) -> None:
        with pytest.raises(NoSpace):
            await budget.reserve(1, staged_id=staged_id)
        refused.append(staged_id)

    async with trio.open_nursery() as nursery:
        for staged_id in (1, 2, 3):
            nursery.start_soon(writer, staged_id)
            await trio.testing.wait_all_tasks_blocked()
        budget.hope = lambda waiting: Hope.NONE if len(waiting) > 2 else Hope.OPEN_FILES
        budget.recheck()
        await trio.testing.wait_all_tasks_blocked()
        assert refused == [3]
        budget.hope = lambda waiting: Hope.NONE
        budget.recheck()
    assert sorted(refused) == [1, 2, 3]
    assert budget.used_bytes == 100


@in_jumping_time
async def test_waiting_for_others_to_close_their_files_has_an_end() -> None:
    budget = Budget(100)
    budget.hope = lambda waiting: Hope.OPEN_FILES
    await budget.reserve(100)
    with pytest.raises(NoSpace):
        await budget.reserve(1)
    assert budget.waiting == 0


@in_jumping_time
async def test_waiting_for_uploads_has_none() -> None:
    budget = Budget(100)
    await budget.reserve(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.reserve, 10)
        await trio.sleep(10 * 3600)
        assert budget.waiting == 1
        budget.release(50)
    assert budget.used_bytes == 60


@in_trio
async def test_a_writer_that_gives_up_takes_nothing_and_lets_the_next_one_pass() -> None:
    budget = Budget(100)
    await budget.reserve(50)
    scope = trio.CancelScope()

    async def large() -> None:
        with scope:
            await budget.reserve(80)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(large)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(budget.reserve, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert budget.waiting == 2
        scope.cancel()
    assert budget.used_bytes == 60
    assert budget.waiting == 0


@in_trio
async def test_one_file_larger_than_the_budget_is_refused_and_not_left_hanging(tmp_path: Path) -> None:
    desk = Desk(tmp_path, capacity_bytes=1000)
    staged_id = await desk.stage("a", b"x" * 900)
    with pytest.raises(NoSpace):
        await desk.staging.reserve(staged_id, 200)
    desk.close()


@in_trio
async def test_staged_bytes_stay_within_the_budget_while_uploads_make_room(tmp_path: Path) -> None:
    desk = Desk(tmp_path, capacity_bytes=64 * 1024)
    most_bytes = 0
    async with desk.running(), trio.open_nursery() as nursery:

        async def write(name: str) -> None:
            nonlocal most_bytes
            await desk.save(name, os.urandom(16 * 1024))
            most_bytes = max(most_bytes, desk.staging.used_bytes)

        for number in range(30):
            nursery.start_soon(write, f"f{number}")
    assert most_bytes <= 64 * 1024
    assert desk.metrics.snapshot()["back_pressure_total"] > 0  # type: ignore[operator]
    async with desk.running():
        assert not (await desk.write_back.drain(60)).left
    assert len(desk.objects()) == 30
    assert desk.staging.used_bytes == 0
    assert desk.metrics.snapshot()["staged_bytes"] == 0
    desk.close()


@in_trio
async def test_a_hole_costs_no_budget_and_a_direct_write_is_measured(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging", 1 << 20, Metrics())
    file = staging.create()
    file.truncate(1 << 40)
    assert staging.measure(file.id) == 1 << 40
    assert staging.used_bytes == 0
    with open(file.path, "r+b") as client:  # noqa: ASYNC230
        client.write(b"x" * 8192)
    staging.measure(file.id)
    assert staging.used_bytes == 8192
    staging.delete(file.id)
    staging.delete(file.id)
    assert staging.used_bytes == 0
    staging.close()
