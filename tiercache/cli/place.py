"""What a PATH argument means: which engine knows of it, and how that one is asked for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tiercache.cli.dead import require_alive
from tiercache.cli.link import attach_existing
from tiercache.cli.origin import OriginChoice, choose_origin
from tiercache.cli.owner import engine_of_mount, mount_of
from tiercache.errors import MountError

if TYPE_CHECKING:
    from tiercache.client import Client
    from tiercache.config import Config


class Place(NamedTuple):
    """A path under a mount of an engine, or a URL."""

    engine: Client
    path: str
    origin: OriginChoice | None = None
    """How we would open a URL; the engine has it open already, or does it so."""

    @property
    def asker(self) -> list[Any] | None:
        """What an engine is told of us. Its own environment may have no keys, or those of somebody else."""
        return None if self.origin is None else [self.origin.client, self.origin.options, self.origin.profile]

    def request(self, op: str, **arguments: Any) -> Any:
        """Ask the engine something of it."""
        if self.origin is not None:
            arguments["asker"] = self.asker
        return self.engine.request(op, path=self.path, **arguments)


def place_of(config: Config, path: str, *, attach: Callable[[Config], Client] = attach_existing) -> Place:
    """For a URL the engine of ``config``, which ``attach`` finds; else the one whose mount the path lies under, also
    when it is reached by a symlink, or named by a file URL. MountError if none is."""
    if "://" in path:
        origin = choose_origin(config, path, client=None, options=None, profile=None)
        mounted = _mounted(config, origin.url.removeprefix("file://")) if origin.url.startswith("file://") else None
        return mounted or Place(attach(config), origin.url, origin)
    path = os.path.abspath(path)
    mounted = _mounted(config, path)
    if mounted is None:
        require_alive(config, path)
        raise MountError(f"{path}: lies under no mount of tiercache; of an origin ask by its URL, file://{path}")
    return mounted


def _mounted(config: Config, path: str) -> Place | None:
    engine = engine_of_mount(config, path)
    if engine is not None:
        return Place(engine, path)
    if mount_of(path) is not None:
        return None  # nobody may be there to answer who follows its links
    real = os.path.realpath(path)
    engine = engine_of_mount(config, real) if real != path else None
    return Place(engine, real) if engine is not None else None
