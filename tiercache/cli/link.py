"""Find the engine that a command means, and talk with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiercache.errors import ConfigError, EngineUnreachable, TierCacheError

if TYPE_CHECKING:
    from tiercache.client import Client
    from tiercache.config import Config

UNIX_SOCKETS = Path("/proc/net/unix")


def starting(config: Config) -> Client:
    """A client of the engine of ``config.cache_dir``, which is started at the first request if there is none."""
    from tiercache.client import Client

    # A command ends at once; an engine inside it would end with it.
    return Client(config, mode="auto" if config.engine.mode == "inprocess" else config.engine.mode)


def attached(config: Config) -> Client:
    """A client of the engine that runs; EngineUnreachable if there is none."""
    from tiercache.client import Client

    client = Client(config, mode="attach")
    client.status()
    return client


def attach_existing(config: Config) -> Client:
    """A client for a command that only asks. Without a cache directory given, the one engine that runs is meant."""
    if "cache_dir" in config.model_fields_set:
        _check_exists(config.cache_dir)
        return attached(config)
    running = running_cache_dirs()
    if config.cache_dir in running or not running:
        return attached(config)
    if len(running) == 1:
        return attached(config.model_copy(update={"cache_dir": running[0]}))
    raise ConfigError(f"several engines run; choose one with --cache-dir: {', '.join(map(str, running))}")


def attach_or_recover(config: Config) -> Client:
    """A client for a command about staged files: where no engine runs, one is started, which recovers them."""
    try:
        return attach_existing(config)
    except EngineUnreachable:
        if not config.cache_dir.exists():
            raise
        return starting(config)


def attach_for_path(config: Config, path: str) -> Client:
    """The same for a command about a local path: without a cache directory given, the engine that has it mounted."""
    if "cache_dir" not in config.model_fields_set and "://" not in path:
        for cache_dir in running_cache_dirs():
            client = _try(config, cache_dir)
            if client is not None and mount_of(client, path) is not None:
                return client
    return attach_existing(config)


def mount_of(client: Client, path: str) -> dict[str, Any] | None:
    """The engine's mount that ``path`` lies in, innermost first."""
    path = os.path.abspath(path)
    mounts = client.status()["mounts"]
    holding = [
        mount
        for mount in mounts
        if path == mount["mountpoint"] or path.startswith(mount["mountpoint"].rstrip("/") + "/")
    ]
    return max(holding, key=lambda mount: len(mount["mountpoint"]), default=None)


def _try(config: Config, cache_dir: Path) -> Client | None:
    try:
        return attached(config.model_copy(update={"cache_dir": cache_dir}))
    except TierCacheError:
        return None


def _check_exists(cache_dir: Path) -> None:
    if not cache_dir.exists():
        raise EngineUnreachable(
            f"{cache_dir}: there is no such cache directory; check --cache-dir and the configuration"
        )


def running_cache_dirs() -> list[Path]:
    """Cache directories of engines that this user may talk to, from the kernel's list of Unix sockets.

    One whose path is so long that it was bound through a descriptor is missing; it needs --cache-dir.
    """
    found = set()
    for line in UNIX_SOCKETS.read_text("utf-8", "surrogateescape").splitlines():
        path = line.partition("/")
        socket = Path(path[1] + path[2])
        if socket.name == "engine.sock" and os.access(socket, os.W_OK) and (socket.parent / "engine.lock").exists():
            found.add(socket.parent)
    return sorted(found)
