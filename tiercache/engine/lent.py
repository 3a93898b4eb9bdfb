"""Files that the kernel writes by itself: what it does not tell us of is looked for from time to time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from tiercache.engine.live import LiveInode
from tiercache.errors import TierCacheError
from tiercache.journal import StagedRecord
from tiercache.model import OriginId

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

MAPPED = "a program has it open or mapped for writing"
"""Why a file that is closed does not go up."""


class Lent:
    """Accounts for what it wrote without asking for room, and seals what was closed while somebody had it mapped."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._show_mapped = engine.metrics.staged_mapped_files

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(self._engine.config.staging.mapped_check_s)
            for live, record in list(self._lent()):
                with suppress(TierCacheError):  # told at the file's next fsync or close
                    self._engine.staging.measure(record.id)
                if not live.writers:
                    await self._engine.seal_if_closed(record)
            self._show_mapped.set(sum(1 for live, _ in self._lent() if not live.writers))

    def give_up(self) -> None:
        """The mounts are gone, by force where they were in use: what is there goes up, whoever still has it open."""
        for live, _ in list(self._lent()):
            live.may_be_mapped = False

    def _lent(self) -> Iterator[tuple[LiveInode, StagedRecord]]:
        for tree in self._engine.trees:
            for live in tree.live:
                record = self._engine.journal.get(live.staged.id) if live.staged is not None else None
                if live.may_be_mapped and record is not None:
                    yield live, record

    def is_mapped(self, origin: OriginId, inode: int) -> bool:
        """Whether a file waits for a program that has it mapped."""
        tree = self._engine.trees.get(origin)
        live = tree.live.get(inode) if tree is not None else None
        return live is not None and live.may_be_mapped and not live.writers
