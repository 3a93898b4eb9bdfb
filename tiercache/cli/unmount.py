"""Unmount, also what a dead engine left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tiercache.cli.dead import take_away, tell_left
from tiercache.cli.drain import umount
from tiercache.cli.owner import engine_of_mount
from tiercache.errors import MountError

if TYPE_CHECKING:
    from tiercache.config import Config


def unmount(config: Config, mountpoint: str, deadline_s: float, *, lazy: bool) -> None:
    """Unmount and drain. What a dead engine left mounted is taken away, and what it left staged is told: no engine is
    started, since nobody knows with which settings. MountError when nothing of ours is mounted there."""
    mountpoint = os.path.abspath(mountpoint)
    client = engine_of_mount(config, mountpoint)
    if client is not None:
        umount(client, mountpoint, deadline_s, lazy=lazy)
        return
    mount = take_away(mountpoint)
    if mount is None:
        raise MountError(f"{mountpoint}: nothing of tiercache is mounted there")
    tell_left(config, mount, deadline_s)
