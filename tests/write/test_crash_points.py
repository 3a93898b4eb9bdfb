"""Stop at the n-th disk, journal or origin call for n = 1, 2, 3 …, start again, and check that nothing is lost.

A stop is raised before or after the call is done, and from then on every further call fails: the rest of that run
reaches neither disk nor origin, as after a kill -9. With it may go what was noted but not committed, as after the
machine's end.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rig.lossy_disk import CHANGES, SYNCS
from rig.power_cut import Power, Stop, run_until_stopped, stopping_origin, stopping_shelf
from rig.writing_desk import Desk, in_trio
from tiercache.errors import Absent
from tiercache.journal import ConditionKind, Journal
from tiercache.journal.pending import Change
from tiercache.model import StagedState
from tiercache.origins.posix import PosixOrigin
from tiercache.staging import Disk


class StoppingDisk(Disk):
    def __init__(self, power: Power) -> None:
        for name in (*CHANGES, *SYNCS):
            setattr(self, name, power.wrapped(f"disk {name}", getattr(super(), name)))


def stopping_journal(power: Power) -> Callable[..., Journal]:
    class StoppingJournal(Journal):
        def _commit(self, *arguments: Any, **options: Any) -> None:
            power.run("journal commit", lambda: super(StoppingJournal, self)._commit(*arguments, **options))

        def _note(self, changes: list[Change]) -> None:
            power.run("journal note", lambda: super(StoppingJournal, self)._note(changes))

    return StoppingJournal


class Ledger:
    """What each name may hold: one thing once an operation was acknowledged, two while it is under way."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.allowed: dict[str, set[bytes | None]] = {}

    def begins(self, name: str, data: bytes | None) -> None:
        self.allowed.setdefault(name, {None}).add(data)

    def acknowledged(self, name: str, data: bytes | None) -> None:
        self.allowed[name] = {data}


async def save(ledger: Ledger, name: str, data: bytes, **fields: Any) -> int:
    ledger.begins(name, data)
    staged_id = await ledger.desk.save(name, data, **fields)
    ledger.acknowledged(name, data)
    return staged_id


async def rename(ledger: Ledger, staged_id: int, source: str, target: str, data: bytes) -> None:
    ledger.begins(source, None)
    ledger.begins(target, data)
    assert await ledger.desk.write_back.rename(staged_id, ledger.desk.key(target))
    ledger.acknowledged(source, None)
    ledger.acknowledged(target, data)


async def unlink(ledger: Ledger, staged_id: int, name: str) -> None:
    desk = ledger.desk
    ledger.begins(name, None)
    await desk.write_back.cancel(staged_id)
    with suppress(Absent):
        await trio.to_thread.run_sync(desk.origin.delete, desk.key(name))
    ledger.acknowledged(name, None)


async def saves(ledger: Ledger) -> None:
    """Two new files, one of them empty."""
    await save(ledger, "a", b"first")
    await save(ledger, "b", b"")
    await ledger.desk.write_back.drain(60)


async def edit_and_edit_again(ledger: Ledger) -> None:
    """A change of an existing object, and a second one that finds the first on its way or done."""
    desk = ledger.desk
    (desk.files / "a").write_bytes(b"base")
    ledger.acknowledged("a", b"base")
    base_etag = PosixOrigin().stat(desk.key("a")).etag
    match = {"inode": 7, "condition": ConditionKind.IF_MATCH}
    first = await save(ledger, "a", b"edited", base_etag=base_etag, **match)
    while (record := desk.journal.get(first)) is not None and record.state is StagedState.SEALED:
        await desk.write_back.changed()
    record = desk.journal.get(first)
    base_etag = desk.etag("a") if record is None else record.base_etag
    await save(ledger, "a", b"edited again", base_etag=base_etag, **match)
    await desk.write_back.drain(60)


async def rename_at_any_time(ledger: Ledger) -> None:
    """A file is renamed while it goes up, over another that goes up as well."""
    desk = ledger.desk
    staged_id = await save(ledger, "t.tmp", b"A")
    await save(ledger, "t", b"")
    while (record := desk.journal.get(staged_id)) is not None and record.state is StagedState.SEALED:
        await desk.write_back.changed()
    if desk.journal.get(staged_id) is not None:
        await rename(ledger, staged_id, "t.tmp", "t", b"A")
    await desk.write_back.drain(60)


async def unlink_at_any_time(ledger: Ledger) -> None:
    """Files are removed before, while and after they go up, and one name is used again."""
    desk = ledger.desk
    early = await save(ledger, "early", b"1")
    await unlink(ledger, early, "early")
    late = await save(ledger, "late", b"2")
    while (record := desk.journal.get(late)) is not None and record.state is StagedState.SEALED:
        await desk.write_back.changed()
    await unlink(ledger, late, "late")
    await save(ledger, "late", b"second life")
    await desk.write_back.drain(60)


async def publish(ledger: Ledger) -> None:
    """A client's file is invisible until its seal."""
    desk = ledger.desk
    staged_id = await desk.stage("c", b"client", published=False)
    await desk.write_back.sync(staged_id)
    ledger.begins("c", b"client")
    await desk.write_back.seal(staged_id)
    ledger.acknowledged("c", b"client")
    await desk.write_back.drain(60)


async def write_in_place(ledger: Ledger) -> None:
    """A sealed file is opened again and shortened."""
    desk = ledger.desk
    ledger.begins("a", b"long content")
    staged_id = await desk.stage("a", b"long content", inode=7)
    await desk.write_back.sync(staged_id)
    await desk.write_back.seal(staged_id)
    ledger.acknowledged("a", b"long content")
    if await desk.write_back.unseal(staged_id):
        ledger.begins("a", b"")
        ledger.begins("a", b"short")
        file = desk.staging.open(staged_id)
        file.truncate(0)
        file.write(0, b"short")
        await desk.write_back.seal(staged_id, sync=True)
        ledger.acknowledged("a", b"short")
    await desk.write_back.drain(60)


Scenario = Callable[[Ledger], Awaitable[None]]
SCENARIOS: list[Scenario] = [
    saves,
    edit_and_edit_again,
    rename_at_any_time,
    unlink_at_any_time,
    publish,
    write_in_place,
]


def wired(root: Path, power: Power) -> Desk:
    return Desk(
        root,
        disk=StoppingDisk(power),
        origin=stopping_origin(power, PosixOrigin()),
        concurrency=2,
        make_journal=stopping_journal(power),
        make_shelf=stopping_shelf(power),
    )


def pull_the_plug(desk: Desk, *, notes_survive: bool = True) -> None:
    desk.journal._env.close()
    desk.journal._pending.close()
    if not notes_survive:
        for path in desk.journal.directory.glob("pending.*"):
            os.truncate(path, 0)
    desk.staging.close()


async def check(root: Path, ledger: Ledger, hint: str) -> None:
    """Start anew and drain: every acknowledged byte is at the origin, and no record or file is left."""
    desk = Desk(root)
    await desk.write_back.recover()
    async with desk.running():
        result = await desk.write_back.drain(60)
        await desk.write_back.drain(60)
    objects = desk.objects()
    for name, allowed in ledger.allowed.items():
        assert objects.get(name) in allowed, f"{hint}: {name} is {objects.get(name)!r}, allowed {allowed}"
    assert set(objects) <= set(ledger.allowed), hint
    assert result.left == [], f"{hint}: {result}"
    assert [*desk.journal.records(), *desk.journal.retractions()] == [], hint
    assert desk.staged_names() == set(), hint
    assert desk.staging.used_bytes == 0, hint
    desk.close()


@pytest.mark.parametrize("notes_survive", [True, False], ids=["killed", "machine down"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@in_trio
async def test_a_stop_at_any_call_loses_nothing_that_was_acknowledged(
    memory_path: Path, scenario: Scenario, notes_survive: bool
) -> None:
    stop_at = 0
    while True:
        stop_at += 1
        root = memory_path / str(stop_at)
        root.mkdir()
        power = Power(stop_at)
        try:
            desk = wired(root, power)
        except Stop:
            continue
        ledger = Ledger(desk)
        stopped = await run_until_stopped(desk, power, partial(scenario, ledger))
        pull_the_plug(desk, notes_survive=notes_survive)
        await check(root, ledger, f"{scenario.__name__} stopped at call {stop_at} ({power.last})")
        if not stopped:
            break
    assert stop_at > 20


@pytest.mark.parametrize("first_stop", [9, 13, 17, 21, 25, 29])
@in_trio
async def test_a_stop_at_any_call_of_the_recovery_is_repaired_by_the_next_one(
    memory_path: Path, first_stop: int
) -> None:
    stop_at = 0
    stopped = True
    while stopped:
        stop_at += 1
        root = memory_path / str(stop_at)
        root.mkdir()
        power = Power(first_stop)
        desk = wired(root, power)
        ledger = Ledger(desk)
        await run_until_stopped(desk, power, partial(rename_at_any_time, ledger))
        pull_the_plug(desk)

        power = Power(stop_at)
        try:
            second = wired(root, power)
        except Stop:
            continue

        async def recover_and_drain(second: Desk = second) -> None:
            await second.write_back.recover()
            await second.write_back.drain(60)

        stopped = await run_until_stopped(second, power, recover_and_drain)
        pull_the_plug(second)
        await check(root, ledger, f"first stop {first_stop}, second stop {stop_at} ({power.last})")
