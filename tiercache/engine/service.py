"""Run an engine with its socket until somebody stops it: the body of detached, foreground and in-process engines."""

from __future__ import annotations

import logging
import math
import resource
import signal
from collections.abc import Callable

import trio

from tiercache.config import Config
from tiercache.engine.ceiling import tune_malloc
from tiercache.engine.engine import Engine
from tiercache.engine.idle import stop_when_idle
from tiercache.engine.keeper import Keeper
from tiercache.engine.lock import EngineLock
from tiercache.engine.server import Server

log = logging.getLogger("tiercache.engine")


async def serve_engine(
    config: Config,
    *,
    on_ready: Callable[[Engine], None],
    idle_timeout_s: float = math.inf,
    signals: bool = False,
    keeper: Keeper | None = None,
) -> Engine:
    """Own ``config.cache_dir`` until ``Engine.stop``, a signal (with ``signals``) or ``idle_timeout_s`` of idleness.

    ``on_ready`` is called once recovery is through and clients can connect. Returns the engine that has ended: its
    ``left`` files, and whether it is ``replacing`` itself, so that the supervisor behind ``keeper`` shall start another
    one at once. Raises EngineRunning when another engine owns
    the directory, and whatever keeps the engine from starting.
    """
    keeper = keeper or Keeper()
    lock = EngineLock(config.cache_dir)
    try:
        _raise_descriptor_limit()
        if signals:
            tune_malloc()
        return await _run(config, keeper, on_ready=on_ready, idle_timeout_s=idle_timeout_s, signals=signals)
    except BaseExceptionGroup as group:
        error = _cause(group)
        if isinstance(error, trio.Cancelled):
            raise
        # Whoever starts an engine wants the one line that says what is wrong, not the nurseries that it came through.
        raise error from group
    finally:
        keeper.close()
        lock.release()


async def _run(
    config: Config, keeper: Keeper, *, on_ready: Callable[[Engine], None], idle_timeout_s: float, signals: bool
) -> Engine:
    # Who handles the signals is alone in its process.
    engine = Engine(config, keeper, own_process=signals)
    server = Server(engine)
    async with trio.open_nursery() as signal_nursery:
        if signals:
            await signal_nursery.start(_stop_on_signal, engine)
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            # In the engine's own nursery: nobody is served from a state that is closed.
            await engine.nursery.start(server.run)
            if idle_timeout_s < math.inf:
                engine.nursery.start_soon(stop_when_idle, engine, server, idle_timeout_s)
            keeper.ready()
            on_ready(engine)
        signal_nursery.cancel_scope.cancel()
    return engine


async def _stop_on_signal(engine: Engine, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        task_status.started()
        async for number in received:
            log.info("stopping on %s", signal.Signals(number).name)
            engine.stop()


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _raise_descriptor_limit() -> None:
    # Each client, writer and open file takes a descriptor; the soft limit is often 1024 while the hard one is not.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
