"""Unmount, also what a dead engine left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tiercache.cli.drain import drain, umount
from tiercache.cli.link import attach_for_path, attach_or_recover
from tiercache.errors import EngineUnreachable, MountError

if TYPE_CHECKING:
    from tiercache.config import Config


def unmount(config: Config, mountpoint: str, deadline_s: float, *, lazy: bool) -> None:
    """Unmount and drain. What a dead engine left mounted is taken away, and a new engine drains its files."""
    mountpoint = os.path.abspath(mountpoint)
    try:
        client = attach_for_path(config, mountpoint)
    except EngineUnreachable:
        if not _take_away_dead(mountpoint):
            raise MountError(f"{mountpoint}: nothing of tiercache is mounted there") from None
        drain(attach_or_recover(config), deadline_s)
    else:
        umount(client, mountpoint, deadline_s, lazy=lazy)


def _take_away_dead(mountpoint: str) -> bool:
    from tiercache.fuse import mountpoint as mountpoints

    mount = mountpoints.mounted_at(mountpoints.absolute(mountpoint))
    if mount is None or mount.type != mountpoints.FILE_SYSTEM_TYPE:
        return False
    mountpoints.unmount(mount.mountpoint, detach=True)
    print(f"{mountpoint}: took away the mount that a dead engine had left")
    return True
