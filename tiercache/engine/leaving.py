"""The end in order: bring to the origins what the deadline allows, and tell in the log what stays on this node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from tiercache.journal import StagedRecord
from tiercache.units import format_count, format_size

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

TOLD_EVERY_S = 5.0
"""How often the log tells how much is left."""

NAMED_MAX = 20
"""Files that are named one by one."""

log = logging.getLogger("tiercache.engine")


async def drain_and_tell(engine: Engine, deadline_s: float, hurry: trio.Event) -> int:
    """Drain for so long, or until ``hurry``; how many files are left, which the next engine goes on with."""
    async with trio.open_nursery() as nursery:

        async def until_hurry() -> None:
            await hurry.wait()
            log.warning("ending at once")
            nursery.cancel_scope.cancel()

        if deadline_s > 0:
            nursery.start_soon(until_hurry)
            nursery.start_soon(_tell_progress, engine)
            await engine.drain(deadline_s)
        nursery.cancel_scope.cancel()
    left = _left(engine)
    _tell_left(engine, left)
    return len(left)


def _left(engine: Engine) -> list[StagedRecord]:
    return [record for record in engine.journal.records() if record.published and engine.uploads(record)]


async def _tell_progress(engine: Engine) -> None:
    while True:
        await trio.sleep(TOLD_EVERY_S)
        left = _left(engine)
        log.info("draining: %s, %s left", format_count(len(left), "file"), _size(left))


def _tell_left(engine: Engine, left: list[StagedRecord]) -> None:
    for record in left[:NAMED_MAX]:
        reason = f": {record.last_error}" if record.last_error else ""
        log.warning(
            "not in the origin: %s, %s%s", engine.status_of.spell(record.origin, record.key), record.state, reason
        )
    if left:
        log.warning(
            "%s, %s: kept in the journal of %s; tiercache drain --cache-dir %s goes on with them",
            format_count(len(left), "file"),
            _size(left),
            engine.config.cache_dir,
            engine.config.cache_dir,
        )


def _size(left: list[StagedRecord]) -> str:
    return format_size(sum(record.size_bytes for record in left))
