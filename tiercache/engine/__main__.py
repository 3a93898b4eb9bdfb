"""The engine's process: ``python -m tiercache.engine CHANNEL STATUS [--foreground]``, its configuration as JSON on
standard input. CHANNEL and STATUS are descriptors of the supervisor that starts it; nobody else does.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from tiercache.engine.keeper import Keeper
from tiercache.engine.supervisor.channel import EXIT_REPLACE, EXIT_STAGED

log = logging.getLogger("tiercache.engine")


class Report:
    """What the engine tells once, when it serves or cannot: whoever started it, or the terminal."""

    def __init__(self, status: int, *, foreground: bool) -> None:
        self._status = status
        self._foreground = foreground

    def ready(self, cache_dir: object) -> None:
        self._send({"pid": os.getpid()})
        if self._foreground:
            print(f"engine of {cache_dir} is ready (pid {os.getpid()})", flush=True)

    def failed(self, kind: str, text: str) -> None:
        self._send({"error": kind, "message": text})
        if self._foreground:
            print(f"tiercache: {' '.join(text.split())}", file=sys.stderr)

    def _send(self, message: dict[str, Any]) -> None:
        if self._status < 0:
            return
        status, self._status = self._status, -1
        # A starter that gave up has closed its end; the engine does not care.
        try:
            os.write(status, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            log.warning("whoever started this engine did not wait for it")
        os.close(status)


def main() -> int:
    """Be the engine; returns the exit status."""
    channel, status, foreground = int(sys.argv[1]), int(sys.argv[2]), "--foreground" in sys.argv
    settings = json.load(sys.stdin)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s"
    )
    report = Report(status, foreground=foreground)

    from tiercache.errors import EngineRunning, TierCacheError

    try:
        return _serve(settings, Keeper.on(channel), report, foreground=foreground)
    except EngineRunning as error:
        report.failed(type(error).__name__, str(error))
        return 1 if foreground else 0
    except TierCacheError as error:
        if not foreground:
            log.error("%s", error)
        report.failed(type(error).__name__, str(error))
        return 1
    except BaseException as error:
        log.exception("the engine failed")
        where = settings.get("cache_dir", "the cache directory")
        text = f"the engine failed ({type(error).__name__}: {error}): see engine.log in {where}"
        report.failed("EngineUnreachable", " ".join(text.split()))
        return 1


def _serve(settings: dict[str, Any], keeper: Keeper, report: Report, *, foreground: bool) -> int:
    import trio

    from tiercache.config import Config
    from tiercache.engine.engine import Engine
    from tiercache.engine.service import serve_engine

    config = Config.model_validate(settings)
    # One that was started on demand ends when nobody needs it any more.
    idle_timeout_s = float("inf") if foreground else config.engine.idle_timeout_s

    async def serve() -> Engine:
        return await serve_engine(
            config,
            on_ready=lambda _: report.ready(config.cache_dir),
            idle_timeout_s=idle_timeout_s,
            signals=True,
            keeper=keeper,
        )

    ended = trio.run(serve)
    if ended.replacing:
        return EXIT_REPLACE
    return EXIT_STAGED if ended.left else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # All is closed. A thread that still waits for an origin which hangs is not to be waited for.
    os._exit(code)
