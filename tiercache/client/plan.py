"""Tell the engine in which order files will be read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tiercache.errors import TierCacheError
from tiercache.model import Key

if TYPE_CHECKING:
    from tiercache.client.client import Client

TELL_EVERY: Final = 32
"""Entries between two notices of where a reader is."""


class Planner:
    """Files of one origin, which a reader will read in some order. ``begin`` asks the engine to run a plan of that
    origin, by the plan's name and the reader's."""

    def __init__(self, client: Client, keys: Sequence[Key], begin: Callable[[str, str], object]) -> None:
        self._client = client
        self._keys = keys
        self._begin = begin
        self._token = secrets.token_hex(4)

    def __len__(self) -> int:
        return len(self._keys)

    def begin(self, order: Iterable[int] | None = None) -> Plan:
        """The files will be read in this order of their places, each of them once if it is None. Takes the place of
        what this planner began before in this process: each fork is a reader of its own. OSError and the errors of the
        domain: then nothing is planned."""
        name = secrets.token_hex(16)
        path = os.path.join(self._client.request("plan_directory", idempotent=True), f"{name}.keys")
        try:
            self._write(path, self._keys if order is None else (self._keys[place] for place in order))
            self._begin(name, f"{os.getpid()}-{self._token}")
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise
        return Plan(self._client, name)

    @staticmethod
    def _write(path: str, keys: Iterable[Key]) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=1 << 20) as file:
            for key in keys:
                file.write(key)
                file.write(b"\0")


class Plan:
    """A plan that the engine runs. It is help and no promise: whatever becomes of it, reading goes on."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    def reached(self, position: int, *, count: int = 1) -> None:
        """The reader has come to this entry of the order, and takes so many. Cheap: told to the engine now and then."""
        if position % TELL_EVERY + count >= TELL_EVERY:
            self._client.notify("plan_reached", {"plan": self._name, "position": position})

    def end(self) -> None:
        """Nothing more of it will be read."""
        with suppress(TierCacheError):
            self._client.request("plan_end", idempotent=True, plan=self._name)

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()
