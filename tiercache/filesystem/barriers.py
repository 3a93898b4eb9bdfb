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

Target = tuple[str, RemoteOrigin, Key]
"""A name, and where it lies."""

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
        open here and not closed is not there yet. A mount, or another filesystem, may have the same URL open with other
        options: what it has written is waited for too.

        TimeoutError after ``deadline`` seconds (None: never), another OSError for what no waiting can help; both name
        files and reasons. ``callback`` is told the bytes on their way and how many of them have arrived.
        """
        try:
            level_of(level)
        except TierCacheError as error:
            raise ValueError(str(error)) from None
        wait_s = math.inf if deadline is None else deadline
        self._wait(self._targets(paths), level, wait_s, callback or DEFAULT_CALLBACK)

    def flush(self, path: str | list[str] | None = None) -> None:
        """Return when files have reached what fsync promises of each (``ack``): those of ``path``, else all that this
        filesystem has dealt with. As an fsync it takes the time it takes; an upload that only fails for now is waited
        for."""
        targets = [("", *root) for root in self._roots.values()] if path is None else self._targets(path)
        self._wait(targets, "", math.inf, DEFAULT_CALLBACK, must_exist=path is not None)

    def _targets(self, paths: str | list[str]) -> list[Target]:
        names = [self._strip(path) for path in (paths if isinstance(paths, list | tuple) else [paths])]
        return [(name, *self._locate(name)) for name in names]

    def _wait(
        self,
        targets: list[Target],
        level: str,
        deadline_s: float,
        callback: Callback,
        *,
        must_exist: bool = True,
    ) -> None:
        until_s = time.monotonic() + deadline_s
        progress = _Progress(callback)
        for origin in {id(origin): origin for _, origin, _ in targets}.values():
            named = {key: name for name, other, key in targets if other is origin}
            keys = list(named)
            wait_s = max(0.0, until_s - time.monotonic())
            with raising(named[keys[0]] if len(keys) == 1 else ""):
                answer = origin.wait_durable(keys, level, wait_s, must_exist=must_exist, on_progress=progress.report)
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
