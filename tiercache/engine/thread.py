"""An engine in a thread of the user's own process, for ``engine.mode = "inprocess"``."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from pathlib import Path

import trio

from tiercache.config import Config
from tiercache.engine.engine import Engine
from tiercache.engine.service import serve_engine
from tiercache.errors import EngineUnreachable

log = logging.getLogger("tiercache.engine")


class EngineThread:
    """Runs one engine; ``start`` returns when it serves, ``stop`` when it has ended."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._engine: Engine | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        # A daemon: the interpreter would join any other kind before it runs exit handlers, and wait for ever.
        self._thread = threading.Thread(target=self._main, name="tiercache-engine", daemon=True)

    def start(self) -> None:
        """Start and wait until clients can connect; raises what kept the engine from starting."""
        self._thread.start()
        if not self._ready.wait(self._config.engine.start_timeout_s):
            limit_s = self._config.engine.start_timeout_s
            raise EngineUnreachable(f"the engine in this process was not ready within {limit_s:g} s")
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            trio.run(lambda: serve_engine(self._config, on_ready=self._on_ready))
        except BaseException as error:
            self._error = error
            if self._ready.is_set():
                log.exception("the engine of %s failed", self._config.cache_dir)
        finally:
            self._ready.set()

    def _on_ready(self, engine: Engine) -> None:
        self._engine = engine
        self._token = trio.lowlevel.current_trio_token()
        self._ready.set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the engine, which drains for ``engine.stop_drain_s`` at most, and join its thread."""
        engine, token = self._engine, self._token
        if engine is not None and token is not None and self.alive:
            try:
                trio.from_thread.run_sync(engine.stop, trio_token=token)
            except trio.RunFinishedError:
                log.debug("the engine had ended by itself")
        self._thread.join()


_running: dict[Path, EngineThread] = {}
_guard = threading.Lock()


def start_in_process(config: Config) -> None:
    """Run the engine of ``config.cache_dir`` in this process until it exits. Does nothing if it already does."""
    with _guard:
        running = _running.get(config.cache_dir)
        if running is not None and running.alive:
            return
        thread = EngineThread(config)
        thread.start()
        if not _running:
            atexit.register(stop_all)
        _running[config.cache_dir] = thread


def stop_all() -> None:
    """End every engine of this process."""
    with _guard:
        threads = list(_running.values())
        _running.clear()
    for thread in threads:
        thread.stop()


def _forget_all() -> None:
    # The engine lives on in the parent only; its child reaches it through the socket.
    global _guard
    _guard = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_all)
