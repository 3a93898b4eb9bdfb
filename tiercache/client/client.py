"""A process's access to the engine of one cache directory: no thread, no event loop, safe across fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from tiercache.client.connection import Connection, ConnectionLost, NotSent
from tiercache.client.local import LocalCopies
from tiercache.client.origin import RemoteOrigin
from tiercache.client.pool import ConnectionPool
from tiercache.config import Config, EngineMode
from tiercache.config.aws import with_aws_environment
from tiercache.config.in_force import differences, dotted
from tiercache.engine.process import connect_or_start
from tiercache.errors import ConfigError, TierCacheError
from tiercache.model import Tier, VersionId

T = TypeVar("T")

TOUCHES_BATCH: Final = 512
"""Hits told to the engine in one notice, if no request comes first: a notice wakes the engine, which costs as much as
several hits, and more on a machine with few cores."""

TOUCHES_FIRST: Final = 32
"""After a request, which may have been a miss, the first ones are told sooner, and then twice as many each time: what
reads ahead has to follow its reader."""

TOUCHES_MAX: Final = 4096
"""Hits remembered while they cannot be told; then the oldest are forgotten."""

GREETINGS_MAX: Final = 4
"""A killed engine takes connections for a moment longer, until the kernel has closed its socket: each of so many may
have been one of these."""

SILENCE_MARGIN_S: Final = 15.0
"""The engine gives a request up after ``engine.request_timeout_s``; we wait a little longer for it to say so."""


class Client:
    """Connects on first use, again after a fork, and again when the engine was replaced by another one.

    All methods may be called from any thread; a request that waits keeps no other from its own.
    """

    def __init__(self, config: Config, *, mode: EngineMode | None = None, silence_s: float | None = None) -> None:
        """``silence_s``: after this long without a sign of life an engine counts as hanging."""
        self._config = config
        self._mode: EngineMode = mode or config.engine.mode
        self._silence_s = silence_s or config.engine.request_timeout_s + SILENCE_MARGIN_S
        self._started = False
        """Whether it was us who started the engine."""
        self._pool = ConnectionPool(self._connect)
        self._copies: LocalCopies | None = None
        self._touches: list[tuple[VersionId, Tier]] = []
        self._touches_told_at = TOUCHES_FIRST

    @property
    def cache_dir(self) -> Path:
        """The directory whose engine answers."""
        return self._config.cache_dir

    def attach(
        self, url: str, *, client: str = "obstore", options: Mapping[str, Any] | None = None, profile: str = "general"
    ) -> RemoteOrigin:
        """Open an origin at the engine, which tells an unknown bucket, refused keys or a dead endpoint here."""
        # Those of this process: the engine may have been started under another environment.
        filled = with_aws_environment(url, options or {})
        return RemoteOrigin(self, {"url": url, "client": client, "options": filled, "profile": profile})

    # -- requests about the engine ----------------------------------------------------------------

    def request(
        self,
        op: str,
        *,
        idempotent: bool = False,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        **arguments: Any,
    ) -> Any:
        """One request that concerns no attached origin, see ``engine.requests.control``."""
        return self.exchange(
            lambda connection: connection.request(op, arguments, on_progress=on_progress), idempotent=idempotent
        )

    def require(self, config: Config, given: Mapping[str, Any]) -> None:
        """Nothing when the engine has the ``given`` settings (nested or with dotted keys; ``config`` is what they came
        to). ConfigError says which it has otherwise: it keeps those that it was started with."""
        keys = [key for key, value in dotted(given) if value is not None]
        if not keys:
            return
        found = differences(config, keys, self.request("settings", idempotent=True))
        if found:
            raise ConfigError(
                f"the engine of {self.cache_dir} runs with {' and '.join(found)}: end it first with "
                f"`tiercache stop --cache-dir {self.cache_dir}`, or leave this out"
            )

    def status(self) -> dict[str, Any]:
        """The engine's figures."""
        answer: dict[str, Any] = self.request("status", idempotent=True)
        return answer

    def drain(
        self, deadline_s: float, *, on_progress: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Wait until everything staged is at its origin, or for ``deadline_s``."""
        answer: dict[str, Any] = self.request("drain", on_progress=on_progress, deadline_s=deadline_s)
        return answer

    def wait_durable(
        self,
        paths: Sequence[str],
        level: str,
        deadline_s: float,
        *,
        askers: Mapping[str, Sequence[Any]] | None = None,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Wait until what is at or below local paths under mounts, or URLs, has reached a level; everything where no
        path is given. ``askers``: client, options and profile with which a URL is to be opened if it is not open.
        ``left`` tells of each file that has not why."""
        arguments: dict[str, Any] = {"paths": list(paths), "level": level, "deadline_s": deadline_s}
        if askers:  # an engine of an earlier release knows them not
            arguments["askers"] = dict(askers)
        answer: dict[str, Any] = self.request("drain_paths", on_progress=on_progress, **arguments)
        return answer

    def stop(self, *, drained: bool = False) -> None:
        """Ask the engine to end; ``drained``: it has had its time to upload, and leaves the rest in the journal."""
        self.request("stop", drained=drained)

    def stop_unused(self) -> None:
        """Have the engine end that was started for our requests, if there is one and nobody else uses it."""
        if self._started:
            with suppress(TierCacheError):
                self.request("stop_unused")

    # -- connections ------------------------------------------------------------------------------

    def exchange(self, ask: Callable[[Connection], T], *, idempotent: bool = True) -> T:
        """Run one exchange on a connection of our own.

        When the engine turns out to have been replaced, it is repeated once at the new one: always if the old one
        cannot have seen it, else only if it is ``idempotent``. EngineUnreachable otherwise.
        """
        if self._touches:
            self.tell_touches()
        self._touches_told_at = TOUCHES_FIRST
        try:
            with self._pool.connection() as connection:
                return ask(connection)
        except ConnectionLost as error:
            self._pool.drop_idle()
            if not idempotent and not isinstance(error, NotSent):
                raise
        with self._pool.connection() as connection:
            return ask(connection)

    def lend(self, ask: Callable[[Connection], T]) -> tuple[Connection, T]:
        """The same for an exchange whose connection the caller keeps until ``give_back``."""
        connection = self._pool.take()
        try:
            return connection, ask(connection)
        except ConnectionLost:
            self._pool.drop_idle()
        except BaseException:
            self._pool.give(connection)
            raise
        connection = self._pool.take()
        try:
            return connection, ask(connection)
        except BaseException:
            self._pool.give(connection)
            raise

    def give_back(self, connection: Connection) -> None:
        """End a loan."""
        self._pool.give(connection)

    def notify(self, op: str, arguments: dict[str, Any]) -> None:
        """Send a notice if a connection takes it without waiting."""
        self._pool.notify(op, arguments)

    def _connect(self) -> Connection:
        connection = self._greeted()
        copies = self._copies
        if copies is None or copies.run_id != connection.hello.run_id:
            # The one before is not closed: another thread may be in the middle of a lookup.
            try:
                self._copies = LocalCopies(connection.hello)
            except BaseException:
                connection.close()
                raise
        return connection

    def _greeted(self) -> Connection:
        left = GREETINGS_MAX
        while True:
            sock = connect_or_start(self._config, self._mode, on_start=self._note_start)
            try:
                return Connection(sock, self.cache_dir, self._silence_s)
            except NotSent:
                left -= 1
                if not left:
                    raise

    def _note_start(self) -> None:
        self._started = True

    # -- local copies -----------------------------------------------------------------------------

    def copies(self) -> LocalCopies:
        """What can be answered without the engine; connects if this process never did."""
        copies = self._copies
        if copies is None:
            self.exchange(lambda connection: connection.hello)
            copies = self._copies
            assert copies is not None
        return copies

    def touch(self, version: VersionId, tier: Tier) -> None:
        """Count a hit for the eviction policy; told in batches."""
        touches = self._touches
        touches.append((version, tier))
        if len(touches) >= self._touches_told_at:
            self.tell_touches()
            self._touches_told_at = min(TOUCHES_BATCH, 2 * self._touches_told_at)

    def tell_touches(self) -> None:
        """Tell the hits that are not told yet, if that is possible without waiting."""
        touches, self._touches = self._touches, []
        batch = touches[:TOUCHES_BATCH]
        ids, tiers = [version for version, _ in batch], bytes(tier for _, tier in batch)
        if self._pool.notify("touched", {"ids": ids, "tiers": tiers}):
            batch = []
        self._touches = [*batch, *touches[TOUCHES_BATCH:], *self._touches][-TOUCHES_MAX:]

    def close(self) -> None:
        """Close the connections. The engine goes on."""
        if self._touches:
            self.tell_touches()
        self._pool.close()
        if self._copies is not None:
            self._copies.close()
            self._copies = None


_clients: dict[tuple[Path, EngineMode], Client] = {}


def connect(config: Config) -> Client:
    """The client that all users of one cache directory in this process share."""
    key = (config.cache_dir, config.engine.mode)
    client = _clients.get(key)
    if client is None:
        client = _clients.setdefault(key, Client(config))
    return client


def _forget_touches() -> None:
    for client in _clients.values():
        client._touches = []


os.register_at_fork(after_in_child=_forget_touches)
