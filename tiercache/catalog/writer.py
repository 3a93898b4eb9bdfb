"""The engine's side of the catalog: the only writer, used from one thread."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import lmdb

from tiercache.catalog import changes, environment, listing, queries, state
from tiercache.catalog.codec import decode_version, encode_version
from tiercache.catalog.environment import DEFAULT_MAP_SIZE_BYTES, Tables, Transaction
from tiercache.catalog.reader import CatalogReader, Query
from tiercache.catalog.recent import UNKNOWN, Recent
from tiercache.catalog.records import VersionRecord
from tiercache.errors import Broken, EngineUnreachable, NoSpace, TierCacheError
from tiercache.full_disk import means_full_disk
from tiercache.model import Entry, Key, OriginId, VersionId

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Change = Callable[Concatenate[Transaction, Tables, Arguments], Result]

_INODES_AT_ONCE = 1024
_REAP_EVERY_S = 60.0


class Catalog(CatalogReader):
    """Opens, or starts, the catalog in ``path`` for a new run of the engine.

    Each change is its own transaction unless inside ``batch``. Reads inside a batch see its changes. NoSpace when the
    map or the disk is full: nothing of the change is kept, and the catalog can be rebuilt. Broken when LMDB finds
    damage: the next start begins with an empty catalog, however this one is closed. A process forked from the
    engine's can read, but not write.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        map_size_bytes: int = DEFAULT_MAP_SIZE_BYTES,
        boot_id: str | None = None,
        check: bool = True,
    ) -> None:
        """``check`` False: only our own engine died since the catalog was written, and somebody waits in its mounts."""
        directory = Path(path)
        self._boot_id = state.current_boot_id() if boot_id is None else boot_id
        self._transaction: Transaction | None = None
        self._spoiled: TierCacheError | None = None
        """What went wrong in the transaction of a batch."""
        self._next_inode = 0
        self._inode_limit = 0
        self._reap_s = 0.0
        self._damaged = False
        self._recent = Recent()
        state.set_unusable_aside(directory, self._boot_id, check=check)
        if not directory.exists():
            _start(directory, self._boot_id, map_size_bytes)
        state.mark_open(directory, self._boot_id)
        self._writing = environment.acquire(directory, write=True, map_size_bytes=map_size_bytes)
        self._writer_pid = os.getpid()
        try:
            super().__init__(directory)
            self._write(queries.write_meta, b"run_id", secrets.randbits(62) + 1)
        except BaseException:
            environment.release(self._writing)
            raise

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Make the changes inside one transaction: all or, if the block or one of them raises, none. No await inside.
        They nest. The error of a change that the block took for its own is raised again at the end."""
        if self._transaction is not None:
            yield
            return
        try:
            with self._transact():
                yield
                self._raise_spoiled()
        except BaseException:
            # Numbers given out inside are not recorded any more, but the caller may have shown them to someone.
            self._inode_limit = 0
            self._recent.clear()
            raise

    def entry(self, origin: OriginId, key: Key) -> Entry | None:
        """As the reader's, from memory for a name that was asked for or changed a moment ago."""
        if not self._recent.is_mine():
            return super().entry(origin, key)
        entry = self._recent.entry(origin, key)
        if entry is UNKNOWN:
            entry = super().entry(origin, key)
            self._recent.keep_entry(origin, key, entry)
        return cast("Entry | None", entry)

    def listed_ns(self, origin: OriginId, directory: Key) -> int:
        """As the reader's, from memory like ``entry``."""
        if not self._recent.is_mine():
            return super().listed_ns(origin, directory)
        listed_ns = self._recent.listed_ns(origin, directory)
        if listed_ns is None:
            listed_ns = super().listed_ns(origin, directory)
            self._recent.keep_listed_ns(origin, directory, listed_ns)
        return listed_ns

    def resolve(self, origin: OriginId, key: Key) -> tuple[Entry, VersionRecord | None] | None:
        """As the reader's; inside a batch it sees the batch's changes."""
        return super().resolve(origin, key) if self._transaction is None else self._read(queries.resolve, origin, key)

    def version(self, version_id: VersionId) -> VersionRecord | None:
        """As the reader's, from memory like ``entry``."""
        if not self._recent.is_mine():
            return super().version(version_id)
        record = self._recent.version(version_id)
        if record is UNKNOWN:
            record = super().version(version_id)
            self._recent.keep_version(version_id, record)
        return cast("VersionRecord | None", record)

    def put_entry(self, origin: OriginId, key: Key, entry: Entry) -> None:
        """Set what a name stands for. InvalidName for a NUL in the key."""
        old = self.entry(origin, key)
        self._recent.forget_entry(origin, key)
        self._write(changes.replace_entry, origin, key, entry, old_inode=0 if old is None else old.inode)
        self._recent.keep_entry(origin, key, entry)

    def drop_entry(self, origin: OriginId, key: Key) -> None:
        """Forget a name; unknown ones are ignored."""
        self._recent.forget_entry(origin, key)
        self._write(changes.drop_entry, origin, key)

    def move_tree(
        self, origin: OriginId, source: Key, target: Key, *, onto: bool = False
    ) -> list[tuple[Key, Key, Entry]]:
        """Rename a name and everything below it, replacing the target; returns (old key, new key, entry) of each.
        ``onto``: what is below the target and has no counterpart below the source stays.

        Version ids stay what they were: they are digests of the old key.
        """
        self._recent.clear()
        return self._write(changes.move_tree, origin, source, target, onto=onto)

    def drop_tree(self, origin: OriginId, directory: Key) -> None:
        """Forget a name, everything below it, and their listings."""
        self._recent.clear()
        self._write(changes.drop_tree, origin, directory)

    def put_listing(
        self, origin: OriginId, directory: Key, entries: Iterable[tuple[bytes, Entry]], listed_ns: int
    ) -> list[tuple[bytes, Entry]]:
        """Merge a complete listing that *began* at ``listed_ns``; returns the children that exist. See ``listing``."""
        self._recent.clear()
        with self.batch(), queries.collector_paused():
            return self._write(
                listing.put_listing, origin, directory, entries, listed_ns=listed_ns, new_inode=self.new_inode
            )

    def forget_listing(self, origin: OriginId, directory: Key) -> None:
        """The children of a directory are no longer known to be complete."""
        self._recent.forget_listing(origin, directory)
        self._write(changes.forget_listing, origin, directory)

    def new_inode(self) -> int:
        """A number that was never given out, not even by a catalog that was lost."""
        if self._next_inode >= self._inode_limit:
            self._write(self._reserve_inodes)
        self._next_inode += 1
        return self._next_inode - 1

    def put_version(self, version_id: VersionId, record: VersionRecord) -> None:
        """Record what is resident of a version."""
        self._recent.forget_version(version_id)
        self._write(_put_version, version_id, record)
        self._recent.keep_version(version_id, record)

    def drop_version(self, version_id: VersionId) -> None:
        """Forget a version; unknown ones are ignored."""
        self._recent.forget_version(version_id)
        self._write(_drop_version, version_id)
        self._recent.keep_version(version_id, None)

    def versions(self) -> Iterator[tuple[VersionId, VersionRecord]]:
        """Every version in order of id, read in portions: changes in between are allowed, no snapshot is held."""
        start = b""
        while portion := self._read(_versions_from, start):
            yield from portion
            start = portion[-1][0] + b"\0"

    def reap_readers(self) -> int:
        """Free the reader slots of processes that died; returns how many. Done at open and each minute by itself."""
        return self._environment.lmdb.reader_check()

    def sync(self) -> None:
        """Write everything to the disk. NoSpace or Broken when that fails: pages may be lost that the kernel will not
        write again, so the catalog serves on from memory, the next start begins anew, and no later call does
        anything."""
        if self._damaged:
            return
        try:
            with self._translated():
                self._environment.lmdb.sync(True)
        except TierCacheError:
            self._found_damage()
            raise

    def close(self, clean: bool = True) -> None:
        """Close; ``clean`` makes the catalog trusted after a reboot too, if the disk takes all of it. A second call
        does nothing."""
        if self._pid != os.getpid() or self._writer_pid != os.getpid():
            super().close()
            return
        if clean:
            with contextlib.suppress(TierCacheError):  # whoever opens it next begins anew
                self.sync()
        if self._damaged:
            self._mark_damaged()  # the disk that did not take the catalog may not have taken the mark either
        self._recent.clear()
        super().close()
        environment.release(self._writing)
        self._writer_pid = 0
        if clean and not self._damaged:
            with contextlib.suppress(OSError):  # it counts as one that was not closed
                state.mark_clean(self._directory, self._boot_id)

    def _read(self, query: Query[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if self._transaction is None or self._writer_pid != os.getpid():
            return super()._read(query, *args, **kwargs)
        self._raise_spoiled()
        with self._translated():
            return query(self._transaction, self._environment.tables, *args, **kwargs)

    def _read_again(
        self, error: lmdb.Error, query: Query[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        if isinstance(error, _DAMAGE) and self._writer_pid == os.getpid():
            self._found_damage()
        return super()._read_again(error, query, *args, **kwargs)

    def _write(self, change: Change[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if self._transaction is not None:
            return self._write_in(self._transaction, change, *args, **kwargs)
        with self._transact() as txn:
            return change(txn, self._environment.tables, *args, **kwargs)

    def _write_in(
        self, txn: Transaction, change: Change[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        self._raise_spoiled()
        try:
            with self._translated():
                return change(txn, self._environment.tables, *args, **kwargs)
        except (NoSpace, Broken) as error:
            self._spoiled = error
            raise

    def _raise_spoiled(self) -> None:
        """LMDB does nothing more in a transaction in which something failed, and would call it damage."""
        if self._spoiled is not None:
            raise type(self._spoiled)(*self._spoiled.args) from self._spoiled

    @contextlib.contextmanager
    def _transact(self) -> Iterator[Transaction]:
        if self._writer_pid != os.getpid():
            raise EngineUnreachable(f"{self._directory}: the catalog is not open for writing in this process")
        if time.monotonic() >= self._reap_s:
            self._reap_s = time.monotonic() + _REAP_EVERY_S
            self.reap_readers()
        try:
            with self._translated(), self._environment.lmdb.begin(write=True) as txn:
                self._transaction = txn
                yield txn
        finally:
            self._transaction = None
            self._spoiled = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise NoSpace(f"{self._directory}: the catalog is full: {error}") from error
        except lmdb.Error as error:
            if means_full_disk(error, self._directory):
                raise NoSpace(f"{self._directory}: the disk of the catalog is full") from error
            if isinstance(error, _DAMAGE):
                self._found_damage()
            raise Broken(f"{self._directory}: the catalog failed: {error}") from error

    def _found_damage(self) -> None:
        self._damaged = True
        self._mark_damaged()

    def _mark_damaged(self) -> None:
        with contextlib.suppress(OSError):  # then the next start walks through it
            state.mark_damaged(self._directory)

    def _reserve_inodes(self, txn: Transaction, tables: Tables) -> None:
        first = max(self._next_inode, queries.read_meta(txn, tables, b"next_inode"))
        queries.write_meta(txn, tables, b"next_inode", first + _INODES_AT_ONCE)
        self._next_inode, self._inode_limit = first, first + _INODES_AT_ONCE


# BadTxnError: LMDB met damage before, while it made a cursor, and did not tell.
_DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError, lmdb.BadTxnError)
_PORTION = 1024
_EMPTY_MAP_BYTES = 1 << 20


def _start(directory: Path, boot_id: str, map_size_bytes: int) -> None:
    """Make an empty catalog beside its place and rename it there, so that no reader meets a half-made one."""
    building = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True, mode=0o700)
    made = lmdb.open(
        os.fspath(building),
        map_size=min(map_size_bytes, _EMPTY_MAP_BYTES),
        max_dbs=len(Tables._fields),
        max_readers=environment.READERS_LIMIT,  # the first opener sizes the lock file
        sync=False,
    )
    tables = environment.open_tables(made, create=True)
    with made.begin(write=True) as txn:
        queries.write_meta(txn, tables, b"format", state.FORMAT)
        # Inode numbers outlive the catalog in the journal and in a mount's kernel: begin where no older one has been,
        # however many it gave out: a million for each second that passed.
        queries.write_meta(txn, tables, b"next_inode", time.time_ns() >> 10)
    made.sync(True)
    made.close()
    state.mark_open(building, boot_id)
    os.rename(building, directory)


def _put_version(txn: Transaction, tables: Tables, version_id: VersionId, record: VersionRecord) -> None:
    txn.put(version_id, encode_version(record), db=tables.versions)


def _drop_version(txn: Transaction, tables: Tables, version_id: VersionId) -> None:
    txn.delete(version_id, db=tables.versions)


def _versions_from(txn: Transaction, tables: Tables, start: bytes) -> list[tuple[VersionId, VersionRecord]]:
    cursor: Any = txn.cursor(tables.versions)
    if not (cursor.set_range(start) if start else cursor.first()):
        return []
    portion = []
    for version_id, value in cursor.iternext():
        portion.append((VersionId(version_id), decode_version(value)))
        if len(portion) == _PORTION:
            break
    return portion
