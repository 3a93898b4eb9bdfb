"""Worker processes that hold a session per target and measure when they are told to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

from tiercache.bench import measure
from tiercache.bench.dataset import Piece, digest_of, random_bytes
from tiercache.bench.measure import Flood, Timed
from tiercache.bench.sessions import Session, open_session
from tiercache.bench.slowness import SlowDisk
from tiercache.bench.targets import Setup
from tiercache.errors import TierCacheError


class _Failure(NamedTuple):
    message: str
    trace: str


class WorkerPool:
    """Spawned, not forked: an async client of a store does not survive a fork. A context manager."""

    def __init__(self, workers: int, disk: SlowDisk | None) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._disk = disk
        self._wanted = workers
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> WorkerPool:
        for number in range(self._wanted):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(theirs, self._disk), daemon=True, name=f"tiercache-bench-{number}"
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.kill()  # a client's thread may keep it; a process that has ended does not mind
            process.join()

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self._processes]

    def open(self, name: str, setup: Setup, *, workers: int) -> None:
        """Open a session under a name, in the first ``workers`` processes."""
        self._all(workers, "open", name, setup)

    def close(self, name: str, *, workers: int) -> None:
        self._all(workers, "close", name)

    def call(self, name: str, method: str, *, workers: int = 1) -> None:
        """Call a method of a session without arguments: ``prepare`` or ``forget``."""
        self._all(workers, "call", name, method)

    def read(self, name: str, pieces: Sequence[Piece], *, workers: int) -> list[Timed]:
        """Share pieces out and read them at the same time."""
        return self._each([("read", name, list(pieces[worker::workers])) for worker in range(workers)])

    def post(self, worker: int, method: str, *arguments: Any) -> None:
        """Give one worker something to do after what it has; each is answered in turn."""
        with suppress(BrokenPipeError):  # it has ended; there will be no answer
            self._pipes[worker].send((method, *arguments))

    def answer(self, worker: int, name: str) -> Any:
        """What the worker made of the first thing posted that is not answered. ``name`` is that of the session."""
        return _checked(_received(self._pipes[worker]), name)

    def keep(self, seed: str, size_bytes: int) -> bytes:
        """Let the first worker make the bytes that it will save, once; their digest."""
        [digest] = self._each([("keep", seed, size_bytes)])
        assert isinstance(digest, bytes)
        return digest

    def remove(self, name: str, file: str) -> None:
        """Remove a file through a session."""
        self._each([("remove", name, file)])

    def measure(self, name: str, function: str, *arguments: Any, **options: Any) -> Timed:
        """Run one of the timed loops in the first worker."""
        [timed] = self._each([("measure", name, function, arguments, options)])
        assert isinstance(timed, Timed)
        return timed

    def save(self, name: str, file: str, *, write_bytes: int, fsync: bool) -> Timed:
        """Save what was given to ``keep``."""
        [timed] = self._each([("save", name, file, write_bytes, fsync)])
        assert isinstance(timed, Timed)
        return timed

    def _all(self, workers: int, *message: Any) -> None:
        self._each([message] * workers)

    def _each(self, messages: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send one message to each of the first workers, then wait for all answers."""
        pipes = self._pipes[: len(messages)]
        for pipe, message in zip(pipes, messages, strict=True):
            pipe.send(message)
        answers = [_received(pipe) for pipe in pipes]
        return [
            _checked(answer, message[1] if message[0] != "keep" else "")
            for answer, message in zip(answers, messages, strict=True)
        ]


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return _Failure("a worker process of the benchmark ended", "")


def _checked(answer: Any, name: str) -> Any:
    if isinstance(answer, _Failure):
        if os.environ.get("TIERCACHE_DEBUG", "0") not in ("", "0"):
            print(answer.trace)
        raise TierCacheError(f"{name}: {answer.message}")
    return answer


def _serve(pipe: Connection, disk: SlowDisk | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    worker = _Worker(disk)
    while True:
        try:
            message = pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.end()
            return
        try:
            answer = getattr(worker, message[0])(*message[1:])
        except Exception as error:
            answer = _Failure(f"{type(error).__name__}: {error}", traceback.format_exc())
        with suppress(BrokenPipeError):  # the parent was told to end; the next recv says so
            pipe.send(answer)


class _Worker:
    """One method per message."""

    def __init__(self, disk: SlowDisk | None) -> None:
        self._disk = disk
        self._sessions: dict[str, Session] = {}
        self._kept = memoryview(b"")

    def open(self, name: str, setup: Setup) -> None:
        self._sessions[name] = open_session(setup, self._disk)

    def close(self, name: str) -> None:
        self._sessions.pop(name).close()

    def call(self, name: str, method: str) -> None:
        getattr(self._sessions[name], method)()

    def read(self, name: str, pieces: list[Piece]) -> Timed:
        return measure.read_pieces(self._sessions[name], pieces)

    def load(self, name: str, pieces: list[Piece]) -> Timed:
        return measure.read_pieces(self._sessions[name], pieces, collect=False)

    def flood(self, name: str, pieces: list[Piece], in_flight: int) -> Flood:
        return measure.read_flood(self._sessions[name], pieces, in_flight)

    def keep(self, seed: str, size_bytes: int) -> bytes:
        self._kept = memoryview(random_bytes(seed, size_bytes))
        return digest_of(self._kept)

    def save(self, name: str, file: str, write_bytes: int, fsync: bool) -> Timed:
        parts = [self._kept[at : at + write_bytes] for at in range(0, len(self._kept), write_bytes)]
        return measure.save_parts(self._sessions[name], file, parts, fsync=fsync)

    def remove(self, name: str, file: str) -> None:
        self._sessions[name].remove(file)

    def measure(self, name: str, function: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Timed:
        timed = getattr(measure, function)(self._sessions[name], *arguments, **options)
        assert isinstance(timed, Timed)
        return timed

    def end(self) -> None:
        for session in self._sessions.values():
            session.close()
