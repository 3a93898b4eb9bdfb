"""The table of operations, and what one call of an operation has at hand."""

from __future__ import annotations

import enum
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tiercache.engine.requests.windows import Windows
from tiercache.errors import Broken
from tiercache.memory import Purpose

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine
    from tiercache.engine.namespace import Namespace


class Nature(enum.Enum):
    """How an operation ends when its client leaves or time runs out."""

    READ = enum.auto()
    """Cancelled when the client leaves and after the request timeout."""
    CHANGE = enum.auto()
    """Runs to its end, so that origin and catalog agree, within the request timeout."""
    LONG = enum.auto()
    """Cancelled when the client leaves; takes the time it takes."""


Handler = Callable[..., Awaitable[Any]]


class Operation(NamedTuple):
    """One entry of the table."""

    handler: Handler
    nature: Nature


OPERATIONS: dict[str, Operation] = {}


def operation(nature: Nature) -> Callable[[Handler], Handler]:
    """Enter a function under its own name, without a trailing underscore."""

    def enter(handler: Handler) -> Handler:
        OPERATIONS[handler.__name__.rstrip("_")] = Operation(handler, nature)
        return handler

    return enter


@dataclass(eq=False)
class Shared:
    """What all connections of an engine share."""

    engine: Engine
    clients: Callable[[], int]
    """How many connections there are."""
    namespaces: list[Namespace] = field(default_factory=list)
    """Attached namespaces; a client names one by its place."""
    windows: Windows = field(default_factory=Windows)

    def number_of(self, namespace: Namespace) -> int:
        for number, known in enumerate(self.namespaces):
            if known is namespace:
                return number
        self.namespaces.append(namespace)
        return len(self.namespaces) - 1


class Owner(Protocol):
    """The connection as an operation sees it."""

    staged: dict[int, Namespace]
    """Files that this connection's client writes and has not published: discarded when it leaves."""
    afterwards: list[Callable[[], None]]
    """To be called once the answer is sent."""


@dataclass(eq=False, slots=True)
class Call:
    """One request being served."""

    shared: Shared
    owner: Owner
    send: Callable[[str, Any], Awaitable[None]]
    """Send an intermediate frame: ``("progress", {...})`` or ``("part", [...])``."""
    charges: list[int]
    """Memory that the answer takes, until it is sent."""

    async def hold_answer(self, data_bytes: int) -> None:
        """Wait for the memory of an answer with so many bytes of a file: these, and the frame made of them."""
        self.charges.append(await self.engine.memory.take(Purpose.REPLY, 2 * data_bytes))

    @property
    def engine(self) -> Engine:
        return self.shared.engine

    def namespace(self, number: int) -> Namespace:
        try:
            return self.shared.namespaces[number]
        except IndexError:
            raise Broken(f"the engine (pid {os.getpid()}) has no namespace {number}") from None
