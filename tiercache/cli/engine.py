"""An engine in the foreground, for supervisors, containers and whoever wants to watch it."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import trio

from tiercache.engine.service import serve_engine

if TYPE_CHECKING:
    from tiercache.config import Config


def run(config: Config) -> None:
    """Be the engine until a signal or ``tiercache stop``. Its log goes to stderr."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s"
    )

    def ready(_: object) -> None:
        print(f"engine of {config.cache_dir} is ready (pid {os.getpid()})", flush=True)

    trio.run(lambda: serve_engine(config, on_ready=ready, signals=True))
