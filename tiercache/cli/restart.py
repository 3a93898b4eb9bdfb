"""Replace an engine, its mounts kept."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from tiercache.cli.link import attach_existing
from tiercache.errors import Busy

if TYPE_CHECKING:
    from tiercache.config import Config

END_TIMEOUT_S = 60.0


def restart(config: Config) -> None:
    """Returns when the new engine answers."""
    client = attach_existing(config)
    old = client.status()["engine"]["pid"]
    process = os.pidfd_open(old)
    try:
        client.request("restart")
        if not select.select([process], [], [], END_TIMEOUT_S)[0]:
            raise Busy(f"the engine (pid {old}) has not ended within {END_TIMEOUT_S:g} s: see its engine.log")
    finally:
        os.close(process)
    status = client.status()
    client.close()
    print(
        f"the engine (pid {old}) was replaced by pid {status['engine']['pid']}, version {status['engine']['version']}"
    )
