"""The process ends at the n-th call: counters that go off, and the parts of the write path that they are put into.

A stop is raised before or after the call is done, and from then on every further call fails: the rest of that run
reaches neither disk nor origin.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from rig.writing_desk import Desk, Shelf
from tiercache.cache import VersionRef
from tiercache.errors import Lost
from tiercache.origins.base import Origin

PATIENCE_S = 30.0
"""Only how long a broken test takes to fail."""


class Stop(BaseException):
    """The process ends here."""


class Power:
    """Counts calls and goes off at the n-th: an odd n before the call is done, an even one after it."""

    def __init__(self, stop_at: int) -> None:
        self.calls = 0
        self.off = False
        self.last = ""
        self._stop_at = stop_at
        self._lock = threading.Lock()
        self._calls = threading.Condition()
        self._running = 0

    def run(self, name: str, function: Callable[[], Any]) -> Any:
        self.tick(name)
        with self._calls:
            self._running += 1
        try:
            result = function()
        finally:
            with self._calls:
                self._running -= 1
                self._calls.notify_all()
        self.tick(name)
        return result

    def wait_idle(self) -> None:
        """Return when the calls that were under way have ended: the next run could meet them. Blocking."""
        with self._calls:
            assert self._calls.wait_for(lambda: not self._running, PATIENCE_S)

    def arm(self, calls: int) -> None:
        """Go off at so many calls from now."""
        with self._lock:
            self._stop_at = self.calls + calls

    def cut(self) -> None:
        """Go off now."""
        with self._lock:
            self.off = True

    def restore(self) -> None:
        """Let calls through again, as many as may come."""
        with self._lock:
            self.off, self._stop_at = False, 0

    def tick(self, name: str) -> None:
        with self._lock:
            self.calls += 1
            if self.calls == self._stop_at:
                self.off = True
                self.last = name
            if self.off:
                raise Stop

    def wrapped(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: self.run(name, lambda: method(*arguments, **options))


def is_called_by_trio() -> bool:
    """Whether what runs now came from a thread by ``run_sync_soon``. A stop must not leave it, and need not: nothing
    gets through after it anyway."""
    return "run_sync_soon" in trio.lowlevel.current_task().name


UPLOADS = ("write", "stat", "delete", "abort_uploads")
"""The calls that an upload makes."""

CHANGES = ("make_directory", "remove_directory", "rename", "copy", "symlink", "link", "set_attributes")
"""The others that change something."""


def stopping_origin(power: Power, origin: Origin, calls: tuple[str, ...] = UPLOADS) -> Origin:
    """The same origin; these calls are counted."""
    for name in calls:
        setattr(origin, name, power.wrapped(f"origin {name}", getattr(origin, name)))
    return origin


def stopping_shelf(power: Power) -> Callable[[Path], Shelf]:
    class StoppingShelf(Shelf):
        def adopt(self, version: VersionRef, path: str, checksums: bytes) -> bool:
            return power.run("adopt", lambda: super(StoppingShelf, self).adopt(version, path, checksums))  # type: ignore[no-any-return]

    return StoppingShelf


async def run_until_stopped(desk: Desk, power: Power, work: Callable[[], Awaitable[None]]) -> bool:
    """Do ``work`` while uploads run. Whether it was stopped."""

    async def beside_uploads() -> None:
        async with desk.running():
            await work()

    return await is_stopped(power, beside_uploads)


async def is_stopped(power: Power, work: Callable[[], Awaitable[None]]) -> bool:
    """Do ``work``. Whether it was stopped."""
    try:
        await work()
    except BaseExceptionGroup as group:
        # Whoever had not heard of it yet met descriptors that were closed meanwhile, or a file that had just left.
        stops, rest = group.split((Stop, OSError, Lost) if power.off else Stop)
        if rest is not None:
            raise rest from None
        assert stops is not None
    except Stop:
        pass
    except OSError:
        if not power.off:
            raise
    await trio.to_thread.run_sync(power.wait_idle)
    return power.off
