"""A bound on bytes in memory, shared by threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ByteBudget:
    """Lets takers in while their sum stays within ``limit_bytes``; a single larger one is let in alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        """Hold ``size_bytes`` of the budget, after waiting for them."""
        with self._changed:
            while self._used_bytes and self._used_bytes + size_bytes > self._limit_bytes:
                self._changed.wait()
            self._used_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._used_bytes -= size_bytes
                self._changed.notify_all()
