"""An engine that ends, as by kill -9, before the n-th call that changes something at its origin."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from rig.engine_ground import Ground
from rig.interposed_origin import InterposedOrigin
from tiercache.engine.namespace import Namespace
from tiercache.errors import Busy, TierCacheError

CHANGES = ("copy", "delete", "make_directory", "remove_directory", "write")


class _Dying(InterposedOrigin):
    """One changing call at a time, in the order in which they come; from the n-th on none does anything."""

    def __init__(self, origin: Any, steps: int, die: Callable[[], None]) -> None:
        super().__init__(origin)
        self.left = steps
        self._die = die
        self._lock = threading.Lock()

    def _around(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        around = super()._around(method, call)
        if method not in CHANGES:
            return around

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.left -= 1
                if self.left == 0:
                    self._die()
                if self.left <= 0:
                    raise Busy("the engine is gone")
                return around(*args, **kwargs)

        return counted


Work = Callable[[Namespace], Awaitable[object]]


async def killed_at(
    ground: Ground, steps: int, work: Work, *, prepare: Work | None = None, **settings: Any
) -> tuple[Ground, bool]:
    """The ground as the next engine finds it when the one that did ``work`` was killed before its n-th change, and
    True; with fewer of them, after all was done, and False. ``prepare`` is done before they are counted."""
    living = replace(ground, cache_dir=ground.scratch / f"living-{steps}")
    left = replace(ground, cache_dir=ground.scratch / f"killed-{steps}")

    def die() -> None:
        shutil.copytree(living.cache_dir, left.cache_dir, ignore=shutil.ignore_patterns("*.sock"))

    async with living.engine(**settings) as (engine, names):
        if prepare is not None:
            await prepare(names)
            await engine.journal.flush()
        dying = _Dying(names.tree.origin, steps, die)
        names.tree.origin = dying  # type: ignore[assignment]
        try:
            await work(names)
        except TierCacheError:
            assert dying.left <= 0, "it failed although nobody was killed"
        if dying.left > 0:
            die()
    return left, dying.left <= 0
