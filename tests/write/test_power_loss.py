"""The power goes at the n-th disk, journal or origin call: what was promised to survive that is here or at the origin,
and nothing that was only half there goes up as if it were whole."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rig.faultproxy import FaultProxy, Forward
from rig.lossy_disk import LossyDisk, lossy
from rig.power_cut import Power, Stop, is_stopped, run_until_stopped, stopping_origin, stopping_shelf
from rig.promises import Promises, Told
from rig.s3_limits import ScaledLimits
from rig.s3_requests import Answer, Request
from rig.seaweedfs import Bucket
from rig.writing_desk import Desk, crash, in_trio
from tiercache.config import FetchConfig
from tiercache.errors import Absent
from tiercache.journal import ConditionKind
from tiercache.model import StagedState
from tiercache.origins import Limits, open_origin
from tiercache.origins.posix import PosixOrigin

SEEDS = range(int(os.environ.get("POWER_CUTS", "1")))
"""How often each call is tried, with other pieces kept and torn each time."""

PARTS_EVERY = 1 if len(SEEDS) > 1 else 4
"""Each n-th call, where calls are requests."""

LIMITS = Limits(
    part_size_bytes=5 * 1024,
    single_put_bytes=5 * 1024,
    max_parts=10,
    min_part_bytes=5 * 1024,
    max_part_bytes=50 * 1024,
    single_copy_bytes=50 * 1024,
    part_concurrency=2,
    buffer_bytes=10 * 1024,
)


def content(seed: int, size_bytes: int = 3 * 4096 + 100) -> bytes:
    """Bytes without a zero in them: what a hole brings in is seen."""
    return bytes(random.Random(seed).choices(range(1, 256), k=size_bytes))


A, B, C = content(1), content(2), content(3, 5000)
LARGE, LARGER = content(4, 30 * 1024), content(5, 33 * 1024)


class Ledger(Promises):
    """What was promised of the files of one desk."""

    def __init__(self, desk: Desk, again: Callable[[], Desk]) -> None:
        super().__init__()
        self.desk = desk
        self.again = again
        """Another engine on the same disk, when the first was killed."""


Scenario = Callable[[Ledger], Awaitable[None]]


async def save(ledger: Ledger, name: str, data: bytes, *, sync: bool = True, **fields: Any) -> int:
    ledger.begins(name, data)
    staged_id = await ledger.desk.save(name, data, sync=sync, **fields)
    if sync:
        ledger.acknowledged(name, data)
    return staged_id


async def is_sent(desk: Desk, staged_id: int) -> None:
    """Wait until its upload is under way, or done."""
    while (record := desk.journal.get(staged_id)) is not None and record.state is StagedState.SEALED:
        await desk.write_back.changed()


# -- scenarios ----------------------------------------------------------------------------------------------------


async def files_that_close_syncs(ledger: Ledger) -> None:
    await save(ledger, "a", A)
    await save(ledger, "b", B)
    await save(ledger, "empty", b"")


async def a_file_that_nobody_syncs(ledger: Ledger) -> None:
    await save(ledger, "a", A, sync=False)
    await save(ledger, "b", B)


async def fsync_and_then_close(ledger: Ledger) -> None:
    desk = ledger.desk
    ledger.begins("a", A)
    staged_id = await desk.stage("a", A)
    await desk.write_back.sync(staged_id)
    ledger.acknowledged("a", A)
    await desk.write_back.seal(staged_id)
    await save(ledger, "b", B)


async def an_append_after_the_last_fsync(ledger: Ledger) -> None:
    """The promise is of the first part; the whole is only in the page cache when it is closed."""
    desk = ledger.desk
    ledger.begins("a", A)
    staged_id = await desk.stage("a", A)
    await desk.write_back.sync(staged_id)
    ledger.acknowledged("a", A)
    ledger.begins("a", A + B)
    ledger.written_on("a", A)
    desk.staging.open(staged_id).write(len(A), B)
    await desk.write_back.seal(staged_id)
    await save(ledger, "b", C)


async def an_append_that_stays_open(ledger: Ledger) -> None:
    desk = ledger.desk
    ledger.begins("a", A)
    staged_id = await desk.stage("a", A)
    await desk.write_back.sync(staged_id)
    ledger.acknowledged("a", A)
    ledger.begins("a", A + B)
    ledger.written_on("a", A)
    desk.staging.open(staged_id).write(len(A), B)
    await save(ledger, "b", C)
    await desk.write_back.sync(staged_id)
    ledger.acknowledged("a", A + B)
    await desk.write_back.seal(staged_id)


async def a_change_in_the_middle(ledger: Ledger) -> None:
    desk = ledger.desk
    staged_id = await save(ledger, "a", A + B, inode=7)
    if await desk.write_back.unseal(staged_id):
        changed = A[:100] + C + (A + B)[100 + len(C) :]
        ledger.begins("a", changed)
        ledger.written_on("a", A[:100])
        desk.staging.open(staged_id).write(100, C)
        await save(ledger, "b", B)
        await desk.write_back.seal(staged_id)
        await save(ledger, "c", C)


async def a_truncation(ledger: Ledger) -> None:
    desk = ledger.desk
    staged_id = await save(ledger, "a", A, inode=7)
    if await desk.write_back.unseal(staged_id):
        ledger.begins("a", C)
        ledger.written_on("a", b"")
        file = desk.staging.open(staged_id)
        file.truncate(0)
        file.write(0, C)
        await desk.write_back.seal(staged_id, sync=True)
        ledger.acknowledged("a", C)


async def a_client_publishes(ledger: Ledger) -> None:
    desk = ledger.desk
    staged_id = await desk.stage("c", A, published=False)
    ledger.begins("c", A)
    await desk.write_back.seal(staged_id, sync=True)
    ledger.acknowledged("c", A)


async def a_kill_before_the_power_loss(ledger: Ledger) -> None:
    """The next engine takes up what was written after the last fsync; the page cache still has it."""
    desk = ledger.desk
    ledger.begins("a", A + B)
    staged_id = await desk.stage("a", A + B)
    await desk.write_back.sync(staged_id)
    ledger.acknowledged("a", A + B)
    ledger.begins("a", A[:100] + C + (A + B)[100 + len(C) :])
    ledger.written_on("a", A[:100])
    desk.staging.open(staged_id).write(100, C)
    crash(desk)
    ledger.desk = ledger.again()
    await ledger.desk.write_back.recover()
    await save(ledger, "b", B)


async def publish_over(ledger: Ledger) -> None:
    """A newer file takes the name before the older one has gone up, and was not synced."""
    desk = ledger.desk
    older = await desk.stage("a", A)
    ledger.begins("a", A)
    await desk.write_back.sync(older)
    ledger.acknowledged("a", A)
    await desk.write_back.seal(older)
    newer = await desk.stage("a", B, published=False)
    ledger.begins("a", B)
    await desk.write_back.seal(newer)


async def rename_over(ledger: Ledger) -> None:
    desk = ledger.desk
    await save(ledger, "t", A)
    mover = await save(ledger, "t.tmp", B, sync=False)
    ledger.begins("t", B)
    ledger.begins("t.tmp", None)
    if await desk.write_back.rename(mover, desk.key("t")):
        await save(ledger, "other", C)


async def rename_of_a_file_on_its_way(ledger: Ledger) -> None:
    desk = ledger.desk
    staged_id = await save(ledger, "t.tmp", A)
    await is_sent(desk, staged_id)
    if desk.journal.get(staged_id) is not None:
        ledger.begins("t.tmp", None)
        ledger.begins("t", A)
        if await desk.write_back.rename(staged_id, desk.key("t")):
            ledger.acknowledged("t.tmp", None)
            ledger.acknowledged("t", A)


async def unlink_during_upload(ledger: Ledger) -> None:
    """And the name is used again."""
    desk = ledger.desk
    staged_id = await save(ledger, "a", A)
    await is_sent(desk, staged_id)
    ledger.begins("a", None)
    await desk.write_back.cancel(staged_id)
    with suppress(Absent):
        await trio.to_thread.run_sync(desk.origin.delete, desk.key("a"))
    ledger.acknowledged("a", None)
    await save(ledger, "a", B)


async def edit_of_what_is_on_its_way(ledger: Ledger) -> None:
    """The second staged file is a copy of the first, changed and not synced."""
    desk = ledger.desk
    (desk.files / "a").write_bytes(C)
    ledger.acknowledged("a", C)
    match: dict[str, Any] = {"inode": 7, "condition": ConditionKind.IF_MATCH}
    first = await save(ledger, "a", A, base_etag=PosixOrigin().stat(desk.key("a")).etag, **match)
    await is_sent(desk, first)
    record = desk.journal.get(first)
    await save(ledger, "a", B, sync=False, base_etag=desk.etag("a") if record is None else record.base_etag, **match)
    await save(ledger, "b", C)


async def large_files_in_parts(ledger: Ledger) -> None:
    """One is replaced while its parts go up, by one that is not synced."""
    desk = ledger.desk
    staged_id = await save(ledger, "large", LARGE)
    await is_sent(desk, staged_id)
    await save(ledger, "large", LARGER, sync=False)
    await save(ledger, "b", B)


BEFORE_UPLOADS: list[Scenario] = [
    files_that_close_syncs,
    a_file_that_nobody_syncs,
    fsync_and_then_close,
    an_append_after_the_last_fsync,
    an_append_that_stays_open,
    a_change_in_the_middle,
    a_truncation,
    a_client_publishes,
    a_kill_before_the_power_loss,
    publish_over,
    rename_over,
]
"""Nothing goes up before they are through."""

BESIDE_UPLOADS: list[Scenario] = [
    publish_over,
    rename_over,
    a_truncation,
    rename_of_a_file_on_its_way,
    unlink_during_upload,
    edit_of_what_is_on_its_way,
]

SCENARIOS = [(scenario, False) for scenario in BEFORE_UPLOADS] + [(scenario, True) for scenario in BESIDE_UPLOADS]


# -- running them -------------------------------------------------------------------------------------------------


class Store:
    """Where the objects are: what each run of the machine opens, and what is in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def options(self, power: Power) -> dict[str, Any]:
        return {"origin": stopping_origin(power, PosixOrigin())}

    def objects(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.root / "origin").iterdir()}


class StoreOfParts(Store):
    """A bucket behind a proxy, with S3's limits scaled down, so that small files go up in parts. Each request counts,
    and none gets through when the power is gone."""

    def __init__(self, bucket: Bucket, proxy: FaultProxy) -> None:
        self._bucket = bucket
        self._store = proxy.limit(ScaledLimits())
        proxy.add(self._act)
        self._power = Power(0)
        self._run = 0
        self._origin, _ = open_origin(
            bucket.url, options=proxy.options(), limits=LIMITS, fetch=FetchConfig(retries=0, retry_deadline_s=1)
        )

    def next_run(self) -> None:
        """Other keys: those of the last run are its own."""
        self._run += 1

    def options(self, power: Power) -> dict[str, Any]:
        self._power = power
        return {"origin": self._origin, "prefix": self._prefix.encode()}

    def _act(self, request: Request, forward: Forward) -> Answer:
        power = self._power
        try:
            return power.run(request.operation, forward)  # type: ignore[no-any-return]
        except Stop:
            return Answer(0, (), b"", after=0, reset=True)

    @property
    def _prefix(self) -> str:
        return f"{self._run}/"

    def objects(self) -> dict[str, bytes]:
        # One that was begun just before the cut, and of which the journal does not know yet, has no part.
        assert not [key for key in self._store.left_with_parts if key.startswith(self._prefix.encode())]
        return {key.removeprefix(self._prefix): self._bucket.get(key) for key in self._bucket.keys(self._prefix)}

    def close(self) -> None:
        self._origin.close()


def desk_on(disk: LossyDisk, store: Store) -> Desk:
    return Desk(
        disk.root,
        concurrency=2,
        make_shelf=stopping_shelf(disk.power),
        **store.options(disk.power),
        **lossy(disk),  # type: ignore[arg-type]
    )


async def until_the_power_goes(
    disk: LossyDisk, store: Store, scenario: Scenario, *, beside: bool
) -> tuple[Ledger | None, bool]:
    """What was promised, and whether it was stopped."""
    try:
        desk = desk_on(disk, store)
    except Stop:
        return None, True
    ledger = Ledger(desk, lambda: desk_on(disk, store))

    async def work() -> None:
        if beside:
            await scenario(ledger)
        await ledger.desk.write_back.drain(60)

    stopped = not beside and await is_stopped(disk.power, partial(scenario, ledger))
    stopped = stopped or await run_until_stopped(ledger.desk, disk.power, work)
    crash(ledger.desk)
    return ledger, stopped


async def after_the_power_is_back(root: Path, store: Store, boot_id: bytes, ledger: Ledger, hint: str) -> None:
    """Start, recover, drain, and look at every name."""
    disk = LossyDisk(root, boot_id=boot_id)
    desk = desk_on(disk, store)
    try:
        await look(desk, store, ledger, hint)
    finally:
        desk.close()
        disk.close()


async def look(desk: Desk, store: Store, ledger: Ledger, hint: str) -> None:
    await desk.write_back.recover()
    async with desk.running():
        await desk.write_back.drain(60)
        await desk.write_back.drain(60)
    told = {
        record.key.removeprefix(desk.prefix).decode(): Told(
            record.state, record.last_error, kept_bytes(desk, record.id)
        )
        for record in desk.journal.records()
    }
    ledger.check(store.objects(), told, hint)
    left = {str(record.id) for record in desk.journal.records() if record.state is StagedState.CONFLICT}
    assert desk.staged_names() == left, hint
    assert desk.journal.retractions() == [], hint


def kept_bytes(desk: Desk, staged_id: int) -> bytes:
    for directory in (desk.staging.directory, desk.staging.lost_directory):
        path = directory / str(staged_id)
        if path.exists():
            return path.read_bytes()
    return b""


async def cut_at(
    root: Path, store: Store, scenario: Scenario, stop_at: int, *, beside: bool, seed: int, without: str = ""
) -> bool:
    """Whether the power went: not when the scenario came to its end before."""
    power = Power(stop_at)
    disk = LossyDisk(root, power=power, without=without)
    ledger, stopped = await until_the_power_goes(disk, store, scenario, beside=beside)
    boot_id = disk.cut(random.Random(1000 * seed + stop_at))
    if ledger is not None:
        hint = f"{scenario.__name__}, seed {seed}, cut at call {stop_at} ({power.last})"
        await after_the_power_is_back(root, store, boot_id, ledger, hint)
    return stopped


async def cut_everywhere(memory_path: Path, scenario: Scenario, *, beside: bool, seed: int, without: str = "") -> int:
    """The number of calls that there are."""
    stop_at, stopped = 0, True
    while stopped:
        stop_at += 1
        root = memory_path / str(stop_at)
        root.mkdir(parents=True)
        stopped = await cut_at(root, Store(root), scenario, stop_at, beside=beside, seed=seed, without=without)
        shutil.rmtree(root)
    return stop_at


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("scenario", "beside"), SCENARIOS, ids=lambda value: getattr(value, "__name__", str(value)))
@in_trio
async def test_a_power_cut_at_any_call_takes_nothing_that_was_promised(
    memory_path: Path, scenario: Scenario, beside: bool, seed: int
) -> None:
    assert await cut_everywhere(memory_path, scenario, beside=beside, seed=seed) > 20


@in_trio
async def test_a_power_cut_during_an_upload_in_parts_takes_nothing_that_was_promised(
    memory_path: Path, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    store = StoreOfParts(s3_bucket, s3_proxy)
    stop_at, stopped = 1, True
    while stopped:
        store.next_run()
        root = memory_path / str(stop_at)
        root.mkdir()
        stopped = await cut_at(root, store, large_files_in_parts, stop_at, beside=True, seed=0)
        stop_at += PARTS_EVERY
    assert stop_at > 50
    store.close()


@pytest.mark.parametrize("scenario", [an_append_after_the_last_fsync, rename_over], ids=lambda v: v.__name__)
@pytest.mark.parametrize("first", [20, 30, 40, 50])
@in_trio
async def test_a_power_cut_at_any_call_of_the_recovery_from_one_takes_nothing_either(
    memory_path: Path, scenario: Scenario, first: int
) -> None:
    second, stopped = 0, True
    while stopped:
        second += 1
        root = memory_path / str(second)
        root.mkdir()
        store = Store(root)
        disk = LossyDisk(root, power=Power(first))
        ledger, _ = await until_the_power_goes(disk, store, scenario, beside=False)
        assert ledger is not None
        disk = LossyDisk(root, power=Power(second), boot_id=disk.cut(random.Random(first)))
        stopped = await recover_until_the_power_goes(disk, store)
        boot_id = disk.cut(random.Random(second))
        await after_the_power_is_back(root, store, boot_id, ledger, f"{scenario.__name__}, cuts {first} and {second}")
        shutil.rmtree(root)
    assert second > 10


async def recover_until_the_power_goes(disk: LossyDisk, store: Store) -> bool:
    try:
        desk = desk_on(disk, store)
    except Stop:
        return True

    async def work() -> None:
        await desk.write_back.recover()
        await desk.write_back.drain(60)

    stopped = await run_until_stopped(desk, disk.power, work)
    crash(desk)
    return stopped


# -- what each protection is good for -----------------------------------------------------------------------------


async def _nothing(*arguments: Any, **options: Any) -> None:
    pass


CODE: dict[str, tuple[str, Any]] = {
    "replace by synced bytes only": ("tiercache.writeback.seals.Seals.secure", _nothing),
    "torn files are held back": ("tiercache.writeback.recovery._tear", lambda record, file: ""),
    "seals tell what they add to the last sync": (
        "tiercache.writeback.seals.Seals._is_synced",
        lambda self, record: True,
    ),
}
"""Protections in the code, and what stands in for them here. Those of ``LossyDisk`` are switched off there."""

PROTECTIONS: list[tuple[str, Scenario, bool]] = [
    ("fdatasync", files_that_close_syncs, False),
    ("directory fsync", files_that_close_syncs, False),
    ("journal commit", files_that_close_syncs, False),
    ("order", fsync_and_then_close, False),
    ("boot id", a_file_that_nobody_syncs, False),
    ("replace by synced bytes only", rename_over, False),
    ("replace by synced bytes only", publish_over, True),
    ("torn files are held back", an_append_after_the_last_fsync, False),
    ("seals tell what they add to the last sync", a_change_in_the_middle, False),
]


@pytest.mark.parametrize(("without", "scenario", "beside"), PROTECTIONS, ids=lambda v: getattr(v, "__name__", str(v)))
@in_trio
async def test_without_any_of_its_protections_a_power_cut_would_do_harm(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, scenario: Scenario, beside: bool
) -> None:
    if without in CODE:
        monkeypatch.setattr(*CODE[without])

    async def with_many_seeds() -> None:
        for seed in range(10):
            await cut_everywhere(memory_path / str(seed), scenario, beside=beside, seed=seed, without=without)

    with pytest.raises(AssertionError, match=r"was promised|never was"):
        await with_many_seeds()
