"""The read-only side of the catalog, for any process and any thread."""

from __future__ import annotations

from collections.abc import Callable
from os import getpid
from pathlib import Path
from time import monotonic
from typing import Concatenate, ParamSpec, TypeVar

import lmdb

from tiercache.catalog import environment, queries
from tiercache.catalog.environment import Environment, Tables, Transaction
from tiercache.catalog.records import Hit, VersionRecord
from tiercache.catalog.state import FORMAT
from tiercache.errors import EngineUnreachable, NoSpace
from tiercache.model import Entry, Key, Kind, OriginId, VersionId

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Query = Callable[Concatenate[Transaction, Tables, Arguments], Result]

_LOOK_EVERY_S = 1.0
_CLOSED_S = float("inf")


class CatalogReader:
    """Answers from one snapshot per call, without a lock and without the engine.

    Usable after a fork (the child opens the files anew) and from many threads. When the engine has started an empty
    catalog in the place of this one, the reader follows within a second. EngineUnreachable means that there is no
    catalog to read, NoSpace that LMDB's reader table is full: in both cases ask the engine. InvalidName for a key
    with a NUL.
    """

    def __init__(self, path: Path | str) -> None:
        self._directory = Path(path)
        self._pid = 0
        self._look_s = 0.0
        self._environment: Environment
        self._refresh()

    def entry(self, origin: OriginId, key: Key) -> Entry | None:
        """What the catalog knows of a name; of kind ABSENT for a remembered negative lookup."""
        return self._read(queries.find_entry, origin, key)

    def children(self, origin: OriginId, directory: Key) -> list[tuple[bytes, Entry]]:
        """The known children; complete if ``listed_ns`` is recent enough. ABSENT ones are left out."""
        return self._read(queries.list_children, origin, directory)

    def names_after(self, origin: OriginId, directory: Key, name: bytes, kind: Kind, *, most: int) -> list[bytes]:
        """The next names of children of one kind, in order: a bounded look that does not read a large directory. Names
        over LMDB's limit are left out."""
        return self._read(queries.names_after, origin, directory, name, kind, most=most)

    def shows_a_child(self, origin: OriginId, directory: Key) -> bool:
        """Whether a child is known to exist, as far as a short look tells; False says nothing."""
        return self._read(queries.shows_a_child, origin, directory)

    def listed_ns(self, origin: OriginId, directory: Key) -> int:
        """Wall clock of the last complete listing; 0 if there is none."""
        return self._read(queries.listed_ns, origin, directory)

    def version(self, version_id: VersionId) -> VersionRecord | None:
        """What is resident of a version."""
        return self._read(queries.find_version, version_id)

    def hit(self, origin: OriginId, key: Key) -> Hit | None:
        """A complete copy of a clean file, the fastest one; None says nothing: ``resolve`` tells all."""
        # The path of every hit: what ``_read`` does, in line.
        if self._pid != getpid() or monotonic() >= self._look_s:
            return self._read(queries.find_hit, origin, key)
        shared = self._environment
        try:
            with shared.lmdb.begin() as txn:
                return queries.find_hit(txn, shared.tables, origin, key)
        except lmdb.Error as error:
            return self._read_again(error, queries.find_hit, origin, key)

    def resolve(self, origin: OriginId, key: Key) -> tuple[Entry, VersionRecord | None] | None:
        """Entry and version record of a name in one transaction."""
        if self._pid != getpid() or monotonic() >= self._look_s:
            return self._read(queries.resolve, origin, key)
        shared = self._environment
        try:
            with shared.lmdb.begin() as txn:
                return queries.resolve(txn, shared.tables, origin, key)
        except lmdb.Error as error:
            return self._read_again(error, queries.resolve, origin, key)

    def name_of_inode(self, inode: int) -> tuple[OriginId, Key] | None:
        """One name of an inode; None for an unknown or unlinked one."""
        return self._read(queries.name_of_inode, inode)

    def names_of_inode(self, origin: OriginId, inode: int) -> list[Key]:
        """All names of an inode in one origin: several when it has hard links."""
        return self._read(queries.names_of_inode, origin, inode)

    def run_id(self) -> int:
        """The number of the engine's run that wrote last: copies verified in it are verified now."""
        return self._read(queries.read_meta, b"run_id")

    def __reduce__(self) -> tuple[type[CatalogReader], tuple[Path]]:
        """In another process it is a reader of the same files; so is the engine's catalog."""
        return CatalogReader, (self._directory,)

    def close(self) -> None:
        """Give the environment back; it stays open while others in this process use it."""
        if self._pid == getpid():
            environment.release(self._environment)
        self._pid = 0
        self._look_s = _CLOSED_S

    def _read(self, query: Query[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            if self._pid != getpid() or monotonic() >= self._look_s:
                self._refresh()
            shared = self._environment
            with shared.lmdb.begin() as txn:
                return query(txn, shared.tables, *args, **kwargs)
        except lmdb.Error as error:
            return self._read_again(error, query, *args, **kwargs)

    def _read_again(
        self, error: lmdb.Error, query: Query[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Mend what can be mended, once: dead readers' slots, a larger map, an environment that was replaced."""
        try:
            if isinstance(error, lmdb.ReadersFullError):
                self._environment.lmdb.reader_check()
            elif isinstance(error, lmdb.MapResizedError):
                self._environment.adopt_map_size()
            self._refresh()
            shared = self._environment
            with shared.lmdb.begin() as txn:
                return query(txn, shared.tables, *args, **kwargs)
        except lmdb.ReadersFullError as full:
            raise NoSpace(
                f"{self._directory}: all {environment.READERS_LIMIT} reader slots of the catalog are in use"
            ) from full
        except lmdb.Error as again:
            raise EngineUnreachable(f"{self._directory}: the catalog cannot be read: {again}") from again

    def _refresh(self) -> None:
        """Open the files that are at our path now, unless they are open."""
        with environment.refreshing():
            if self._look_s == _CLOSED_S:
                raise EngineUnreachable(f"{self._directory}: the catalog reader is closed")
            if self._pid != getpid() or not self._is_current():
                self._exchange()
            self._look_s = monotonic() + _LOOK_EVERY_S

    def _exchange(self) -> None:
        acquired = environment.acquire(self._directory)
        try:
            self._require_format(acquired)
        except BaseException:
            environment.release(acquired)
            raise
        if self._pid == getpid():
            environment.release(self._environment)
        self._environment = acquired
        self._pid = getpid()

    def _is_current(self) -> bool:
        try:
            return environment.identity_of(self._directory) == self._environment.identity
        except FileNotFoundError as error:
            raise EngineUnreachable(f"{self._directory}: the catalog is gone; start the engine") from error

    def _require_format(self, shared: Environment) -> None:
        with shared.lmdb.begin() as txn:
            found = queries.read_meta(txn, shared.tables, b"format")
        if found != FORMAT:
            raise EngineUnreachable(
                f"{self._directory}: the catalog has format {found}, this version reads {FORMAT}; restart the engine"
            )
