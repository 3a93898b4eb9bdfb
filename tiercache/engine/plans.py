"""Plans that readers have told: kept in the cache directory, so that the next engine goes on with them.

A plan is a file of keys, each ended by a zero byte, which no key has. The client writes it and tells its name; here it
is read bit by bit, so that millions of entries cost no memory. Beside it lies what the next engine has to know.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from tiercache.engine.bringing import bring, push
from tiercache.engine.namespace import Namespace
from tiercache.errors import InvalidArgument, TierCacheError
from tiercache.journal import OriginSource
from tiercache.model import Key, OriginId
from tiercache.readahead import Plan, Running

if TYPE_CHECKING:
    from tiercache.engine.engine import Engine

PLANS_MAX: Final = 64
"""The one whose reader was silent longest is given up first."""

NOTE_S: Final = 5.0
"""How often it is written down how far the readers are."""

_READ_BYTES: Final = 64 * 1024
_KEYS, _NOTE = ".keys", ".json"

log = logging.getLogger("tiercache.engine")


class _Kept(NamedTuple):
    running: Running[Plan]
    reader: str
    about: dict[str, Any]


class Plans:
    """All plans of an engine, by the name of their files."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._directory = Path(engine.config.cache_dir) / "plans"
        self._kept: dict[str, _Kept] = {}
        self._waiting: dict[str, dict[str, Any]] = {}
        """Of an earlier engine, until somebody brings the keys that open their origins."""

    @property
    def directory(self) -> str:
        """Where clients write plans."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        return str(self._directory)

    def begin(self, name: str, namespace: Namespace, reader: str) -> None:
        """Run the plan in the file of this name, instead of the one that this reader had before."""
        if not name.isalnum() or not self._path(name, _KEYS).is_file():
            raise InvalidArgument(f"there is no plan {name!r} in {self._directory}")
        for other, kept in list(self._kept.items()):
            if kept.reader == reader:
                self.end(other)
        while len(self._kept) >= PLANS_MAX:
            self.end(min(self._kept, key=lambda other: self._kept[other].running.active_s))
        tree = namespace.tree
        about = {
            "reader": reader,
            "origin": tree.origin_id.hex(),
            "source": list(tree.source),
            "profile": namespace.profile.name,
        }
        self._run(name, namespace, about, position=0)
        self._note(name)

    def take_keys(self, name: str) -> Iterator[Key]:
        """The keys in the file of this name, which is no plan and has no name any more."""
        path = self._path(name, _KEYS)
        if not name.isalnum() or not path.is_file():
            raise InvalidArgument(f"there is no list {name!r} in {self._directory}")
        keys = keys_of(path)
        first = next(keys, None)  # opens the file
        path.unlink()
        return iter(()) if first is None else chain([first], keys)

    def reached(self, name: str, position: int) -> None:
        """A reader tells how far it is; an older plan of it is of no interest."""
        kept = self._kept.get(name)
        if kept is not None:
            self._engine.planned.reached(kept.running, position)
        elif name in self._waiting:
            self._waiting[name]["position"] = position

    def end(self, name: str) -> None:
        """The reader reads no more of it."""
        kept, waits = self._kept.pop(name, None), self._waiting.pop(name, None) is not None
        if kept is not None:
            self._engine.planned.end(kept.running)
        if kept is not None or waits:
            self._remove(name)

    def status(self) -> list[dict[str, Any]]:
        """Of each plan: reader, entries read, entries ahead, files under way, bytes that wait to be read."""
        return [
            {
                "reader": kept.reader,
                "read": kept.running.plan.front,
                "lead": kept.running.plan.lead,
                "in_flight": kept.running.in_flight,
                "held_bytes": kept.running.plan.held_bytes,
            }
            for kept in self._kept.values()
        ]

    async def next_uses(self, origin: OriginId, key: Key) -> list[dict[str, Any]]:
        """Of each plan that has a name still before it: reader, entry, how far that is ahead of the reader, and what
        was done for it. What lies beyond a plan's horizon is looked for in its file."""
        uses = []
        for name, kept in list(self._kept.items()):
            if kept.running.origin != origin:
                continue
            plan = kept.running.plan
            step = plan.next_use(key)
            if step is None:
                path, beyond = self._path(name, _KEYS), plan.known_until
                position, state = await trio.to_thread.run_sync(_position, path, key, beyond), ""
            else:
                position, state = step.position, "ready" if step.ready else "sent for" if step.sent else ""
            if position >= 0:
                ahead = max(0, position - plan.front)
                uses.append({"reader": kept.reader, "position": position, "ahead": ahead, "state": state})
        return uses

    async def recall(self) -> None:
        """Go on with what an earlier engine left. What cannot be read is given up: a plan is help, and no promise."""
        if not self._directory.is_dir():
            return
        for path in sorted(self._directory.iterdir()):
            if path.suffix == _NOTE:
                with self._giving_up(path.stem):
                    self._waiting[path.stem] = about = json.loads(path.read_bytes())
                    await self._engine.trees.prepare(_origin(about), OriginSource(*about["source"]))
        self._go_on()
        for path in self._directory.iterdir():
            if path.stem not in self._kept and path.stem not in self._waiting:
                path.unlink(missing_ok=True)

    def _go_on(self) -> None:
        for name, about in list(self._waiting.items()):
            origin = _origin(about)
            if self._engine.trees.get(origin) is not None:
                with self._giving_up(name):
                    position = max(0, int(about.pop("position")))
                    self._run(name, self._engine.namespace(origin, about["profile"]), about, position=position)
                    del self._waiting[name]

    @contextmanager
    def _giving_up(self, name: str) -> Iterator[None]:
        """What an earlier engine noted of a plan may be damaged, or mean nothing to the settings of this one."""
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError, TierCacheError) as error:
            self.end(name)
            log.warning("a plan of an earlier engine is given up: %s", error)

    async def run(self) -> None:
        """Write down how far the readers are, and give up what nobody reads any more; until cancelled."""
        began_s, idle_s = trio.current_time(), self._engine.config.plan.idle_s
        while True:
            await trio.sleep(NOTE_S)
            self._go_on()
            oldest_s = trio.current_time() - idle_s
            for name, kept in list(self._kept.items()):
                if kept.running.active_s < oldest_s:
                    log.info("the plan of %s is given up: nothing of it is read", kept.reader)
                    self.end(name)
                else:
                    self._note(name)
            if began_s < oldest_s:
                for name in list(self._waiting):
                    self.end(name)

    def _run(self, name: str, namespace: Namespace, about: dict[str, Any], *, position: int) -> None:
        most_bytes = self._engine.config.plan.budget_bytes // 4
        running = self._engine.planned.start(
            Plan(partial(keys_of, self._path(name, _KEYS)), position=position),
            namespace.origin_id,
            partial(bring, namespace, self._engine.cache, most_bytes=most_bytes),
            partial(push, namespace, self._engine.cache),
        )
        self._kept[name] = _Kept(running, about["reader"], about)

    def _note(self, name: str) -> None:
        kept = self._kept[name]
        path = self._path(name, _NOTE)
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps({**kept.about, "position": kept.running.plan.front}))
            temporary.rename(path)
        except OSError as error:  # the next engine begins further back then
            log.warning("%s: %s", path, error)

    def _remove(self, name: str) -> None:
        for suffix in (_NOTE, _KEYS):
            with suppress(OSError):
                self._path(name, suffix).unlink(missing_ok=True)

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / f"{name}{suffix}"


def _origin(about: dict[str, Any]) -> OriginId:
    return OriginId(bytes.fromhex(about["origin"]))


def _position(path: Path, key: Key, skip: int) -> int:
    """Number of the first entry after ``skip`` that is a key, -1 if there is none. Blocking."""
    return next((number for number, other in enumerate(keys_of(path, skip=skip), skip) if other == key), -1)


def keys_of(path: Path, skip: int = 0) -> Iterator[Key]:
    """The keys of a plan's file after the first ``skip``, read as they are asked for. A file that cannot be read (any
    more) has no more keys."""
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by the generator's end
    except OSError:
        return
    with file:
        rest = b""
        while True:
            try:
                data = file.read(_READ_BYTES)
            except OSError as error:
                log.warning("a plan ends here: %s", error)
                return
            if not data:
                return
            data = rest + data
            here = data.count(b"\0")
            if here <= skip:  # most of millions: no key of these is made
                skip, rest = skip - here, data[data.rfind(b"\0") + 1 :]
                continue
            *keys, rest = data.split(b"\0")
            yield from keys[skip:]
            skip = 0
