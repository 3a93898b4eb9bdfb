"""What readers that told no plan probably read next, is brought for them: one guess for each view of an origin."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from tiercache.engine.bringing import bring
from tiercache.engine.namespace import Namespace
from tiercache.errors import TierCacheError
from tiercache.model import BLOCK_SIZE_BYTES, Key, Kind, OriginId, join, name_of, parent_of
from tiercache.readahead import Guess, Running

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

ASKED_MAX: Final = 1024
"""Directories that were listed for a guess are remembered: none of them is listed for it again."""

LISTED_AT_ONCE: Final = 2

log = logging.getLogger("tiercache.engine")


class Guesses:
    """All of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._guesses: list[tuple[Guess, Running[Guess]]] = []
        metrics = engine.metrics
        metrics.scans.set_function(lambda: sum(guess.scans for guess, _ in self._guesses))
        metrics.scan_window_files.set_function(lambda: sum(guess.window_files for guess, _ in self._guesses))

    def watch(self, origin: OriginId, namespace: Callable[[], Namespace]) -> Watch:
        """Told of what is opened in a view of an origin."""
        return Watch(self._engine, origin, partial(self._begin, namespace))

    def _begin(self, namespace: Callable[[], Namespace]) -> Running[Guess]:
        engine, space = self._engine, namespace()
        config = engine.config
        guess = Guess(
            _Listings(engine, space), files_max=config.scan.files_max, bytes_max=config.plan.budget_bytes // 2
        )
        # Of a large file only the first block: read-ahead within it does the rest.
        brings = partial(bring, space, engine.cache, most_bytes=BLOCK_SIZE_BYTES)
        running = engine.planned.start(guess, space.origin_id, brings)
        self._guesses.append((guess, running))
        return running

    async def run(self) -> None:
        """Give up what is not read any more; until cancelled."""
        idle_s = self._engine.config.scan.idle_s
        while True:
            await trio.sleep(idle_s / 2)
            for _, running in self._guesses:
                if running.active_s < trio.current_time() - idle_s:
                    self._engine.planned.give_up(running)


class Watch:
    """Tells plans first, then the guess: what is planned needs no guess."""

    def __init__(self, engine: Engine, origin: OriginId, begin: Callable[[], Running[Guess]]) -> None:
        self._planned = engine.planned
        self._origin = origin
        self._begin = begin
        self._running: Running[Guess] | None = None
        self._guesses = engine.config.scan.files_max > 0

    def opened(self, key: Key, *, missed: bool) -> None:
        """See ``Parts.watch``."""
        if not self._planned.opened(self._origin, key) and missed and self._guesses:
            if self._running is None:
                self._running = self._begin()
            self._planned.missed(self._running, key)


class _Listings:
    """What the catalog has of directories. One that it lacks is listed, once, in the background."""

    def __init__(self, engine: Engine, space: Namespace) -> None:
        self._catalog = engine.catalog
        self._nursery = engine.nursery
        self._space = space
        self._asked: OrderedDict[Key, None] = OrderedDict()
        self._slots = trio.CapacityLimiter(LISTED_AT_ONCE)

    def files_after(self, directory: Key, name: bytes, most: int) -> list[bytes] | None:
        origin = self._space.origin_id
        try:
            if self._catalog.listed_ns(origin, directory):
                return self._catalog.names_after(origin, directory, name, Kind.FILE, most=most)
        except TierCacheError as error:
            log.debug("what comes next in a directory is not known: %s", error)
            return None
        self._ask(directory)
        return None

    def directory_after(self, directory: Key) -> Key | None:
        if not directory:
            return None
        above, name = parent_of(directory), name_of(directory)
        try:
            names = self._catalog.names_after(self._space.origin_id, above, name, Kind.DIRECTORY, most=1)
        except TierCacheError as error:
            log.debug("what comes next in a directory is not known: %s", error)
            return None
        return join(above, names[0]) if names else None

    def _ask(self, directory: Key) -> None:
        if directory in self._asked:
            return
        self._asked[directory] = None
        if len(self._asked) > ASKED_MAX:
            self._asked.popitem(last=False)
        self._nursery.start_soon(self._list, directory)

    async def _list(self, directory: Key) -> None:
        try:
            async with self._slots:
                await self._space.names.children(directory)
        except TierCacheError as error:
            log.debug("a directory could not be listed: %s", error)
