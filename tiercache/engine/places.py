"""What a local path under a mount, or a URL, stands for; symlinks are followed inside the origin, never by the kernel,
and no longer than somebody wants to wait at a prompt."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from tiercache.engine.checkpoints import LATEST
from tiercache.engine.names import show
from tiercache.engine.namespace import Namespace
from tiercache.errors import Absent, Broken, Busy, InvalidArgument, TierCacheError
from tiercache.model import Entry, Key, Kind, join, parent_of

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine
    from tiercache.engine.mounts import Mount

ASK_S: Final = 5.0
"""How long an origin is waited for before what this node knows has to do."""

ASK_LEAST_S: Final = 1.0
"""And so long it is, whatever the deadline of whoever asks: a name that is not known has to be asked for."""

LINKS_MAX: Final = 40
"""Symbolic links followed before a chain counts as a loop, as in Linux."""

Look = Callable[[Namespace, Key], Awaitable[Entry | None]]
"""The entry of a name, None where there is none; of the origin, or of what this node knows."""


class Asker(NamedTuple):
    """How whoever asks would open an origin that nobody has open yet."""

    client: str = ""
    options: Mapping[str, Any] = MappingProxyType({})
    profile: str = ""


@dataclass(slots=True)
class Place:
    """A name that somebody gave, and what it leads to."""

    given: str
    """As it was given: what messages about it begin with."""
    namespace: Namespace
    key: Key
    mount: Mount | None
    """The one that a local path was given under: what is outside of it is other files."""
    aliases: set[Key] = field(default_factory=set)
    """The name before links were followed, and the links themselves: they may be dirty too."""
    links: int = 0
    entry: Entry | None = None
    silence: str = ""
    """Why the origin did not tell: then ``entry`` is what this node knows of it."""

    @property
    def keys(self) -> set[Key]:
        return {self.key, *self.aliases}

    @property
    def top(self) -> Key:
        return self.mount.root if self.mount is not None else b""

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors about the key speak of the name that was given."""
        try:
            yield
        except TierCacheError as error:
            text, inner = str(error), show(self.key)
            if not text.startswith((f"{inner}: ", f"{inner}/")):
                raise
            raise type(error)(self.given.rstrip("/") + text[len(inner) :]) from error


class Places:
    """Of one engine. Reads names; changes nothing but what opening an origin changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def find(self, path: str, asker: Asker, *, within_s: float = ASK_S) -> Place:
        """By the name alone. An origin that is attached is meant by its URL whatever options it was opened with; one
        that is not is opened with those of whoever asks. InvalidArgument where several are meant; Busy when one that is
        to be opened does not answer in time."""
        if "://" not in path:
            held = self._engine.mounts.holding(path)
            if held is not None:
                return Place(path, held[0].namespace, held[1], held[0])
        known = await self._engine.trees.known_at(path, asker.client, asker.options) if "://" in path else []
        if len(known) > 1:
            raise InvalidArgument(f"{path}: several origins with this URL are in use; ask by a path under a mount")
        for tree, key in known:
            return Place(path, self._engine.mounts.namespace_of(tree.origin_id, key), key, None)
        with trio.move_on_after(within_s):
            namespace, key = await self._engine.attach(path, *asker)
            return Place(path, namespace, key, None)
        raise Busy(f"{path}: nothing here has its origin open, and {_silent(within_s)}")

    async def look(self, path: str, asker: Asker, *, within_s: float = ASK_S) -> Place:
        """With its ``entry``, links followed. Absent; Busy when the origin does not answer in time and this node does
        not know the name."""
        until_s = trio.current_time() + within_s
        place = await self.find(path, asker, within_s=within_s)
        return await self.follow(place, within_s=max(0.0, until_s - trio.current_time()))

    async def follow(self, place: Place, *, within_s: float = ASK_S) -> Place:
        """The same for a place that was found."""
        silence = _silent(within_s)
        with trio.move_on_after(within_s):
            try:
                return await self._followed(place, _ask)
            except (Busy, Broken) as error:
                silence = str(error)
        try:
            known = await self._followed(place, _remember)
        except Absent:
            raise Busy(
                f"{place.given}: this node does not know the name, and its origin does not tell: {silence}"
            ) from None
        known.silence = silence
        return known

    # -- links --------------------------------------------------------------------------------------

    async def _followed(self, start: Place, look: Look) -> Place:
        entry = await look(start.namespace, start.key)
        if entry is not None and entry.staged and entry.kind is not Kind.SYMLINK:
            start.entry = entry  # written here under this very name
            return start
        place = Place(start.given, start.namespace, start.top, start.mount)
        if start.mount is None:
            place.key = self._shown(start)
        await self._walk(place, deque(start.key[len(place.key) :].strip(b"/").split(b"/")), look)
        place.aliases |= {start.key} - {place.key}
        place.entry = await look(place.namespace, place.key)
        if place.entry is not None:
            return place
        if entry is None:
            raise Absent(f"{start.given}: no such file or directory")
        start.entry = entry  # a link to nothing
        return start

    def _shown(self, start: Place) -> Key:
        """What a mount shows above the key of a URL: whatever links lead there, the names of what is written begin
        with that."""
        mount = self._engine.mounts.over(start.namespace.origin_id, start.key)
        return mount.root if mount is not None else b""

    async def _walk(self, place: Place, rest: deque[bytes], look: Look) -> None:
        while rest:
            part = rest.popleft()
            if part in (b"", b"."):
                continue
            if part == b"..":
                self._ascend(place)
                continue
            here = join(place.key, part)
            entry = await self._entry(place, here, look, last=not any(rest))
            if entry is None and part == LATEST and place.mount is not None and look is _ask:
                latest = await place.namespace.checkpoints.latest(place.key)
                if latest is not None:
                    rest.appendleft(latest.name)
                    continue
            if entry is not None and entry.kind is Kind.SYMLINK:
                place.aliases.add(here)
                self._turn(place, entry.link_target, rest)
            else:
                place.key = here

    async def _entry(self, place: Place, key: Key, look: Look, *, last: bool) -> Entry | None:
        known = place.namespace.entry(key)
        if known is not None and known.kind is Kind.DIRECTORY and not last:
            return known  # not asked for each directory on the way: one that became a link is another name
        return await look(place.namespace, key)

    def _ascend(self, place: Place) -> None:
        if place.key == place.top and place.mount is not None:
            raise InvalidArgument(f"{place.given}: leads out of the mount at {place.mount.mountpoint}")
        place.key = parent_of(place.key)

    def _turn(self, place: Place, target: bytes, rest: deque[bytes]) -> None:
        """Go on where a link leads from ``place.key``, its directory."""
        place.links += 1
        if place.links > LINKS_MAX:
            raise InvalidArgument(f"{place.given}: too many symbolic links")
        if target.startswith(b"/"):
            target = self._from_top(place, target)
        rest.extendleft(reversed(target.split(b"/")))

    def _from_top(self, place: Place, target: bytes) -> bytes:
        """An absolute target: in a mount it is a path of this node, else one of the origin."""
        if place.mount is None:
            place.key = b""
            return target
        path = os.path.normpath(os.fsdecode(target))
        held = self._engine.mounts.holding(path)
        if held is None:
            raise InvalidArgument(f"{place.given}: leads to {path}, outside of the mount at {place.mount.mountpoint}")
        place.mount, key = held
        if place.namespace.origin_id != place.mount.namespace.origin_id:
            place.aliases.clear()
        place.namespace, place.key = place.mount.namespace, place.top
        return key[len(place.top) :]


def _silent(within_s: float) -> str:
    return f"it does not answer within {within_s:.3g} s"


async def _ask(namespace: Namespace, key: Key) -> Entry | None:
    try:
        return await namespace.lookup(key)
    except Absent:
        return None


async def _remember(namespace: Namespace, key: Key) -> Entry | None:
    entry = namespace.known(key) or namespace.entry(key)
    return None if entry is None or entry.kind is Kind.ABSENT else entry
