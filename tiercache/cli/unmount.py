"""Unmount, also what a dead engine left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tiercache.cli.drain import drain, umount
from tiercache.cli.link import attach_or_recover
from tiercache.cli.owner import engine_of_mount
from tiercache.errors import MountError

if TYPE_CHECKING:
    from tiercache.config import Config


def unmount(config: Config, mountpoint: str, deadline_s: float, *, lazy: bool) -> None:
    """Unmount and drain. What a dead engine left mounted is taken away, and a new engine drains its files."""
    mountpoint = os.path.abspath(mountpoint)
    client = engine_of_mount(config, mountpoint)
    if client is not None:
        umount(client, mountpoint, deadline_s, lazy=lazy)
    elif _take_away_dead(mountpoint):
        drain(attach_or_recover(config), deadline_s)
    else:
        raise MountError(f"{mountpoint}: nothing of tiercache is mounted there")


def _take_away_dead(mountpoint: str) -> bool:
    from tiercache.fuse import mountpoint as mountpoints

    mount = mountpoints.mounted_at(mountpoints.absolute(mountpoint))
    if mount is None or mount.type != mountpoints.FILE_SYSTEM_TYPE:
        return False
    if not mountpoints.is_dead(mount.mountpoint):
        raise MountError(f"{mountpoint}: its engine runs, and does not answer this command; see its engine.log")
    mountpoints.unmount(mount.mountpoint, detach=True)
    print(f"{mountpoint}: took away the mount that a dead engine had left")
    return True
