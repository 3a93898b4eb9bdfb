"""``python -m tiercache.engine.supervisor STATUS_DESCRIPTOR [--foreground]``, settings as JSON on standard input.

Started by ``tiercache.engine.process`` (detached) and by ``tiercache engine`` (in the foreground).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from tiercache.engine.lock import SUPERVISOR_LOCK_NAME, EngineLock, owner_pid
from tiercache.engine.supervisor.restarts import Restarts
from tiercache.engine.supervisor.supervisor import Launch, Supervisor
from tiercache.errors import EngineRunning, TierCacheError

POLL_S: Final = 0.02


def main() -> int:
    """Take the place of the one supervisor of a cache directory, and supervise."""
    status, foreground = int(sys.argv[1]), "--foreground" in sys.argv
    settings = json.load(sys.stdin)
    if not foreground:
        _detach()
    try:
        lock = _take_lock(Path(settings["cache_dir"]), settings["start_timeout_s"])
    except TierCacheError as error:
        return _refused(error, status)
    restarts = Restarts(settings["restart_limit"], settings["restart_window_s"], settings["restart_backoff_s"])
    launch = Launch(json.dumps(settings["configuration"]).encode(), foreground, status)
    try:
        return Supervisor(launch, restarts).run()
    finally:
        lock.release()


def _detach() -> None:
    # The starter waits for the first process only, so that we never become its zombie.
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _take_lock(cache_dir: Path, timeout_s: float) -> EngineLock:
    """Held as long as we are there: whoever finds no engine then waits for the next one instead of starting it.
    EngineRunning when there is an engine, or a supervisor that does not bring one up in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return EngineLock(cache_dir, SUPERVISOR_LOCK_NAME)
        except EngineRunning:
            # Its engine ended just now, and it is about to end as well or to start another.
            if owner_pid(cache_dir) is not None or time.monotonic() > deadline_s:
                raise
        time.sleep(POLL_S)


def _refused(error: TierCacheError, status: int) -> int:
    """Tell the starter, or the terminal."""
    text = str(error)
    if status < 0:
        print(f"tiercache: {' '.join(text.split())}", file=sys.stderr)
        return 1
    report: dict[str, Any] = {"error": type(error).__name__, "message": text}
    try:
        os.write(status, json.dumps(report).encode() + b"\n")
    except BrokenPipeError:
        print("whoever started this engine did not wait for it", file=sys.stderr)
    return 0 if isinstance(error, EngineRunning) else 1


if __name__ == "__main__":
    sys.exit(main())
