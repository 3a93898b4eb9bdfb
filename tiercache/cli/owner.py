"""Which engine has a path mounted: told by the mount itself, else by the engines, all of them asked at once."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

from tiercache.cli.link import attached, running_cache_dirs
from tiercache.client import Client
from tiercache.engine.process import NoEngine
from tiercache.errors import EngineUnreachable, TierCacheError
from tiercache.fuse import mountpoint as mountpoints

if TYPE_CHECKING:
    from tiercache.config import Config

ANSWER_S = 10.0
"""How long engines may take to answer, all together: one of them may hang."""


def engine_of_mount(config: Config, path: str) -> Client | None:
    """A client of the engine that has ``path`` mounted, whatever is configured; None when none has.
    EngineUnreachable when it does not answer."""
    mount = mount_of(path)
    ours = mount is not None
    told = mountpoints.cache_dir_of(mount) if mount is not None else None
    running = [
        config.model_copy(update={"cache_dir": cache_dir})
        for cache_dir in dict.fromkeys([config.cache_dir, *running_cache_dirs(), *([told] if told else [])])
    ]
    if mount is not None:
        named = next((engine for engine in running if mountpoints.is_of(engine, mount)), None)
        if named is not None:
            return _owner(named, path, mount)
    # Its engine is dead, or of an earlier release, or mounted it in another mount namespace or behind a link.
    asked = _Asked(running, path)
    owner = asked.owner()
    if owner is None and ours and asked.silent:
        names = " and ".join(str(engine.cache_dir) for engine in asked.silent)
        raise EngineUnreachable(f"{path}: no engine that answers has it mounted; that of {names} does not answer")
    return attached(owner) if owner is not None else None


def mount_of(path: str) -> mountpoints.Mount | None:
    """The mount of ours that a path lies in by its spelling, whether it is served or not."""
    mount = mountpoints.holding(path)
    return mount if mount is not None and mount.type == mountpoints.FILE_SYSTEM_TYPE else None


def _owner(config: Config, path: str, mount: mountpoints.Mount) -> Client | None:
    """None where the engine that made the mount has ended; another one may run for its cache directory."""
    try:
        made = [mountpoints.absolute(root) for root in _mountpoints(config)]
    except NoEngine:
        return None
    except EngineUnreachable as error:
        raise EngineUnreachable(f"{path}: its engine does not answer: {error}; see its engine.log") from None
    return attached(config) if mount.mountpoint in made else None


class _Asked:
    """Engines that are asked whether they have a path mounted, each by a thread that nobody waits for at the end."""

    def __init__(self, engines: list[Config], path: str) -> None:
        self.silent = engines
        """Those that have given no answer."""
        self._path = path
        self._told: queue.SimpleQueue[tuple[Config, bool | None]] = queue.SimpleQueue()
        for engine in engines:
            threading.Thread(target=self._tell, args=[engine], daemon=True).start()

    def owner(self) -> Config | None:
        """The first one that says so; None when none of those does that answer in time."""
        deadline_s = time.monotonic() + ANSWER_S
        for _ in list(self.silent):
            try:
                engine, holds = self._told.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                break
            if holds is not None:
                self.silent = [other for other in self.silent if other is not engine]
            if holds:
                return engine
        return None

    def _tell(self, engine: Config) -> None:
        self._told.put((engine, self._ask(engine)))

    def _ask(self, engine: Config) -> bool | None:
        try:
            roots = [root.rstrip("/") for root in _mountpoints(engine)]
        except NoEngine:
            return False
        except TierCacheError:
            return None
        return any(self._path == root or self._path.startswith(f"{root}/") for root in roots)


def _mountpoints(config: Config) -> list[str]:
    hurried = config.engine.model_copy(update={"start_timeout_s": ANSWER_S})
    client = Client(config.model_copy(update={"engine": hurried}), mode="attach", silence_s=ANSWER_S)
    try:
        return [mount["mountpoint"] for mount in client.status()["mounts"] if not mount.get("elsewhere")]
    finally:
        client.close()
