"""Staged bytes give way to what is about to be written under their name at the origin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from tiercache.engine.parts import Parts
from tiercache.engine.tree import Tree
from tiercache.engine.writes import Writes
from tiercache.errors import TierCacheError
from tiercache.model import Capability, Entry


class GivingWay:
    """Of one namespace."""

    def __init__(self, tree: Tree, writes: Writes, parts: Parts) -> None:
        self._tree = tree
        self._writes = writes
        self._journal = parts.journal
        self._writeback = parts.writeback

    @asynccontextmanager
    async def during(self, replaced: Entry | None, mover: Entry | None = None) -> AsyncIterator[None]:
        """For a block that writes the key of a file at the origin. What is staged of the file cannot land on top of it,
        is given up when the block has done its work, and goes up after all when it failed. ``mover``: the block renames
        this file in one step, after which there is no way back: should we crash, its etag tells that it happened."""
        staged_id = replaced.staged if replaced is not None else 0
        renamed = mover is not None and self._tree.can(Capability.RENAME)
        try:
            if staged_id:
                await self._writeback.hold_back(staged_id, yields_to=mover.etag if mover and renamed else "")
            yield
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.send_after_all(staged_id)
            raise
        if staged_id:
            await self._writeback.cancel(staged_id, wait=False, durable=not renamed)

    async def send_after_all(self, *staged_ids: int) -> None:
        """The change for which these files were held back has ended. Those that are open are sealed when closed."""
        for staged_id in staged_ids:
            self._writeback.let_go(staged_id)
            record = self._journal.get(staged_id)
            live = self._tree.live.get(record.inode) if record is not None else None
            if live is not None and not live.writers:
                with suppress(TierCacheError):  # told at the file's next fsync or close, not instead of the failure
                    await self._writes.closes.seal_held(live)
