"""The journal: LMDB with durable commits below, a copy in memory above, which is authoritative in this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import lmdb
import trio

from tiercache import durable, fork
from tiercache.errors import Broken, DiskFull, JournalDamaged, NoSpace
from tiercache.full_disk import means_full_disk
from tiercache.journal.index import RecordIndex
from tiercache.journal.intents import Intent, Row, decode_row, encode_row
from tiercache.journal.pending import Change, Pending
from tiercache.journal.records import DamagedRow, StagedRecord
from tiercache.metrics import Metrics
from tiercache.model import Key, OriginId, StagedState

FORMAT = b"tiercache-journal-1"
INITIAL_MAP_BYTES = 64 * 1024 * 1024
COMMIT_BYTES = 64 * 1024
"""Room that is asked for when the disk is too full for a commit."""
MAX_MAP_BYTES = 64 * 1024 * 1024 * 1024

_ROWS = b"rows"
_ABOUT = b"about"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """One record per staged file, and one intent per directory that is being changed object by object. Used from one
    trio thread; commits run in a worker thread.

    ``put`` and ``drop`` change the memory copy at once and return when the change is durable. Callers that wait
    together share one commit. After a failed commit the memory copy stays as it is, every waiting caller gets the
    error, and the next commit writes what is still owed. A killed engine loses no change, durable or not: see
    ``pending``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        staging_directory: Path | None = None,
        metrics: Metrics | None = None,
        map_size_bytes: int = INITIAL_MAP_BYTES,
        boot_id: bytes | None = None,
    ) -> None:
        """Open or create. JournalDamaged, with the place of the staged bytes, if what is there cannot be trusted."""
        self.directory = directory
        self._staging_directory = staging_directory
        self._metrics = metrics
        self._records = RecordIndex()
        self._intents: dict[int, Intent] = {}
        # Ids whose row on disk differs from memory, each commit's work list; ordered for the sake of tests.
        self._owed: dict[int, None] = {}
        self._changed_count = 0
        self._durable_count = 0
        self._committing = trio.Lock()
        self._env_lock = threading.Lock()
        self.give_room: Callable[[int], bool] = lambda wanted_bytes: False
        """Asks others on the same disk for that much; whether they gave up any."""
        self.last_id = 0
        self.commits = 0
        self.rebooted = False
        """Whether the machine was started anew since the last recovery: unsynced bytes may be gone."""
        self._recovered = False
        self._env, self._rows, self._about = self._open(map_size_bytes)
        self._pid = os.getpid()
        fork.opened(self._env)
        self._boot_id = current_boot_id() if boot_id is None else boot_id
        try:
            self._pending = self._open_pending()
        except BaseException:
            self._close_env()
            raise
        try:
            self._load()
        except BaseException:
            self._pending.close()
            self._close_env()
            raise

    # -- reading --------------------------------------------------------------------------------------------------

    def get(self, staged_id: int) -> StagedRecord | None:
        """The record of a staged file; None once it is clean. Cancelled ones are told by ``retractions`` only."""
        record = self._records.get(staged_id)
        return None if record is None or record.state is StagedState.CANCELLED else record

    def records(self) -> Iterator[StagedRecord]:
        """All staged files, oldest first."""
        return iter([record for record in self._records.all() if record.state is not StagedState.CANCELLED])

    def at(self, origin: OriginId, key: Key) -> list[StagedRecord]:
        """The staged files of one name, that with the newest bytes last."""
        return [r for r in self._records.lane(origin, key) if r.state is not StagedState.CANCELLED]

    def retraction(self, staged_id: int) -> StagedRecord | None:
        record = self._records.get(staged_id)
        return record if record is not None and record.state is StagedState.CANCELLED else None

    def retractions(self, origin: OriginId | None = None, key: Key = b"") -> list[StagedRecord]:
        """Uploads whose result must not stay at the origin: of one name, or all."""
        pool = self._records.all() if origin is None else self._records.lane(origin, key)
        return [record for record in pool if record.state is StagedState.CANCELLED]

    def left_by(self, heir: int) -> list[StagedRecord]:
        """Of those the ones that wait until the origin has this file."""
        return self._records.left_by(heir)

    def intents(self) -> list[Intent]:
        """The moves and removals of directories that are under way, oldest first."""
        return [self._intents[intent_id] for intent_id in sorted(self._intents)]

    def _row(self, row_id: int) -> Row | None:
        return self._records.get(row_id) or self._intents.get(row_id)

    # -- changing -------------------------------------------------------------------------------------------------

    async def put(self, record: StagedRecord) -> None:
        """Add or replace one record. NoSpace, Broken."""
        await self.apply(put=(record,))

    async def drop(self, staged_id: int) -> None:
        """Remove one record; unknown ids are ignored."""
        await self.apply(drop=(staged_id,))

    async def put_many(self, records: Iterable[StagedRecord]) -> None:
        await self.apply(put=records)

    async def drop_many(self, staged_ids: Iterable[int]) -> None:
        await self.apply(drop=staged_ids)

    async def apply(self, *, put: Iterable[Row] = (), drop: Iterable[int] = (), undo: bool = False) -> None:
        """Several changes in one transaction. ``undo``: after a failed commit they have not happened in memory either,
        but for records that were changed again meanwhile."""
        await self._change(put, drop, undo=undo, durable=True)

    async def recovered(self, *, put: Iterable[Row], drop: Iterable[int]) -> None:
        """What a start makes of the records, and with it, in one transaction, that the start has seen this boot of the
        machine. Alone, that would let a start that does not get so far hide a power cut from the next one."""
        self._recovered = True
        await self.apply(put=put, drop=drop)

    async def note(self, *, put: Iterable[Row] = (), drop: Iterable[int] = (), undo: bool = False) -> None:
        """The same for what is not promised to survive a power cut: a killed engine does not lose it, and the commit
        follows by itself. Waits for the disk only when that cannot take the note."""
        await self._change(put, drop, undo=undo, durable=False)

    def note_now(self, put: Iterable[Row]) -> bool:
        """``note`` where nothing has to be waited for; else False, and nothing has changed."""
        if not self._pending.complete:
            return False
        put = list(put)
        before = {record.id: self._row(record.id) for record in put}
        self.put_later(put=put)
        if not self._pending.complete:  # the disk is full: whoever waits for the commit is told
            self._set_later(before)
        return self._pending.complete

    async def _change(self, put: Iterable[Row], drop: Iterable[int], *, undo: bool, durable: bool) -> None:
        wanted: dict[int, Row | None] = {**dict.fromkeys(drop), **{record.id: record for record in put}}
        before = {staged_id: self._row(staged_id) for staged_id in wanted}
        self._set_later(wanted)
        if not durable and self._pending.complete:
            return
        try:
            await self.flush()
        except BaseException:
            if undo:
                self._set_later({i: before[i] for i, record in wanted.items() if self._row(i) is record})
            raise

    def _set_later(self, records: Mapping[int, Row | None]) -> None:
        gone = [staged_id for staged_id, record in records.items() if record is None]
        self.put_later(put=[record for record in records.values() if record is not None], drop=gone)

    def put_later(self, *, put: Iterable[Row] = (), drop: Iterable[int] = ()) -> None:
        """Change the memory copy now; the disk follows with the next commit, whoever asks for it."""
        put, drop = list(put), [staged_id for staged_id in drop if self._row(staged_id) is not None]
        gone = [Change(staged_id, None) for staged_id in drop]
        self._note(gone + [Change(record.id, encode_row(record)) for record in put])
        for staged_id in drop:
            self._forget(staged_id)
        for record in put:
            self._remember(record)
        self._changed_count += 1

    def _note(self, changes: list[Change]) -> None:
        self._pending.append(changes)

    async def flush(self) -> None:
        """Return when every change made before this call is durable."""
        wanted = self._changed_count
        async with self._committing:
            if self._durable_count >= wanted:
                return
            covers, owed, pending = self._changed_count, list(self._owed), self._pending.commit_begins()
            self._owed.clear()
            rows = self._rows_of(owed)
            total = self._total()
            # Not to be interrupted: the commit goes on in its thread anyway, and its result decides what is owed.
            with trio.CancelScope(shield=True):
                try:
                    await self._commit_in_room(rows, total)
                except BaseException:
                    self._owed = dict.fromkeys([*owed, *self._owed])
                    raise
            self._durable_count = covers
            self._pending.committed(pending)

    async def _commit_in_room(self, rows: list[tuple[int, bytes | None]], total: int) -> None:
        while True:
            try:
                return await trio.to_thread.run_sync(self._commit, rows, total, self.last_id, self._recovered)
            except DiskFull:
                if not self.give_room(COMMIT_BYTES):
                    raise

    def _rows_of(self, staged_ids: Iterable[int]) -> list[tuple[int, bytes | None]]:
        rows = [(row_id, self._row(row_id)) for row_id in staged_ids]
        return [(row_id, None if row is None else encode_row(row)) for row_id, row in rows]

    def _total(self) -> int:
        return len(self._records) + len(self._intents)

    def _remember(self, record: Row) -> None:
        if isinstance(record, Intent):
            self._intents[record.id] = record
            self._owed[record.id] = None
            self.last_id = max(self.last_id, record.id)
            return
        self._records.put(record)
        self._owed[record.id] = None
        self.last_id = max(self.last_id, record.id, record.taken)

    def _forget(self, staged_id: int) -> None:
        if self._intents.pop(staged_id, None) is not None or self._records.remove(staged_id):
            self._owed[staged_id] = None

    def close(self) -> None:
        """Close the environment. Changes that nobody flushed are written first. A child of a fork closes nothing."""
        if self._pid != os.getpid():
            return
        try:
            if self._owed:
                self._commit(self._rows_of(self._owed), self._total(), self.last_id, self._recovered)
                self._owed.clear()
            self._pending.clear()
        finally:
            self._pending.close()
            self._close_env()

    def _close_env(self) -> None:
        fork.closed(self._env)
        self._env.close()

    # -- disk -----------------------------------------------------------------------------------------------------

    def _open(self, map_size_bytes: int) -> tuple[lmdb.Environment, lmdb._Database, lmdb._Database]:
        data = self.directory / "data.mdb"
        had_bytes = data.exists() and data.stat().st_size > 0
        if not had_bytes and self._staged_names():
            raise self._damaged("it is missing or empty")
        try:
            durable.make_directory(self.directory)
            size_bytes = max(map_size_bytes, 2 * data.stat().st_size if had_bytes else 0)
            env = lmdb.open(str(self.directory), map_size=size_bytes, max_dbs=2, mode=0o600)
            try:
                if had_bytes:
                    _pad_to_last_page(env, data)
                else:
                    durable.sync_directory(self.directory)  # LMDB syncs its file, not the name of it
                rows, about = env.open_db(_ROWS), env.open_db(_ABOUT)
            except BaseException:
                env.close()
                raise
        except lmdb.Error as error:
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise Broken(f"the journal {self.directory} cannot be opened: {error.strerror}") from error
        return env, rows, about

    def _open_pending(self) -> Pending:
        try:
            return Pending(self.directory, self._boot_id)
        except OSError as error:
            raise Broken(f"the journal {self.directory} cannot be opened: {error.strerror}") from error

    def _load(self) -> None:
        try:
            with self._env.begin() as txn:
                about = {bytes(name): bytes(value) for name, value in txn.cursor(self._about)}
                rows = [(bytes(name), bytes(value)) for name, value in txn.cursor(self._rows)]
        except lmdb.Error as error:
            raise self._damaged(str(error)) from error
        if about or rows:
            self._check(about, rows)
        elif self._staged_names():
            raise self._damaged("it is empty although there are staged files")
        self.last_id = max(self.last_id, int(about.get(b"last_id", b"0")))
        self.rebooted = about.get(b"boot", self._boot_id) != self._boot_id
        self._take_up_pending()
        if self._owed or not about:
            # A new journal has nothing to recover.
            self._commit(self._rows_of(self._owed), self._total(), self.last_id, not about)
            self._owed.clear()
        self._pending.clear()

    def _take_up_pending(self) -> None:
        """What an engine that was killed had not committed yet."""
        for staged_id, row in self._pending.load():
            if row is None:
                self._forget(staged_id)
                self.last_id = max(self.last_id, staged_id)
                continue
            try:
                self._remember(decode_row(row))
            except DamagedRow as error:
                raise self._damaged(f"a row that was not committed yet: {error}") from error

    def _check(self, about: dict[bytes, bytes], rows: list[tuple[bytes, bytes]]) -> None:
        if about.get(b"format") != FORMAT:
            raise self._damaged(f"its format is {about.get(b'format', b'unknown').decode(errors='replace')!r}")
        if int(about[b"rows"]) != len(rows):
            raise self._damaged(f"{int(about[b'rows'])} rows were written, {len(rows)} are there")
        for name, value in rows:
            try:
                self._remember(decode_row(value))
            except DamagedRow as error:
                raise self._damaged(f"row {int.from_bytes(name, 'big')}: {error}") from error
        self._owed.clear()

    def _commit(self, rows: list[tuple[int, bytes | None]], total: int, last_id: int, recovered: bool) -> None:
        with self._env_lock:
            while True:
                try:
                    self._write(rows, total, last_id, recovered)
                    break
                except lmdb.MapFullError:
                    self._grow()
                except lmdb.DiskError as error:
                    raise DiskFull(f"the disk of the journal {self.directory} is full") from error
                except lmdb.Error as error:
                    raise _failed_commit(error, self.directory) from error
        self.commits += 1
        if self._metrics is not None:
            self._metrics.journal_commits.inc()

    def _write(self, rows: list[tuple[int, bytes | None]], total: int, last_id: int, recovered: bool) -> None:
        with self._env.begin(write=True) as txn:
            for staged_id, value in rows:
                name = staged_id.to_bytes(8, "big")
                if value is None:
                    txn.delete(name, db=self._rows)
                else:
                    txn.put(name, value, db=self._rows)
            txn.put(b"rows", b"%d" % total, db=self._about)
            txn.put(b"last_id", b"%d" % last_id, db=self._about)
            txn.put(b"format", FORMAT, db=self._about)
            if recovered:
                txn.put(b"boot", self._boot_id, db=self._about)

    def _grow(self) -> None:
        size_bytes = 2 * self._env.info()["map_size"]
        if size_bytes > MAX_MAP_BYTES:
            raise NoSpace(f"the journal {self.directory} has reached its limit of {MAX_MAP_BYTES} bytes")
        self._env.set_mapsize(size_bytes)

    def _staged_names(self) -> list[str]:
        if self._staging_directory is None or not self._staging_directory.is_dir():
            return []
        return [path.name for path in self._staging_directory.rglob("*") if path.name.isdigit()]

    def _damaged(self, reason: str) -> JournalDamaged:
        where = self._staging_directory or self.directory.parent / "staging"
        return JournalDamaged(
            f"the journal {self.directory} is damaged ({reason}); the written bytes that the origin lacks are the "
            f"files in {where}: copy them to a safe place before both directories are removed"
        )


def current_boot_id() -> bytes:
    """Which start of the machine this is, as far as the kernel tells."""
    return _BOOT_ID.read_bytes().strip() if _BOOT_ID.exists() else b"unknown"


def _pad_to_last_page(env: lmdb.Environment, data: Path) -> None:
    """A data file cut short would kill us by SIGBUS when a missing page is touched; as zeros it is an error to report.
    Pages after the end that were never written (free ones) are not missed."""
    needed_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if data.stat().st_size < needed_bytes:
        with data.open("r+b") as file:
            file.truncate(needed_bytes)


def _failed_commit(error: lmdb.Error, directory: Path) -> Broken | NoSpace:
    if means_full_disk(error, directory):
        return DiskFull(f"the disk of the journal {directory} is full")
    return Broken(f"the journal {directory} cannot be written: {error}")
