"""The one LMDB environment that this process has on a catalog, shared by all readers and the writer in it.

LMDB forbids two environments of one process on the same file (its locks are POSIX locks, which belong to the
process), and the use of an environment after a fork. So they are counted here by file identity, and a child of a
fork starts with none: the inherited ones are neither used nor closed nor collected.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lmdb

from tiercache import fork
from tiercache.errors import Denied, EngineUnreachable, NoSpace, TierCacheError

READERS_LIMIT = 4096
"""Slots in LMDB's table of readers: one per open transaction, over all processes of the node."""
DEFAULT_MAP_SIZE_BYTES = 64 * 1024**3
"""Address space, not memory or disk: the file grows with its content."""
_SMALLEST_MAP_BYTES = 64 * 1024**2

Identity = tuple[int, int]
if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]
else:  # the C type takes no parameter
    Transaction = lmdb.Transaction


class Tables(NamedTuple):
    """The named databases of a catalog."""

    meta: Any
    """``format``, ``run_id``, ``next_inode``."""
    names: Any
    """Stored name to entry."""
    long_names: Any
    """Digests to key length, key, entry; see ``names``."""
    inodes: Any
    """Inode and digest of a name to origin and key."""
    listings: Any
    """Stored directory to the wall clock of its last complete listing, then the directory."""
    versions: Any
    """Version id to version record."""


class Environment:
    """A counted, shared LMDB environment. ``lmdb`` and ``tables`` may be replaced by an upgrade from read-only."""

    def __init__(self, directory: Path, identity: Identity) -> None:
        self.directory = directory
        self.identity = identity
        self.writable = False
        self.users = 0
        self.lmdb: lmdb.Environment
        self.tables: Tables

    def open(self, *, write: bool, map_size_bytes: int) -> None:
        """Open the files, once; readers get a map at least as large as the writer's was."""
        self.lmdb = _open_lmdb(self.directory, write=write, map_size_bytes=map_size_bytes)
        try:
            self.tables = open_tables(self.lmdb, create=write)
        except BaseException:
            self.lmdb.close()
            raise
        self.writable = write
        fork.opened(self.lmdb)

    def close(self) -> None:
        """Close the files."""
        fork.closed(self.lmdb)
        self.lmdb.close()

    def adopt_map_size(self) -> None:
        """Follow a writer that came back with a larger map. Other threads' transactions end with lmdb.Error: retry."""
        self.lmdb.set_mapsize(0)


class _Process:
    """What belongs to one process id: a child of a fork gets a new one."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.refresh_lock = threading.Lock()
        self.environments: dict[Identity, Environment] = {}


_process = _Process()
_forked = False


def _after_fork() -> None:
    """Forget the parent's environments, which ``fork`` keeps from being collected."""
    global _process, _forked
    _process = _Process()
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def _current() -> _Process:
    if _process.pid != os.getpid():  # forked by C code that ran no Python hooks
        fork.forget_inherited()
        _after_fork()
    return _process


def refreshing() -> threading.Lock:
    """Held by a reader while it exchanges its environment; taken before the lock of ``acquire`` and ``release``."""
    return _current().refresh_lock


def identity_of(directory: Path) -> Identity:
    """Device and inode of the data file. FileNotFoundError if there is no catalog."""
    status = os.stat(directory / "data.mdb")
    return status.st_dev, status.st_ino


def acquire(directory: Path, *, write: bool = False, map_size_bytes: int = DEFAULT_MAP_SIZE_BYTES) -> Environment:
    """Open the catalog's environment, or share the one that is open. EngineUnreachable if there is none to read."""
    process = _current()
    with process.lock, _translated(directory):
        identity = identity_of(directory)
        environment = process.environments.get(identity)
        if environment is None:
            environment = Environment(directory, identity)
            environment.open(write=write, map_size_bytes=map_size_bytes)
            process.environments[identity] = environment
        elif write and not environment.writable:
            environment.close()  # readers of other threads get lmdb.Error and try again
            try:
                environment.open(write=True, map_size_bytes=map_size_bytes)
            except BaseException:
                del process.environments[identity]
                raise
        environment.users += 1
        return environment


def release(environment: Environment) -> None:
    """Give one use back; the last one closes. Of an environment inherited by fork nothing happens."""
    process = _current()
    with process.lock:
        if process.environments.get(environment.identity) is not environment:
            return
        environment.users -= 1
        if environment.users == 0:
            del process.environments[environment.identity]
            environment.close()


def open_tables(env: lmdb.Environment, *, create: bool) -> Tables:
    """Open every named database; lmdb.NotFoundError if one is missing and ``create`` is False."""
    return Tables._make(env.open_db(name.encode(), create=create) for name in Tables._fields)


@contextlib.contextmanager
def _translated(directory: Path) -> Iterator[None]:
    try:
        yield
    except TierCacheError:
        raise
    except (FileNotFoundError, lmdb.NotFoundError) as error:
        raise EngineUnreachable(f"{directory}: there is no catalog yet; start the engine") from error
    except PermissionError as error:
        raise Denied(f"{directory}: no permission to open the catalog (its lock file must be writable)") from error
    except (OSError, lmdb.Error) as error:
        if "ermission denied" in str(error):
            raise Denied(f"{directory}: no permission to open the catalog (its lock file must be writable)") from error
        raise EngineUnreachable(f"{directory}: the catalog cannot be opened: {error}") from error


def _open_lmdb(directory: Path, *, write: bool, map_size_bytes: int) -> lmdb.Environment:
    """Open with the largest map that the address space limit of this process (ulimit -v) allows."""
    size_bytes = map_size_bytes
    while True:
        try:
            with _own_guard():
                return lmdb.open(
                    os.fspath(directory),
                    map_size=size_bytes,
                    readonly=not write,
                    create=write,
                    sync=False,
                    metasync=False,
                    # Random access: the kernel's read-ahead would only fetch what nobody asked for.
                    readahead=False,
                    max_readers=READERS_LIMIT,
                    max_dbs=len(Tables._fields),
                    # A cached transaction would hold its reader slot across a fork.
                    max_spare_txns=0,
                )
        except lmdb.MemoryError as error:
            size_bytes //= 2
            if size_bytes < _SMALLEST_MAP_BYTES:
                raise NoSpace(f"{directory}: no address space to map the catalog (ulimit -v?)") from error


@contextlib.contextmanager
def _own_guard() -> Iterator[None]:
    """In a child of a fork, let py-lmdb's guard against a second environment look at this process's files only.

    The guard (2.0 and later) is a set of file identities that a child inherits, so it would refuse each file that the
    parent had open, although the child has to open it anew. py-lmdb asks ``env_keys`` for the identities: for the time
    of the call, the answer carries our pid. Should a later py-lmdb not ask it, opening fails and the client asks the
    engine instead.
    """
    if not _forked:
        yield
        return
    module: Any = importlib.import_module("lmdb._envid")
    original = module.env_keys
    pid = os.getpid()

    def env_keys(path: Any, subdir: Any) -> tuple[Any, ...]:
        return tuple((*key, pid) for key in original(path, subdir))

    module.env_keys = env_keys
    try:
        yield
    finally:
        module.env_keys = original
