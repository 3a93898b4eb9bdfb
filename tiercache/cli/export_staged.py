"""Rescue staged bytes from a cache directory that no engine uses any more."""

from __future__ import annotations

import sys
from pathlib import Path

from tiercache.cli.failure import Unfinished
from tiercache.cli.progress import progress
from tiercache.cli.status import print_json
from tiercache.engine.lock import owner_pid
from tiercache.errors import EngineRunning, TierCacheError
from tiercache.units import format_count, format_size
from tiercache.writeback.export import MANIFEST, export_staged


def export(directory: str, target: str, *, as_json: bool) -> None:
    """Unfinished when some files are not whole, or the journal is damaged."""
    cache_dir, place = Path(directory).absolute(), Path(target).absolute()
    pid = _owner(cache_dir)
    if pid is not None:
        raise EngineRunning(
            f"{cache_dir}: its engine runs (pid {pid}): tiercache drain brings the files to their origin"
        )
    with progress("exporting") as shown:
        done = export_staged(
            cache_dir,
            place,
            lambda done, total: shown.update(done, total, f"{format_size(done)} of {format_size(total)}"),
        )
    if as_json:
        print_json(done._asdict())
    else:
        print(f"{format_count(done.files, 'file')}, {format_size(done.size_bytes)}: see {place / MANIFEST}")
    if done.complaint:
        print(f"tiercache: {done.complaint}", file=sys.stderr)
    if done.complaint or done.whole < done.files:
        raise Unfinished(f"{done.files - done.whole} of {format_count(done.files, 'file')} not known to be whole")


def _owner(cache_dir: Path) -> int | None:
    try:
        return owner_pid(cache_dir)
    except TierCacheError:
        return None  # on a disk that is read-only nobody holds a lock
