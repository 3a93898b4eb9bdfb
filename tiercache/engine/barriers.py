"""Barriers: wait until the newest bytes of names have reached a level, with progress, a deadline and an honest end."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from tiercache.engine.entries import attributes_of
from tiercache.engine.lent import MAPPED
from tiercache.engine.live import live_entry
from tiercache.engine.names import show
from tiercache.errors import Conflict, Lost, TierCacheError, UploadFailed
from tiercache.journal import StagedRecord
from tiercache.model import Durability, Key, OriginId, StagedState, parent_of
from tiercache.writeback.succession import shown

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

AT_ONCE = 16
"""Files that are synced or waited for at a time: their commits to the journal become one."""

LOOK_AGAIN_S = 0.5
"""How long a file that is open for writing is left alone before it is looked at again."""


TOLD_MAX = 50
"""Files that are named while a barrier waits."""


Names = dict[tuple[OriginId, Key], str]
"""Names of origins, and how whoever asks has spelled them: empty for the origin's own spelling."""


class Reached(NamedTuple):
    """How many files have reached the level, and the path and the reason of each that has not."""

    done: int
    left: list[dict[str, str]]
    in_time: bool
    """False when the deadline was the reason."""


class Barrier:
    """One run over the staged files that lie at or below names of origins; over all of them where none are given.

    A file that is open for writing is synced as it is, but goes to the origin when it is closed: until then it is
    waited for. What is written to the names meanwhile is waited for too.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names | None,
        level: Callable[[StagedRecord], Durability],
    ) -> None:
        self._engine = engine
        self._names = names
        self._level = level
        self._seen: set[int] = set()
        self._synced: set[int] = set()
        self._failed: dict[int, str] = {}
        self._hurry = ExitStack()
        self._hurries = False

    async def run(self, deadline_s: float) -> Reached:
        engine = self._engine
        with self._hurry, trio.move_on_after(deadline_s) as scope:
            await engine.mounts.settled()
            while True:
                pending = [record for record in self._unfinished() if record.id not in self._failed]
                if any(self._level(record) is Durability.ORIGIN for record in pending):
                    self._hurry_once()
                if pending:
                    await self._bring_all(pending)
                elif self._old_names_go():
                    await engine.writeback.changed()
                else:
                    break
        left = self._unfinished()
        told = [{"path": self._path(record), "error": self._reason(record)} for record in left]
        return Reached(len(self._seen) - len(left), told, not scope.cancelled_caught)

    def progress(self) -> dict[str, Any]:
        """What is left to do, in the shape of a drain's reports."""
        left, writeback = self._unfinished(), self._engine.writeback
        told = [
            {"path": self._path(r), "sent_bytes": writeback.sent_bytes(r), "last_error": r.last_error}
            for r in left[:TOLD_MAX]
        ]
        return {"files": len(left), "bytes": sum(record.size_bytes for record in left), "list": told}

    def _path(self, record: StagedRecord) -> str:
        """As whoever asks has named what it lies in, else as the origin spells it."""
        name = self._name_over(record)
        given = self._names[name] if self._names is not None and name is not None else ""
        if not given or name is None:
            return self._engine.status_of.spell(record.origin, record.key)
        below = os.fsdecode(record.key[len(name[1]) :].strip(b"/"))
        return os.path.join(given, below) if below else given

    # -- which --------------------------------------------------------------------------------------

    def _unfinished(self) -> list[StagedRecord]:
        """The staged files that are meant and have not reached their level."""
        chosen = [record for record in self._engine.journal.records() if record.published and self._means(record)]
        self._seen.update(record.id for record in chosen)
        return [record for record in chosen if not self._has_reached(record)]

    def _old_names_go(self) -> bool:
        """Whether the origin still has something under an old name of these files that is about to be removed."""
        engine = self._engine
        return any(
            (self._means(row) or row.heir in self._seen)
            and self._level(row) is Durability.ORIGIN
            and engine.writeback.removes_still(row)
            for row in engine.journal.retractions()
        )

    def _means(self, record: StagedRecord) -> bool:
        return self._names is None or self._name_over(record) is not None

    def _name_over(self, record: StagedRecord) -> tuple[OriginId, Key] | None:
        """The name that a file is at or below."""
        key = record.key
        while self._names is not None:
            if (record.origin, key) in self._names:
                return record.origin, key
            if not key:
                break
            key = parent_of(key)
        return None

    def _has_reached(self, record: StagedRecord) -> bool:
        level = self._level(record)
        return level is Durability.MEMORY or (level is Durability.LOCAL and record.id in self._synced)

    def _hurry_once(self) -> None:
        if not self._hurries:
            self._hurries = True
            self._hurry.enter_context(self._engine.writeback.hurrying(self._hurried))

    def _hurried(self, record: StagedRecord) -> bool:
        return self._means(record) and self._level(record) is Durability.ORIGIN

    # -- bringing -----------------------------------------------------------------------------------

    async def _bring_all(self, records: list[StagedRecord]) -> None:
        slots = trio.CapacityLimiter(AT_ONCE)

        async def bring(record: StagedRecord) -> None:
            async with slots:
                try:
                    await (self._upload(record) if self._level(record) is Durability.ORIGIN else self._sync(record))
                except TierCacheError as error:
                    self._failed[record.id] = str(error)

        async with trio.open_nursery() as nursery:
            for record in records:
                nursery.start_soon(bring, record)

    async def _sync(self, record: StagedRecord) -> None:
        if self._engine.writeback.durable(record.id) >= Durability.LOCAL:
            self._synced.add(record.id)
            return
        tree = self._engine.trees.get(record.origin)
        live = tree.live.get(record.inode) if tree is not None else None
        newest = live is not None and live.staged is not None and live.staged.id == record.id
        attributes = attributes_of(live_entry(live)) if live is not None and newest else None
        await self._engine.writeback.sync(record.id, attributes=attributes)
        self._synced.add(record.id)

    async def _upload(self, record: StagedRecord) -> None:
        engine = self._engine
        if not engine.uploads(record):
            raise UploadFailed(f"{show(record.key)}: its profile {record.profile} keeps it on this node")
        while (now := engine.journal.get(record.id)) is not None:
            if now.state is StagedState.STAGED:
                await engine.seal_if_closed(now)
                if (now := engine.journal.get(record.id)) is not None and now.state is StagedState.STAGED:
                    with trio.move_on_after(LOOK_AGAIN_S):
                        await engine.writeback.changed()
                continue
            try:
                await engine.writeback.wait(now.id)
            except (Conflict, Lost):
                raise
            except UploadFailed:
                again = engine.journal.get(now.id)
                if again is None or again.state is not StagedState.STAGED:
                    raise  # else it was opened again while we waited

    def _reason(self, record: StagedRecord) -> str:
        told = self._failed.get(record.id) or record.last_error
        if told:
            return told.removeprefix(f"{show(record.key)}: ").removeprefix(f"{shown(record)}: ")
        if record.state is not StagedState.STAGED:
            return "is on its way"
        return MAPPED if self._engine.lent.is_mapped(record.origin, record.inode) else "is open for writing"
