"""Unmount, also what a dead engine left."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tiercache.cli.dead import cache_dir_of, option, take_away
from tiercache.cli.drain import drain, umount
from tiercache.cli.failure import Unfinished
from tiercache.cli.link import attached
from tiercache.cli.owner import engine_of_mount
from tiercache.engine.process import NoEngine
from tiercache.errors import MountError
from tiercache.units import format_count

if TYPE_CHECKING:
    from tiercache.config import Config
    from tiercache.fuse import mountpoint as mountpoints


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
    _tell_left(config, mount, deadline_s)


def _tell_left(config: Config, mount: mountpoints.Mount, deadline_s: float) -> None:
    """Say what the engine of a mount that was taken away has not brought to the origin, once another one that runs by
    now has done what it could: Unfinished if that is something, or cannot be known."""
    cache_dir = cache_dir_of(config, mount)
    if cache_dir is not None:
        with suppress(NoEngine):
            drain(attached(config.model_copy(update={"cache_dir": cache_dir})), deadline_s)
            return
    goes_on = f"`tiercache drain {option(cache_dir)}`, with the settings that it had, goes on with"
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
