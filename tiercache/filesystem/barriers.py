"""Barriers: wait until what was written has reached a level."""

from __future__ import annotations

import errno
import math
import time
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from tiercache.client import RemoteOrigin
from tiercache.engine.promises import level_of
from tiercache.errors import TierCacheError
from tiercache.filesystem.base import raising
from tiercache.filesystem.changes import ChangesFileSystem
from tiercache.model import Key

TOLD_MAX = 3
"""Files that an error names."""


class BarriersFileSystem(ChangesFileSystem):
    """What fsync is for one descriptor, for names."""

    def wait_durable(
        self,
        paths: str | list[str],
        level: str = "origin",
        deadline: float | None = 60,
        callback: Callback = DEFAULT_CALLBACK,
    ) -> None:
        """Return when the newest bytes of these files, and of all files in these directories, have reached the level:
        ``memory``, ``local`` or ``origin``. A file that a program on a mount still writes is waited for; one that is
        open here and not closed is not there yet.

        TimeoutError after ``deadline`` seconds (None: never), another OSError for what no waiting can help; both name
        files and reasons. ``callback`` is told the bytes on their way and how many of them have arrived.
        """
        try:
            level_of(level)
        except TierCacheError as error:
            raise ValueError(str(error)) from None
        self._wait(
            self._targets(paths), level, math.inf if deadline is None else deadline, callback or DEFAULT_CALLBACK
        )

    def flush(self, path: str | list[str] | None = None) -> None:
        """Return when files have reached what fsync promises of each (``ack``): those of ``path``, else all that this
        filesystem has dealt with. As an fsync it takes the time it takes; an upload that only fails for now is waited
        for."""
        targets = list(self._roots.values()) if path is None else self._targets(path)
        self._wait(targets, "", math.inf, DEFAULT_CALLBACK)

    def _targets(self, paths: str | list[str]) -> list[tuple[RemoteOrigin, Key]]:
        """Where the files lie that these names lead to."""
        found = []
        for path in paths if isinstance(paths, list | tuple) else [paths]:
            name = self._strip(path)
            origin, key = self._locate(name)
            with raising(name):
                found.append((origin, origin.follow(key, origin.info(key))[0] if key else key))
        return found

    def _wait(self, targets: list[tuple[RemoteOrigin, Key]], level: str, deadline_s: float, callback: Callback) -> None:
        until_s = time.monotonic() + deadline_s
        progress = _Progress(callback)
        for origin in {id(origin): origin for origin, _ in targets}.values():
            keys = [key for other, key in targets if other is origin]
            with raising(""):
                answer = origin.wait_durable(
                    keys, level, max(0.0, until_s - time.monotonic()), on_progress=progress.report
                )
            if answer["left"]:
                raise _left_error(answer, level)
        progress.end()


def _left_error(answer: dict[str, Any], level: str) -> OSError:
    left = answer["left"]
    told = "; ".join(f"{file['path']}: {file['error']}" for file in left[:TOLD_MAX])
    more = f"; and {len(left) - TOLD_MAX} more" if len(left) > TOLD_MAX else ""
    text = f"not durable{f' at the level {level}' if level else ''}: {told}{more}"
    return OSError(errno.EIO, text) if answer["in_time"] else TimeoutError(errno.ETIMEDOUT, text)


class _Progress:
    """Reports of the engine as a callback of fsspec wants them."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._total_bytes = 0

    def report(self, report: dict[str, Any]) -> None:
        left_bytes = report["bytes"] - sum(file["sent_bytes"] for file in report["list"])
        if left_bytes > self._total_bytes:
            self._total_bytes = left_bytes
            self._callback.set_size(left_bytes)
        self._callback.absolute_update(self._total_bytes - left_bytes)

    def end(self) -> None:
        self._callback.absolute_update(self._total_bytes)
