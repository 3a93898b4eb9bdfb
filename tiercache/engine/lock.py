"""The lock that makes one process the engine of a cache directory. It ends with the process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from tiercache import durable
from tiercache.errors import Broken, Denied, EngineRunning, NoSpace, NotDirectory, ReadOnly, TierCacheError

LOCK_NAME: Final = "engine.lock"
SUPERVISOR_LOCK_NAME: Final = "engine.supervisor"
"""Held by the process that replaces the engine when it crashes; see ``tiercache.engine.supervisor``."""

_FLOCK = struct.Struct("@hhqqi4x")
"""``struct flock``: type, whence, start, length, pid."""


def prepare_cache_dir(cache_dir: Path) -> None:
    """Make the directory (mode 0700) if it is missing; one clear error when it cannot be used."""
    try:
        durable.make_directory(cache_dir)
        # Opening it shows a directory that exists but may not be entered.
        os.close(os.open(cache_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise cache_dir_error(cache_dir, error) from error


def cache_dir_error(cache_dir: Path, error: OSError) -> TierCacheError:
    """What a user should read when the cache directory itself fails."""
    where = f"cache directory {cache_dir}"
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return Denied(f"{where} is not writable for user {os.geteuid()}: choose another with --cache-dir")
        case errno.EROFS:
            return ReadOnly(f"{where} is on a read-only filesystem: choose another with --cache-dir")
        case errno.ENOSPC | errno.EDQUOT:
            return NoSpace(f"{where} is full: free some space or choose another with --cache-dir")
        case errno.EEXIST | errno.ENOTDIR:
            return NotDirectory(f"{where} is not a directory: choose another with --cache-dir")
        case _:
            return Broken(f"{where} cannot be used: {error.strerror or error}")


class EngineLock:
    """Held by the engine of ``cache_dir``; under another name, by its supervisor.

    An open-file-description lock: other than a POSIX lock it survives that another part of the process opens and
    closes the file, and unlike flock it can be asked for without being taken. A forked child closes its copy, so that
    the lock does not outlive us there.
    """

    def __init__(self, cache_dir: Path, name: str = LOCK_NAME) -> None:
        """Take the lock and write our pid into it; EngineRunning with the engine's pid if another process has it."""
        prepare_cache_dir(cache_dir)
        try:
            self._descriptor = os.open(cache_dir / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise cache_dir_error(cache_dir, error) from error
        try:
            self._take(cache_dir)
        except BaseException:
            os.close(self._descriptor)
            raise
        _held.add(self)

    def _take(self, cache_dir: Path) -> None:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except (BlockingIOError, PermissionError):
            pid = owner_pid(cache_dir)
            raise EngineRunning(
                f"cache directory {cache_dir} already has an engine (pid {pid or 'not known yet'}): attach to it, "
                f"end it with `tiercache stop --cache-dir {cache_dir}`, or choose another --cache-dir"
            ) from None
        try:
            # One write of the whole record: a reader never sees an empty file in between.
            os.pwrite(self._descriptor, f"{os.getpid()}\n".ljust(16).encode(), 0)
        except OSError as error:
            raise cache_dir_error(cache_dir, error) from error

    def release(self) -> None:
        """Give the lock up. The file stays: removing it would let two engines lock two files of one name."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            _held.discard(self)

    def _forget(self) -> None:
        with suppress(OSError):
            self.release()


def owner_pid(cache_dir: Path, name: str = LOCK_NAME) -> int | None:
    """The pid of the engine (or supervisor) that holds the lock, 0 if it has not told yet, None if nobody holds it."""
    try:
        descriptor = os.open(cache_dir / name, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise cache_dir_error(cache_dir, error) from error
    try:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query))
        return None if kind == fcntl.F_UNLCK else _read_pid(descriptor)
    finally:
        os.close(descriptor)


def _read_pid(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0


_held: weakref.WeakSet[EngineLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock._forget()


os.register_at_fork(after_in_child=_forget_all)
