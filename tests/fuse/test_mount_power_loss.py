"""What a mount has promised when the power goes, and what becomes of what it has not."""

from __future__ import annotations

import os
import random
from pathlib import Path

from rig.mounts import EngineProcess, Source, mounted_for
from rig.power_loss import bring_on, cut
from tiercache.model import StagedState

RANDOM = random.Random(13)
DATA, MORE = RANDOM.randbytes(64 * 4096), RANDOM.randbytes(300_000)
"""The first ends with a page: of one that is written again, ``cut`` leaves nothing."""


def write(path: Path, *, then: bytes = b"", sync: bool = True) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(DATA)
        if sync:
            os.fsync(file.fileno())
        file.write(then)


def test_what_was_written_after_the_last_fsync_is_kept_and_told_and_does_not_go_up(
    tmp_path: Path, posix: Source, driver: str, mountpoint: Path
) -> None:
    """The kernel writes by itself where it can: only the times of the files tell what came after a sync."""
    engine = EngineProcess(tmp_path / "own", **{"staging.upload_delay_s": "1h"})
    after = tmp_path / "after" / "cache"
    try:
        for mounted in mounted_for(engine, posix, mountpoint, driver):
            write(mounted.path / "never synced", sync=False)
            write(mounted.path / "appended", then=MORE)
            write(mounted.path / "renamed over")
            write(mounted.path / "mover", then=MORE)
            os.rename(mounted.path / "mover", mounted.path / "renamed over")
            write(mounted.path / "synced")
            with open(mounted.path / "still open", "wb", buffering=0) as file:
                file.write(DATA)
                os.fsync(file.fileno())
                cut(engine.pid, engine.config.cache_dir, after)
            records = {record.key.rpartition(b"/")[2]: record for record in bring_on(tmp_path)}
            assert posix.names() == {"synced", "still open", "renamed over"}
            assert posix.get("synced") == posix.get("still open") == DATA
            assert posix.get("renamed over") == DATA + MORE
            assert {name: record.state for name, record in records.items()} == {
                b"appended": StagedState.CONFLICT,
                b"never synced": StagedState.LOST,
            }
            assert (after / "staging" / str(records[b"appended"].id)).read_bytes().startswith(DATA)
    finally:
        engine.stop()
