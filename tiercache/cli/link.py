"""Find the engine that a command means, and talk with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tiercache.cli.options import pairs
from tiercache.client import Client
from tiercache.engine.process import NoEngine
from tiercache.errors import ConfigError, EngineUnreachable

if TYPE_CHECKING:
    from tiercache.config import Config

UNIX_SOCKETS = Path("/proc/net/unix")


def starting(config: Config, settings: list[str] | None = None) -> Client:
    """A client of the engine of ``config.cache_dir``, which is started at the first request if there is none.
    ConfigError when one runs that has other ``settings`` than the command line gives."""
    # A command ends at once; an engine inside it would end with it.
    client = Client(config, mode="auto" if config.engine.mode == "inprocess" else config.engine.mode)
    client.require(config, pairs(settings, "--set"))
    return client


def attached(config: Config) -> Client:
    """A client of the engine that runs; NoEngine if there is none."""
    client = Client(config, mode="attach")
    client.status()
    return client


def attach_existing(config: Config) -> Client:
    """A client for a command that only asks. Without a cache directory given, the one engine that runs is meant."""
    if "cache_dir" in config.model_fields_set:
        _check_exists(config.cache_dir)
        with _told(f"no engine runs for cache directory {config.cache_dir}; another is named by --cache-dir DIR"):
            return attached(config)
    running = running_cache_dirs()
    if not running:
        with _told(
            f"no engine runs, neither for the default cache directory {config.cache_dir} nor for another that "
            "can be seen from here; one is named by --cache-dir DIR"
        ):
            return attached(config)
    if len(running) == 1:
        return attached(config.model_copy(update={"cache_dir": running[0]}))
    # Not the default one's, be it among them: what it says of the others' files would be wrong.
    raise ConfigError(f"several engines run; choose one with --cache-dir: {', '.join(map(str, running))}")


@contextmanager
def _told(text: str) -> Iterator[None]:
    """What to say when no engine runs: whoever wants to end one or to look at it is not to be told to start one."""
    try:
        yield
    except NoEngine:
        raise NoEngine(text) from None


def attach_or_recover(config: Config, settings: list[str] | None = None) -> Client:
    """A client for a command about staged files: where no engine runs, one is started, which recovers them.
    ``settings`` as in ``starting``."""
    try:
        client = attach_existing(config)
    except EngineUnreachable:
        if not config.cache_dir.exists():
            raise
        return starting(config)
    client.require(config, pairs(settings, "--set"))
    return client


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
