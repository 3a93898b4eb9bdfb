"""Planned files are put into the kernel's page cache before they are read: such a read asks nobody.

It pays where the kernel knows the file's name already, as it does after a walk or an epoch: a file that it does not
know cannot be put there, and is looked up first.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

from tiercache.cache import Location
from tiercache.fuse.invalidation import PATIENCE_S
from tiercache.metrics import Metrics
from tiercache.model import Entry, Key
from tiercache.tier import FileIdentity
from tiercache.tier.files import open_for_read

MOST_WAITING = 256
"""Files that wait for their turn; further ones are left to their reads."""

UNKNOWN_IN_A_ROW = 16
"""After so many files that the kernel does not know …"""

TRIED_THEN = 64
"""… only one of so many is tried, until it knows one."""

log = logging.getLogger(__name__)


class Storing(Protocol):
    """A driver that can. Both may block while a request on the same file is under way. FileNotFoundError when the
    kernel does not know the node."""

    def store(self, node: int, data: memoryview) -> None: ...

    def invalidate_attributes(self, node: int) -> None: ...


class _Push(NamedTuple):
    node: int
    location: Location
    size_bytes: int
    changes: int


class Pusher:
    """Of one mount, with a thread of its own: the disk may hang, and the kernel may make a push wait for a request that
    the engine still has to answer."""

    def __init__(self, node_of: Callable[[int], int], driver: Storing, metrics: Metrics, *, most_bytes: int) -> None:
        """``node_of`` tells what the kernel calls an inode; ``most_bytes``: of a file that is pushed."""
        self._node_of = node_of
        self._driver = driver
        self._most_bytes = most_bytes
        self._count = {
            outcome: metrics.pushed_files.labels(outcome=outcome).inc
            for outcome in ("pushed", "unknown", "failed", "shed")
        }
        self._queue: queue.Queue[_Push | None] = queue.Queue(MOST_WAITING)
        self._armed = True
        self._changes = 0
        self._unknown = 0  # in a row
        self._skipped = 0
        self._ended = threading.Event()
        """Of the push that is under way; a new one for each."""
        self._ended.set()
        self._thread: threading.Thread | None = None

    def push(self, entry: Entry, location: Location) -> bool:
        """Queue a file that is here; whether it was queued."""
        if not 0 < entry.size_bytes <= self._most_bytes or not self._is_worth_it():
            return False
        try:
            node = self._node_of(entry.inode)
            self._queue.put_nowait(_Push(node, location, entry.size_bytes, self._changes))
        except queue.Full:
            self._count["shed"]()
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tiercache-push", daemon=True)
            self._thread.start()
        return True

    def note_change(self, key: Key, inode: int) -> None:
        """A name changed: what was queued before may be out of date."""
        self._changes += 1

    async def told(self) -> None:
        """Return when nothing of before the last change is on its way to the kernel any more, or its patience ends."""
        ended = self._ended
        if not ended.is_set():
            await trio.to_thread.run_sync(ended.wait, PATIENCE_S, abandon_on_cancel=True)

    def disarm(self) -> None:
        """Push nothing more: the session is about to end."""
        self._armed = False
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # the thread looks at the flag after each of them

    def _is_worth_it(self) -> bool:
        if self._unknown < UNKNOWN_IN_A_ROW:
            return True
        self._skipped = (self._skipped + 1) % TRIED_THEN
        return not self._skipped

    def _run(self) -> None:
        buffer = memoryview(bytearray(self._most_bytes))
        while (push := self._queue.get()) is not None and self._armed:
            self._ended = ended = threading.Event()
            self._count[self._pushed(push, buffer)]()
            ended.set()

    def _pushed(self, push: _Push, buffer: memoryview) -> str:
        if push.changes != self._changes or not _read(push, buffer):
            return "failed"
        try:
            self._driver.store(push.node, buffer[: push.size_bytes])
        except FileNotFoundError:
            self._unknown += 1
            return "unknown"
        except OSError as error:
            log.debug("the kernel did not take node %d: %s", push.node, error)
            return "failed"
        finally:
            if push.changes != self._changes:
                self._drop(push.node)
        self._unknown = 0
        return "pushed"

    def _drop(self, node: int) -> None:
        """A notice of a change may have gone to the kernel before the old bytes did: these go again."""
        try:
            self._driver.invalidate_attributes(node)
        except OSError as error:
            log.debug("notice for node %d: %s; the kernel's timeouts apply", node, error)


def _read(push: _Push, buffer: memoryview) -> bool:
    try:
        fd = open_for_read(push.location.path)
    except OSError:
        return False  # evicted meanwhile
    try:
        found = FileIdentity.of(os.fstat(fd))
        same = found.inode == push.location.inode and found.size_bytes == push.size_bytes
        return same and os.preadv(fd, [buffer[: push.size_bytes]], 0) == push.size_bytes
    except OSError as error:
        log.debug("%s: %s", push.location.path, error)
        return False
    finally:
        os.close(fd)
