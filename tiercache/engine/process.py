"""Reach the engine of a cache directory: attach, or start one and wait until it answers."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import tiercache
from tiercache import ipc
from tiercache.config import Config, EngineMode
from tiercache.engine.lock import SUPERVISOR_LOCK_NAME, cache_dir_error, owner_pid, prepare_cache_dir
from tiercache.errors import Broken, EngineRunning, EngineUnreachable

LOG_NAME: Final = "engine.log"
LOG_MAX_BYTES: Final = 16 * 1024 * 1024
"""A longer log becomes ``engine.log.1`` at the next start."""

STARTER_NAME: Final = "engine.starting"
POLL_S: Final = 0.02


class NoEngine(EngineUnreachable):
    """None runs, and none was to be started."""


def connect_or_start(config: Config, mode: EngineMode, *, on_start: Callable[[], None] = lambda: None) -> socket.socket:
    """A socket connected to the engine of ``config.cache_dir``; started first if there is none and ``mode`` allows it.

    Takes at most ``engine.start_timeout_s`` and the start itself. However many processes race, one engine starts.
    EngineUnreachable when none answers (NoEngine when none runs), else the error that kept the engine from starting.
    ``on_start`` is called when it was this call that started it.
    """
    sock = _connect(config)
    if sock is not None:
        return sock
    deadline = time.monotonic() + config.engine.start_timeout_s
    if mode != "attach":
        prepare_cache_dir(config.cache_dir)
    while True:
        if mode == "attach":
            sock = _connect(config)
            if sock is None and not _is_supervised(config.cache_dir):
                sock = _connect(config)  # it came up, and its supervisor went, between the two looks
                if sock is None:
                    raise _no_engine(config)
            if sock is not None:
                return sock
        else:
            with _starter_lock(config.cache_dir) as ours:
                sock = _connect(config)
                if sock is not None:
                    return sock
                if ours and owner_pid(config.cache_dir) is None and not _is_supervised(config.cache_dir):
                    with suppress(EngineRunning):
                        _start(config, mode)
                        on_start()
                    continue
        if time.monotonic() > deadline:
            raise EngineUnreachable(
                f"the engine of cache directory {config.cache_dir} (pid {owner_pid(config.cache_dir)}) holds its lock "
                f"but did not answer within {config.engine.start_timeout_s:g} s: see {config.cache_dir / LOG_NAME}"
            )
        time.sleep(POLL_S)


def _no_engine(config: Config) -> NoEngine:
    return NoEngine(
        f"no engine runs for cache directory {config.cache_dir}: start one with "
        f"`tiercache engine --cache-dir {config.cache_dir}`, or set engine.mode to auto"
    )


def _is_supervised(cache_dir: Path) -> bool:
    """Whether somebody is there to replace the engine that has just ended, or is about to end as well."""
    return owner_pid(cache_dir, SUPERVISOR_LOCK_NAME) is not None


def _connect(config: Config) -> socket.socket | None:
    try:
        return ipc.connect(config.cache_dir, config.engine.start_timeout_s)
    except TimeoutError as error:
        text = f"the engine of cache directory {config.cache_dir} does not accept connections"
        raise EngineUnreachable(text) from error
    except OSError as error:
        raise cache_dir_error(config.cache_dir, error) from error


def _start(config: Config, mode: EngineMode) -> None:
    if mode == "inprocess":
        # Imports trio and every origin: only for those who ask for it.
        from tiercache.engine.thread import start_in_process

        start_in_process(config)
    else:
        start_detached(config)


@contextmanager
def _starter_lock(cache_dir: Path) -> Iterator[bool]:
    """Try to become the one starter; dies with the process."""
    try:
        descriptor = os.open(cache_dir / STARTER_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise cache_dir_error(cache_dir, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def start_detached(config: Config) -> int:
    """Start a supervisor and its engine in a session of their own; returns the engine's pid when it is ready to serve.

    Raises what kept it from starting, in the engine's own words. It logs to ``cache_dir/engine.log``.
    """
    prepare_cache_dir(config.cache_dir)
    read_end, write_end = os.pipe()
    try:
        try:
            log = _open_log(config.cache_dir)
            try:
                _spawn(config, log, write_end)
            finally:
                os.close(log)
        finally:
            os.close(write_end)
        return _await_ready(config, read_end)
    finally:
        os.close(read_end)


def _spawn(config: Config, log: int, status: int) -> None:
    try:
        subprocess.run(
            supervisor_command(status),
            input=supervisor_settings(config),
            stdout=log,
            stderr=log,
            pass_fds=(status,),
            env=supervisor_environment(),
            timeout=config.engine.start_timeout_s,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        text = f"the engine could not be started ({error}): see {config.cache_dir / LOG_NAME}"
        raise EngineUnreachable(text) from error


def supervisor_command(status: int) -> list[str]:
    """The command line of a supervisor; ``status`` is the descriptor on which the engine tells that it is ready."""
    # -P: the user's working directory must not be searched for modules.
    return [sys.executable, "-P", "-m", "tiercache.engine.supervisor", str(status)]


HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"
"""Lets malloc ask for huge pages for its mappings. The bytes of each ranged GET are a fresh one: in pages of 4 KiB the
faults alone take a third of an engine's processor time for a cold read. glibc reads it at a program's start only."""


def supervisor_environment() -> dict[str, str]:
    """Our environment, in which this package is found wherever it was found by us: at the end of the path."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(tiercache.__file__)))
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), home)))
    return {"GLIBC_TUNABLES": HUGE_PAGES, **os.environ, "PYTHONPATH": path}


def supervisor_settings(config: Config) -> bytes:
    """What a supervisor reads from its standard input: its own few settings, and the engine's in one piece."""
    engine = config.engine
    settings = {
        "cache_dir": str(config.cache_dir),
        "start_timeout_s": engine.start_timeout_s,
        "restart_limit": engine.restart_limit,
        "restart_window_s": engine.restart_window_s,
        "restart_backoff_s": engine.restart_backoff_s,
        "configuration": config.model_dump(mode="json", exclude_unset=True),
    }
    return json.dumps(settings).encode()


def _open_log(cache_dir: Path) -> int:
    path = cache_dir / LOG_NAME
    try:
        with suppress(FileNotFoundError):
            if path.stat().st_size > LOG_MAX_BYTES:
                path.replace(cache_dir / f"{LOG_NAME}.1")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise cache_dir_error(cache_dir, error) from error


def _await_ready(config: Config, read_end: int) -> int:
    """Read the one line in which the engine tells that it is ready or what is wrong."""
    deadline = time.monotonic() + config.engine.start_timeout_s
    line = b""
    while not line.endswith(b"\n"):
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0 or not select.select([read_end], [], [], remaining_s)[0]:
            raise EngineUnreachable(
                f"the engine was not ready within {config.engine.start_timeout_s:g} s (engine.start_timeout_s): "
                f"see {config.cache_dir / LOG_NAME}"
            )
        data = os.read(read_end, 65536)
        if not data:
            raise EngineUnreachable(f"the engine ended while it started: see {config.cache_dir / LOG_NAME}")
        line += data
    report = json.loads(line)
    if "error" in report:
        raise ipc.error_of(report)
    pid = report["pid"]
    if not isinstance(pid, int):
        raise Broken(f"the engine said it is ready without its pid: {report!r}")
    return pid
