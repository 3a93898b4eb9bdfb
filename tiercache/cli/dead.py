"""Mounts whose engine is gone, and its supervisor too: nobody serves them, and what was written lies in the journal."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tiercache.cli.owner import mount_of
from tiercache.errors import MountError
from tiercache.fuse import mountpoint as mountpoints

if TYPE_CHECKING:
    from tiercache.config import Config


def require_alive(config: Config, path: str) -> None:
    """MountError for a path in a dead mount, with what brings it back."""
    for name in (path, os.path.realpath(path)):
        mount = mount_of(name)
        if mount is not None:
            here, where = shlex.quote(mount.mountpoint), option(cache_dir_of(config, mount))
            raise MountError(
                f"{path}: its mount at {mount.mountpoint} is dead: its engine and the supervisor of that have ended; "
                f"`tiercache mount URL {here} {where}` brings it back, `tiercache umount {here}` takes it away"
            )


def take_away(mountpoint: str) -> mountpoints.Mount | None:
    """Unmount what a dead engine left; None where nothing of ours is mounted. MountError when it is not dead."""
    mount = mountpoints.mounted_at(mountpoints.absolute(mountpoint))
    if mount is None or mount.type != mountpoints.FILE_SYSTEM_TYPE:
        return None
    if not mountpoints.is_dead(mount.mountpoint):
        raise MountError(f"{mountpoint}: its engine runs, and does not answer this command; see its engine.log")
    mountpoints.unmount(mount.mountpoint, detach=True)
    print(f"{mountpoint}: took away the mount that a dead engine had left")
    return mount


def cache_dir_of(config: Config, mount: mountpoints.Mount) -> Path | None:
    """Whose mount it was; None where it does not tell."""
    return mountpoints.cache_dir_of(mount) or (config.cache_dir if mountpoints.is_of(config, mount) else None)


def option(cache_dir: Path | None) -> str:
    """How a command is told of a cache directory."""
    return f"--cache-dir {'DIR' if cache_dir is None else shlex.quote(str(cache_dir))}"
