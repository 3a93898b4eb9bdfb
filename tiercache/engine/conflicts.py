"""What becomes of a file that others changed at the origin while it was changed here."""

from __future__ import annotations

import time

from tiercache.engine.commits import withdraw
from tiercache.engine.entries import absent_entry
from tiercache.engine.names import show
from tiercache.engine.parting import Parting
from tiercache.engine.parts import Parts
from tiercache.engine.renames import Renames
from tiercache.engine.tree import Tree
from tiercache.errors import InvalidArgument
from tiercache.journal import StagedRecord
from tiercache.model import Keep, Key, StagedState, parent_of


class Conflicts:
    """Of one namespace."""

    def __init__(self, tree: Tree, renames: Renames, parting: Parting, parts: Parts) -> None:
        self._tree = tree
        self._parting = parting
        self._renames = renames
        self._journal = parts.journal
        self._writeback = parts.writeback

    async def resolve(self, key: Key, keep: Keep) -> Key:
        """End the conflict, or the loss, of a file; the name that our bytes have now, empty if none. InvalidArgument
        for a file that is in no conflict, and where the bytes to be kept are lost."""
        record = self._find(key)
        if record is None:
            raise InvalidArgument(f"{show(key)}: is in no conflict")
        if record.state is StagedState.LOST and keep is not Keep.THEIRS:
            raise InvalidArgument(f"{show(key)}: {record.last_error}; only --keep theirs is left")
        if record.torn and keep is Keep.BOTH:
            raise InvalidArgument(f"{show(key)}: {record.last_error}; nobody else changed it: --keep ours, or theirs")
        match keep:
            case Keep.OURS:
                await self._writeback.insist(record.id)
                return key
            case Keep.THEIRS:
                await self._give_up(key, record)
                return b""
            case Keep.BOTH:
                beside = key + time.strftime(".conflict-%Y%m%dT%H%M%SZ", time.gmtime()).encode()
                await self._renames.rename(key, beside, no_replace=True, exchange=False, keep_directory=True)
                return beside

    def _find(self, key: Key) -> StagedRecord | None:
        """The newest of the name."""
        records = [record for record in self._journal.at(self._tree.origin_id, key) if record.published]
        stuck = bool(records) and records[-1].state in (StagedState.CONFLICT, StagedState.LOST)
        return records[-1] if stuck else None

    async def _give_up(self, key: Key, record: StagedRecord) -> None:
        tree = self._tree
        async with tree.hold(key):
            entry = tree.entry(key)
            if record.state is StagedState.LOST or entry is None or entry.staged != record.id:
                await self._journal.drop(record.id)
                withdraw(tree, record)
                return
            entry = await self._parting.prepare(key, entry)
            self._writeback.give_back(record.id)
            await self._writeback.cancel(record.id)
            tree.put(key, absent_entry(0))  # in doubt: the next lookup asks the origin
            tree.catalog.forget_listing(tree.origin_id, parent_of(key))
            self._parting.done(key, entry)
            self._parting.drop(entry)
