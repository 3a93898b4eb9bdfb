"""Operations that wait until bytes have reached a level, with reports on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import trio

from tiercache.engine.barriers import Barrier, Names
from tiercache.engine.engine import Engine
from tiercache.engine.names import show
from tiercache.engine.namespace import Namespace
from tiercache.engine.places import ASK_LEAST_S, ASK_S, Asker, Place
from tiercache.engine.promises import level_of
from tiercache.engine.requests.registry import Call, Nature, operation
from tiercache.errors import Absent, Busy, TierCacheError
from tiercache.journal import StagedRecord
from tiercache.model import Durability, Key, OriginId

PROGRESS_S: Final = 0.25
"""How often a long operation reports."""

T = TypeVar("T")


@operation(Nature.LONG)
async def wait_durable(
    call: Call, *, namespace: int, keys: list[bytes], level: str, deadline_s: float, must_exist: bool = True
) -> dict[str, Any]:
    """Wait until what is at or below the keys has reached a level; ``""``: what fsync promises of each file. Another
    origin that is open under the same URL counts too: a mount may have it with other options. Absent for a key that
    none of them knows, if it ``must_exist``. Answers with ``done``, ``left`` (path and error of each), ``in_time``."""
    until_s = trio.current_time() + deadline_s
    engine, space = call.engine, call.namespace(namespace)
    wanted = level_of(level) if level else None

    def level_for(record: StagedRecord) -> Durability:
        xattrs = record.attributes.xattrs if record.attributes is not None else ()
        seen_by = space if record.origin == space.origin_id else engine.mounts.namespace_of(record.origin, record.key)
        return seen_by.promises.of(record.key, xattrs).fsync if wanted is None else wanted

    names: Names = {}
    for key in keys:
        found = await _everywhere(engine, space, key, until_s)
        if must_exist and not found:
            raise Absent(f"{show(key)}: no such file or directory")
        names |= found or {(space.origin_id, key): ""}
    return await _wait(call, Barrier(engine, names, level_for), until_s)


@operation(Nature.LONG)
async def drain_paths(
    call: Call, *, paths: list[str], level: str, deadline_s: float, askers: dict[str, list[Any]] | None = None
) -> dict[str, Any]:
    """Wait until what is at or below local paths under mounts, or URLs, has reached a level; everything where no path
    is given. ``askers``: the fields of ``Asker`` for URLs. Answers with ``done``, ``left`` (path and error of each)
    and ``in_time``."""
    until_s = trio.current_time() + deadline_s
    wanted = level_of(level)
    names: Names | None = None
    if paths:
        names = {}
        for path in paths:
            asker = Asker(*(askers or {}).get(path, ()))
            names |= _names_of(call.engine, await call.engine.places.look(path, asker, within_s=_within_s(until_s)))
    return await _wait(call, Barrier(call.engine, names, lambda record: wanted), until_s)


async def _everywhere(engine: Engine, space: Namespace, key: Key, until_s: float) -> Names:
    """What a key names in the origin of a client and in those that are open under the same URL. Absent."""
    names: Names = {}
    for tree in engine.trees.alike(space.tree):
        seen_by = space if tree is space.tree else engine.mounts.namespace_of(tree.origin_id, key)
        place = Place(show(key), seen_by, key, None)
        with suppress(Absent, *(() if tree is space.tree else (Busy,))):
            place = await engine.places.follow(place, within_s=_within_s(until_s))
            names |= dict.fromkeys(_names_of(engine, place), "")
    return names


def _within_s(until_s: float) -> float:
    return min(ASK_S, max(ASK_LEAST_S, until_s - trio.current_time()))


def _names_of(engine: Engine, place: Place) -> Names:
    return {_named(engine, place.namespace, key): place.given for key in place.keys}


def _named(engine: Engine, namespace: Namespace, key: Key) -> tuple[OriginId, Key]:
    """The name by which the journal knows what ``key`` names: another one of a hard-linked file."""
    entry = namespace.entry(key)
    record = engine.journal.get(entry.staged) if entry is not None and entry.staged else None
    return namespace.origin_id, record.key if record is not None else key


async def _wait(call: Call, run: Barrier, until_s: float) -> dict[str, Any]:
    """Wait, and tell what is left meanwhile."""
    deadline_s = max(0.0, until_s - trio.current_time())
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
