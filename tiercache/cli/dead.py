"""Mounts whose engine is gone, and its supervisor too: nobody serves them, and what was written lies in the journal."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tiercache.cli.drain import drain
from tiercache.cli.failure import Unfinished
from tiercache.cli.link import attached
from tiercache.cli.owner import mount_of
from tiercache.engine.process import NoEngine
from tiercache.errors import MountError
from tiercache.fuse import mountpoint as mountpoints
from tiercache.units import format_count

if TYPE_CHECKING:
    from tiercache.config import Config


def require_alive(config: Config, path: str) -> None:
    """MountError for a path in a dead mount, with what brings it back."""
    for name in (path, os.path.realpath(path)):
        mount = mount_of(name)
        if mount is not None:
            here, where = shlex.quote(mount.mountpoint), _option(_cache_dir(config, mount))
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


def tell_left(config: Config, mount: mountpoints.Mount, deadline_s: float) -> None:
    """Say what the engine of a mount that was taken away has not brought to the origin, once another one that runs by
    now has done what it could: Unfinished if that is something, or cannot be known."""
    cache_dir = _cache_dir(config, mount)
    if cache_dir is not None:
        with suppress(NoEngine):
            drain(attached(config.model_copy(update={"cache_dir": cache_dir})), deadline_s)
            return
    goes_on = f"`tiercache drain {_option(cache_dir)}`, with the settings that it had, goes on with"
    if cache_dir is None:
        raise Unfinished(f"its cache directory is not known, where written bytes may be left; {goes_on} them")
    left, complaint = _left(cache_dir)
    if complaint:
        raise Unfinished(f"{complaint}; {goes_on} what is left in {cache_dir}")
    if left:
        files = f"{format_count(left, 'file')} {'is' if left == 1 else 'are'}"
        raise Unfinished(f"{files} not in the origin, but kept in the journal; {goes_on} them")
    print(f"{cache_dir}: everything is in the origin")


def _left(cache_dir: Path) -> tuple[int, str]:
    """How many files have still to go up, as far as the journal tells, and what of it cannot be read."""
    from tiercache.journal.rescue import read_journal
    from tiercache.model import StagedState
    from tiercache.writeback.writeback import profile_uploads

    records, complaint = read_journal(cache_dir / "journal")
    left = [r for r in records if r.published and r.state is not StagedState.CANCELLED and profile_uploads(r)]
    return len(left), complaint


def _cache_dir(config: Config, mount: mountpoints.Mount) -> Path | None:
    return mountpoints.cache_dir_of(mount) or (config.cache_dir if mountpoints.is_of(config, mount) else None)


def _option(cache_dir: Path | None) -> str:
    return f"--cache-dir {'DIR' if cache_dir is None else shlex.quote(str(cache_dir))}"
