"""What a PATH argument means: which engine knows of it, and how that one is asked for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tiercache.cli.link import attach_existing
from tiercache.cli.origin import choose_origin
from tiercache.cli.owner import engine_of_mount
from tiercache.errors import MountError

if TYPE_CHECKING:
    from tiercache.client import Client
    from tiercache.config import Config


def engine_of(config: Config, path: str, *, attach: Callable[[Config], Client] = attach_existing) -> tuple[Client, str]:
    """For a URL the engine of ``config``, which ``attach`` finds; else the one whose mount the path lies under.
    MountError if none is."""
    if "://" in path:
        origin = choose_origin(config, path, client=None, options=None, profile=None)
        return attach(config), origin.url
    path = os.path.abspath(path)
    engine = engine_of_mount(config, path)
    if engine is None:
        raise MountError(f"{path}: lies under no mount of tiercache; of an origin ask by its URL, file://{path}")
    return engine, path
