"""The connections of one process: lent to one thread at a time, given up at fork, renewed when the engine restarts."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tiercache.client.connection import Connection

IDLE_MAX: Final = 16
"""Connections kept for the next request; more are closed after use."""


class ConnectionPool:
    """Hands out connections. Needs no lock: each step is one atomic operation on a container."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._pid = os.getpid()
        self._idle: deque[Connection] = deque()
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        """Every connection that this process opened, lent ones too, so that a forked child can close its copies."""
        _pools.add(self)

    def take(self) -> Connection:
        """A connection for the caller alone, to be given back or closed."""
        if self._pid != os.getpid():
            self.forget()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
                self._open.add(connection)
                return connection
            if not connection.closed:
                return connection

    def give(self, connection: Connection) -> None:
        """Take back a connection whose exchanges are complete."""
        if self._pid != os.getpid() or len(self._idle) >= IDLE_MAX:
            connection.close()
        elif not connection.closed:
            self._idle.append(connection)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Borrow a connection for the length of a ``with``."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.give(connection)

    def notify(self, op: str, arguments: dict[str, object]) -> bool:
        """Send a notice on an idle connection, if there is one and it takes it without waiting."""
        if self._pid != os.getpid():
            return False
        try:
            connection = self._idle.pop()
        except IndexError:
            return False
        sent = not connection.closed and connection.notify(op, arguments)
        self.give(connection)
        return sent

    def drop_idle(self) -> None:
        """Close what is idle: the engine behind it has ended."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def forget(self) -> None:
        """In a forked child: close the inherited descriptors, so that the engine sees when the parent ends."""
        for connection in list(self._open):
            connection.close()
        self._open = weakref.WeakSet()
        self._idle = deque()
        self._pid = os.getpid()

    def close(self) -> None:
        """Close every connection, lent ones too."""
        for connection in list(self._open):
            connection.close()
        self._idle.clear()


_pools: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
