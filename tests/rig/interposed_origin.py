"""Any origin with a test between it and the engine: calls can be stopped on their way, and made to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import trio

from tiercache.engine.namespace import Namespace
from tiercache.errors import TierCacheError
from tiercache.origins import Origin

LIMIT_S = 30.0


class Stop:
    """One call that waits: until ``open`` before it does its work, or after it when ``afterwards``."""

    def __init__(self, *, afterwards: bool) -> None:
        self.afterwards = afterwards
        self._reached = threading.Event()
        self._open = threading.Event()
        self._error: TierCacheError | None = None

    async def reached(self) -> None:
        assert await trio.to_thread.run_sync(self._reached.wait, LIMIT_S), "the call never came"

    def open(self) -> None:
        self._open.set()

    def fail(self, error: TierCacheError) -> None:
        """The call raises this."""
        self._error = error
        self.open()

    def wait(self) -> None:
        self._reached.set()
        assert self._open.wait(LIMIT_S), "a test forgot to open a stop"
        if self._error is not None:
            raise self._error


class InterposedOrigin:
    """Everything is the origin's own but the calls that a test asked for."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._stops: dict[str, list[Stop]] = {}
        self._errors: dict[str, list[TierCacheError]] = {}

    def stop(self, method: str, *, afterwards: bool = False) -> Stop:
        """The next call of ``method`` stops."""
        stop = Stop(afterwards=afterwards)
        self._stops.setdefault(method, []).append(stop)
        return stop

    def fail(self, method: str, *errors: TierCacheError) -> None:
        """The next calls of ``method`` raise these, one each, and do nothing."""
        self._errors.setdefault(method, []).extend(errors)

    def clear(self, method: str) -> None:
        """Nothing more is to happen to calls of ``method``."""
        self._stops.pop(method, None)
        self._errors.pop(method, None)

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._origin, method)
        return self._around(method, found) if callable(found) else found

    def _around(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def interposed(*args: Any, **kwargs: Any) -> Any:
            if self._errors.get(method):
                raise self._errors[method].pop(0)
            stop = self._stops[method].pop(0) if self._stops.get(method) else None
            if stop is not None and not stop.afterwards:
                stop.wait()
            try:
                return call(*args, **kwargs)
            finally:
                if stop is not None and stop.afterwards:
                    stop.wait()

        return interposed


def interpose(namespace: Namespace) -> InterposedOrigin:
    """Step between a namespace and its origin."""
    interposed = InterposedOrigin(namespace.tree.origin)
    namespace.tree.origin = cast(Origin, interposed)
    return interposed
