"""End an engine, its mounts drained first."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from tiercache.cli.drain import drain
from tiercache.cli.failure import Unfinished
from tiercache.cli.link import attach_existing
from tiercache.errors import Busy

if TYPE_CHECKING:
    from tiercache.config import Config

END_TIMEOUT_S = 120.0


def stop(config: Config, deadline_s: float) -> None:
    """Returns when the process is gone; Unfinished when it left staged bytes behind."""
    client = attach_existing(config)
    pid = client.status()["engine"]["pid"]
    unfinished: Unfinished | None = None
    try:
        drain(client, deadline_s)
    except Unfinished as error:
        unfinished = error
    process = os.pidfd_open(pid)
    try:
        client.stop(drained=True)
        client.close()
        if not select.select([process], [], [], END_TIMEOUT_S)[0]:
            raise Busy(f"the engine (pid {pid}) has not ended within {END_TIMEOUT_S:g} s: see its engine.log")
    finally:
        os.close(process)
    print(f"the engine (pid {pid}) has ended")
    if unfinished is not None:
        raise unfinished
