"""The detached engine: ``python -m tiercache.engine STATUS_DESCRIPTOR``, the configuration as JSON on standard input.

Started by ``process.start_detached`` only; people use ``tiercache engine``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Read the configuration, detach, and be the engine."""
    status = int(sys.argv[1])
    settings = json.load(sys.stdin)
    # Fork before anything is imported that has threads; the starter waits for the first process only, so that the
    # engine never becomes its zombie.
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _serve(settings, status)


def _serve(settings: dict[str, Any], status: int) -> None:
    import logging

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s"
    )
    log = logging.getLogger("tiercache.engine")
    reported = False

    def report(message: dict[str, Any]) -> None:
        nonlocal reported
        if not reported:
            reported = True
            # A starter that gave up has closed its end; the engine does not care.
            try:
                os.write(status, json.dumps(message).encode() + b"\n")
            except BrokenPipeError:
                log.warning("whoever started this engine did not wait for it")
            os.close(status)

    from tiercache.errors import EngineRunning, TierCacheError

    try:
        import trio

        from tiercache.config import Config
        from tiercache.engine.service import serve_engine

        config = Config.model_validate(settings)
        trio.run(
            lambda: serve_engine(
                config,
                on_ready=lambda _: report({"pid": os.getpid()}),
                idle_timeout_s=config.engine.idle_timeout_s,
                signals=True,
            )
        )
    except EngineRunning as error:
        report({"error": type(error).__name__, "message": str(error)})
    except TierCacheError as error:
        log.error("%s", error)
        report({"error": type(error).__name__, "message": str(error)})
        sys.exit(1)
    except BaseException as error:
        log.exception("the engine failed")
        where = settings.get("cache_dir", "the cache directory")
        text = f"the engine failed ({type(error).__name__}: {error}): see engine.log in {where}"
        report({"error": "EngineUnreachable", "message": " ".join(text.split())})
        sys.exit(1)


if __name__ == "__main__":
    main()
