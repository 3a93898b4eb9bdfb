"""What becomes of staged files when their names change: cancelled, renamed, held back until the origin has changed."""

from __future__ import annotations

from collections.abc import Container, Iterable

from tiercache.journal import ConditionKind, DirectoryMove, Journal, StagedRecord, next_upload_id
from tiercache.model import Key, OriginId, StagedState, is_below
from tiercache.staging import Staging
from tiercache.writeback.seals import Seals
from tiercache.writeback.succession import (
    inherited,
    is_newer,
    retraction_of,
    sent_while_written,
    taken_over,
    waited_for_as,
)
from tiercache.writeback.uploader import Uploader


class StagedNames:
    """Used by whoever holds the names."""

    def __init__(self, journal: Journal, staging: Staging, uploader: Uploader, seals: Seals) -> None:
        self._journal = journal
        self._staging = staging
        self._uploader = uploader
        self._seals = seals

    async def cancel(self, staged_id: int, *, wait: bool = True, durable: bool = True) -> bool:
        """The name is unlinked or replaced: its bytes never go up, and what is going up now does not stay.

        The file's name in staging goes as well; whoever has it open keeps it until ``Staging.delete``. With ``wait``
        it returns when no upload of ours can land under the key any more, as one must know before writing the key at
        the origin; an origin that hangs makes it wait for the origin's timeout. Without, what lands late is removed
        when it does. Not ``durable``: the origin's change tells after a crash what has happened, and the journal
        follows with its next commit. False if the record is gone already. When the journal fails, nothing has happened.
        """
        record = self._journal.get(staged_id)
        if record is None:
            return False
        gone = [*self._obsolete(record), *self._family(record)]
        retractions = [self._retraction(member) for member in gone if member.attempts]
        retractions += self._passed_on(record, gone)
        self._forget(gone)
        if durable:
            await self._change(put=retractions, drop=gone, stopped=gone)
        else:
            self._journal.put_later(put=retractions, drop=[member.id for member in gone])
        self._remove_files(gone)
        self._uploader.retractions.wake(record.lane)
        self._uploader.changed.ring()
        if wait:
            await self.settle(record.origin, record.key)
        return True

    async def _change(
        self, *, put: Iterable[StagedRecord], drop: Iterable[StagedRecord], stopped: Iterable[StagedRecord]
    ) -> None:
        """Change the journal for files whose uploads were stopped for it: all of it, or nothing and they go on."""
        try:
            await self._journal.apply(put=put, drop=[record.id for record in drop], undo=True)
        except BaseException:
            self._uploader.resume(stopped)
            raise

    async def hold_back(self, staged_id: int, *, yields_to: str = "") -> bool:
        """Nothing goes up under the name of this file, neither it nor an earlier one, until it is sealed again or
        ``let_go``: returns when nothing can land any more, which a hanging origin makes last until its timeout.
        ``yields_to``: the etag of what is about to be renamed over it. False if it has arrived, or is gone."""
        for older in self._older(staged_id):
            await self._hold(older.id)
        # The newest one is opened, so that a crash leaves it to be sealed again; its earlier ones wait behind it.
        held = await (self._hold(staged_id) if self._is_overtaken(staged_id) else self.reopen(staged_id))
        record = self._journal.get(staged_id)
        if held and yields_to and record is not None:
            below = [*self._older(staged_id), record]
            await self._journal.put_many([other._replace(yields_to=yields_to) for other in below])
        return held

    async def reopen(self, staged_id: int) -> bool:
        """Nothing of this one goes up until it is sealed again. False if it has arrived, or is gone."""
        while (record := self._journal.get(staged_id)) is not None:
            if record.state is StagedState.UPLOADING or record.committed_etag:
                self._uploader.attempts.stop(staged_id)
                await self._uploader.changed.heard()
            elif record.state is not StagedState.SEALED or await self._seals.unseal(staged_id, keep_torn=True):
                return True
        return False

    async def _hold(self, staged_id: int) -> bool:
        while (record := self._journal.get(staged_id)) is not None:
            self._uploader.turns.bar(staged_id)
            if record.state is not StagedState.UPLOADING and not record.committed_etag:
                return True
            self._uploader.attempts.stop(staged_id)
            await self._uploader.changed.heard()
        self._uploader.turns.let_go(staged_id)
        return False

    def let_go(self, staged_id: int) -> None:
        """The change for which this was held back has ended: it has its turn again, and what waits behind it."""
        record = self._journal.get(staged_id) or self._journal.retraction(staged_id)
        for held in [*self._older(staged_id), *([record] if record is not None else [])]:
            self._uploader.turns.let_go(held.id)
            if held.state in (StagedState.SEALED, StagedState.CANCELLED):
                self._uploader.turns.add(held)

    async def hold_leftovers(self, origin: OriginId, directory: Key) -> list[StagedRecord]:
        """What cancelled uploads and renamed files left below a directory that is about to be renamed, and cannot be
        removed just now, stays as it is until ``let_go``."""
        await self.settle_below(origin, directory)
        ids = [r.id for r in self._journal.retractions() if r.origin == origin and is_below(r.key, directory)]
        for staged_id in ids:
            self._uploader.turns.bar(staged_id)
        await self.settle_below(origin, directory)  # one that had its turn already ends
        return [record for staged_id in ids if (record := self._journal.retraction(staged_id)) is not None]

    def overwrites(self, staged_id: int) -> str | None:
        """What the upload of a file would replace: the etag of it, "" for nothing, None for whatever is there."""
        record = self._journal.get(staged_id)
        if record is None or record.condition is ConditionKind.ALWAYS:
            return None
        return "" if record.condition is ConditionKind.IF_ABSENT else record.base_etag or None

    def replaced(self, leftovers: Iterable[StagedRecord], keys: Container[Key]) -> None:
        """Other objects were put where some of these were: there is nothing left to be removed under these names."""
        gone = [record.id for record in leftovers if record.key in keys]
        for staged_id in gone:
            self._uploader.forget(staged_id)
        self._journal.put_later(drop=gone)

    def taken(self, origin: OriginId, key: Key) -> None:
        """The name stands for something new at the origin: what an unfinished change of a directory left is not there
        any more."""
        rows = [record for record in self._journal.retractions(origin, key) if record.part_of is not None]
        self.replaced(rows, {key})

    def move_leftover(self, staged_id: int, key: Key) -> None:
        """The origin has moved it along with its directory."""
        record = self._journal.retraction(staged_id)
        if record is not None:
            self._journal.put_later(put=[record._replace(key=key, moves=None)])

    async def moving(self, staged_ids: Iterable[int], move: DirectoryMove | None) -> None:
        """The origin is about to rename a directory above these files, which are held back; None: it has not done it.
        Should we crash in between, nothing of them goes up before it is known where to."""
        found = [self._journal.get(staged_id) or self._journal.retraction(staged_id) for staged_id in staged_ids]
        records = [record for record in found if record is not None]
        if move is None:
            self._journal.put_later(put=[record._replace(moves=None) for record in records])
        elif records:
            await self._journal.apply(put=[record._replace(moves=move) for record in records], undo=True)

    async def rename(
        self,
        staged_id: int,
        key: Key,
        *,
        base_etag: str = "",
        left_etag: str = "",
        keeps_directory: bool = False,
        durable: bool = True,
    ) -> bool:
        """The file has another name: it goes up there, and what is going up to the old one does not stay.

        ``base_etag``: the origin has moved what the bytes were made from along, and this is its etag there. Else the
        upload replaces whatever it finds; only a client's file that must be new still must be. ``left_etag``: the
        origin has this version under the old name, which is to be removed when the file has arrived under the new one;
        until it is, ``retractions`` tells the name. ``keeps_directory``: a marker stands for its directory then.
        Other staged files of the new name are replaced in the same transaction, as by ``cancel``, and those that had
        the old name before do not get it back. If any of these, or what is left at the origin, survived a power cut,
        the file is synced first, so that it does too (Lost when that fails). InUse for one that is sent while it is
        written: what the origin has of it has the old name. Returns without waiting for any upload's
        end. ``durable`` as with ``cancel``. False if the record is gone: then the object is to be moved; when the
        journal fails, nothing has happened.
        """
        record = self._journal.get(staged_id)
        if record is None:
            return False
        if key == record.key:
            return True
        if record.spilled:
            raise sent_while_written(record)
        if durable:
            before = record
            gone = [*self._obsolete(record), *self._replaced(record, key)]
            await self._seals.secure(staged_id, gone, left=bool(left_etag))
            record = self._journal.get(staged_id)
            if record is None:
                return False
            if record.base_etag != before.base_etag:
                left_etag = record.base_etag  # an earlier state of the file arrived meanwhile
        family, obsolete = self._family(record), self._obsolete(record)
        replaced = self._replaced(record, key)
        moved = [_moved(member, key, taken=self._staging.new_id(), base_etag=base_etag) for member in family]
        heir = moved[-1] = waited_for_as(moved[-1], [*obsolete, *replaced])
        gone = [*obsolete, *replaced]
        # In a conflict nothing under the old name is ours; and what a directory held has moved with it.
        waits = durable and (record.state is not StagedState.CONFLICT or record.torn)
        left = self._left_behind(record, [*family, *obsolete], left_etag, waits=waits, keeps_directory=keeps_directory)
        left += [self._retraction(member, replaced_by=heir.id) for member in replaced if member.attempts]
        known = {row.id: row for row in taken_over(self._journal.retractions(*heir.lane), heir)}
        for row in (row for member in gone for row in self._journal.left_by(member.id)):
            known[row.id] = known.get(row.id, row)._replace(heir=heir.id)
        left += known.values()
        stopped = [*family, *gone]
        self._forget(stopped)
        if durable:
            await self._change(put=[*moved, *left], drop=gone, stopped=stopped)
        else:
            self._journal.put_later(put=[*moved, *left], drop=[member.id for member in gone])
        self._remove_files(gone)
        for member in moved:
            current = self._journal.get(member.id)
            if current is not None and current.state is StagedState.SEALED:
                self._uploader.enqueue_sealed(current)
            self._uploader.state_changed(current or member)
        self._uploader.retractions.wake(record.lane)
        return True

    def _left_behind(
        self, record: StagedRecord, gone: list[StagedRecord], left_etag: str, *, waits: bool, keeps_directory: bool
    ) -> list[StagedRecord]:
        """What is to be removed under the old name of a file, if it ``waits`` when the origin has it under the new one:
        the version ``left_etag``, what the uploads of those that had the name bring, and what it was to replace."""
        left = []
        for member in gone:
            etag = left_etag if member.id == record.id else ""
            if member.attempts or etag:
                left.append(self._retraction(member, left_etag=etag))
        if not waits:
            return left
        rows = self._journal.retractions(*record.lane)
        left += [row for row in rows if row.replaced_by == record.id and not row.heir]
        return [row._replace(heir=record.id, keeps_directory=keeps_directory) for row in left]

    def _passed_on(self, record: StagedRecord, gone: list[StagedRecord]) -> list[StagedRecord]:
        """What files left that are given up for another one of their name: it waits for that one."""
        ids = {member.id for member in gone}
        others = [other for other in self._journal.at(*record.lane) if other.published and other.id not in ids]
        rows = [row for member in gone for row in self._journal.left_by(member.id)]
        return inherited(rows, others[-1]) if others else []

    def _replaced(self, record: StagedRecord, key: Key) -> list[StagedRecord]:
        """What loses a name that the file takes: a client's that is not published yet, and moves with its directory,
        takes none."""
        return [other for other in self._journal.at(record.origin, key) if other.published and record.published]

    async def relocate(self, staged_id: int, key: Key) -> bool:
        """The bytes go to the origin under another name of the same file, once they are sealed again. False when more
        of the file is on its way, or all of it has arrived."""
        record = self._journal.get(staged_id)
        if record is None or len(self._family(record)) > 1 or not await self.reopen(staged_id):
            return False
        record = self._journal.get(staged_id)
        if record is None:
            return False
        await self._journal.apply(put=[record._replace(key=key)], undo=True)
        return True

    def _forget(self, records: Iterable[StagedRecord]) -> None:
        for record in records:
            self._uploader.forget(record.id)
        self._uploader.changed.ring()
        self._staging.budget.recheck()

    def _remove_files(self, records: Iterable[StagedRecord]) -> None:
        for record in records:
            self._uploader.attempts.unlink_when_idle(record.id)

    def _retraction(self, record: StagedRecord, *, replaced_by: int = 0, left_etag: str = "") -> StagedRecord:
        return retraction_of(record, self._staging.new_id(), replaced_by=replaced_by, left_etag=left_etag)

    def _family(self, record: StagedRecord) -> list[StagedRecord]:
        """The staged files of one inode under one name: at most one that is going up and one that follows."""
        return [
            other
            for other in self._journal.at(*record.lane)
            if other.inode == record.inode and (other.published or other.id == record.id)
        ]

    def _obsolete(self, record: StagedRecord) -> list[StagedRecord]:
        """Those of other files that had the name before this one took it, and have not given way yet."""
        return [other for other in self._before(record) if other.inode != record.inode]

    def _older(self, staged_id: int) -> list[StagedRecord]:
        record = self._journal.get(staged_id)
        return [] if record is None else self._before(record)

    def _before(self, record: StagedRecord) -> list[StagedRecord]:
        """What is staged under its name and counts less than it; of a file that has no name yet nothing does."""
        if not record.published:
            return []
        return [other for other in self._journal.at(*record.lane) if other.published and is_newer(record, other)]

    def _is_overtaken(self, staged_id: int) -> bool:
        record = self._journal.get(staged_id)
        return record is not None and any(is_newer(other, record) for other in self._journal.at(*record.lane))

    def staged_ids(self, origin: OriginId, key: Key) -> set[int]:
        """What is on its way to the name, or may be: an id that is gone a moment later has arrived."""
        return {record.id for record in self._journal.at(origin, key) if record.published}

    def removes_still(self, retraction: StagedRecord) -> bool:
        """Whether something is about to be removed at the origin: nothing that waits, nor what has been refused."""
        return self._uploader.running and self._uploader.retractions.is_due(retraction)

    async def settle(self, origin: OriginId, key: Key, *, make_room: bool = False) -> None:
        """Return when no upload of ours to ``key`` is under way, and what a cancelled one left has been tried to be
        removed. To be called before the key is changed at the origin directly; at once when there is nothing. What
        waits for a renamed file stays; ``make_room``: it is removed all the same, being in the way."""
        lane = (origin, key)
        if make_room:
            self._uploader.retractions.hasten(self._journal.retractions(*lane))
        while self._uploader.turns.is_busy(lane) or self._retraction_is_due(lane):
            await self._uploader.changed.heard()

    async def settle_below(self, origin: OriginId, directory: Key, *, make_room: bool = False) -> None:
        """The same for every key under a directory that is about to be removed."""
        keys = {key for lane_origin, key in self._uploader.turns.busy_lanes if lane_origin == origin}
        keys |= {record.key for record in self._journal.retractions() if record.origin == origin}
        for key in sorted(keys):
            if is_below(key, directory):
                await self.settle(origin, key, make_room=make_room)

    def _retraction_is_due(self, lane: tuple[OriginId, Key]) -> bool:
        return any(self.removes_still(record) for record in self._journal.retractions(*lane))


def _moved(record: StagedRecord, key: Key, *, taken: int, base_etag: str) -> StagedRecord:
    """The record under another name, where nothing of it was ever sent."""
    moved = record._replace(
        key=key,
        taken=taken,
        base_etag=base_etag,
        attempts=0,
        committed_etag="",
        committed_ns=0,
        yields_to="",
        moves=None,
        parted=None,
    )
    if not base_etag:
        exclusive = not record.published and record.condition is ConditionKind.IF_ABSENT
        moved = moved._replace(condition=record.condition if exclusive else ConditionKind.ALWAYS, in_place=False)
    if record.attempts:
        moved = moved._replace(upload_id=next_upload_id(record.upload_id))
    if record.state in (StagedState.UPLOADING, StagedState.CONFLICT):
        moved = moved._replace(state=StagedState.SEALED, last_error="")
    return moved
