"""Operations that wait until bytes have reached a level, with reports on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import trio

from tiercache.engine.barriers import Barrier
from tiercache.engine.engine import Engine
from tiercache.engine.namespace import Namespace
from tiercache.engine.promises import level_of
from tiercache.engine.requests.registry import Call, Nature, operation
from tiercache.errors import Absent, TierCacheError
from tiercache.journal import StagedRecord
from tiercache.model import Durability, Key, OriginId

PROGRESS_S: Final = 0.25
"""How often a long operation reports."""

T = TypeVar("T")


@operation(Nature.LONG)
async def wait_durable(
    call: Call, *, namespace: int, keys: list[bytes], level: str, deadline_s: float
) -> dict[str, Any]:
    """Wait until what is at or below the keys has reached a level; ``""``: what fsync promises of each file. Answers
    with ``done``, ``left`` (path and error of each) and ``in_time``."""
    space = call.namespace(namespace)
    names = [_named(call.engine, space, key) for key in keys]
    wanted = level_of(level) if level else None

    def level_for(record: StagedRecord) -> Durability:
        xattrs = record.attributes.xattrs if record.attributes is not None else ()
        return space.promises.of(record.key, xattrs).fsync if wanted is None else wanted

    return await _wait(call, Barrier(call.engine, names, level_for), deadline_s)


@operation(Nature.LONG)
async def drain_paths(call: Call, *, paths: list[str], level: str, deadline_s: float) -> dict[str, Any]:
    """Wait until what is at or below local paths under mounts, or URLs, has reached a level; everything where no path
    is given. Answers with ``done``, ``left`` (path and error of each) and ``in_time``."""
    wanted = level_of(level)
    names = None
    if paths:
        names = [await _found(call.engine, path) for path in paths]
    return await _wait(call, Barrier(call.engine, names, lambda record: wanted), deadline_s)


async def _found(engine: Engine, path: str) -> tuple[OriginId, Key]:
    namespace, key = await engine.status_of.find(path)
    try:
        await namespace.lookup(key)
    except Absent:
        raise Absent(f"{path}: no such file or directory") from None
    return _named(engine, namespace, key)


def _named(engine: Engine, namespace: Namespace, key: Key) -> tuple[OriginId, Key]:
    """The name by which the journal knows what ``key`` names: another one of a hard-linked file."""
    entry = namespace.entry(key)
    record = engine.journal.get(entry.staged) if entry is not None and entry.staged else None
    return namespace.origin_id, record.key if record is not None else key


async def _wait(call: Call, run: Barrier, deadline_s: float) -> dict[str, Any]:
    """Wait, and tell what is left meanwhile."""
    return (await reporting(call, run.progress, lambda: run.run(deadline_s)))._asdict()


async def reporting(call: Call, report: Callable[[], dict[str, Any]], wait: Callable[[], Awaitable[T]]) -> T:
    """Send reports while something is waited for."""
    answers: list[T] = []
    failure: TierCacheError | None = None

    async def send_reports() -> None:
        while True:
            await trio.sleep(PROGRESS_S)
            await call.send("progress", report())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_reports)
        try:
            answers.append(await wait())
        except TierCacheError as error:
            # Carried out by hand: a nursery would wrap it into a group.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answers[0]
