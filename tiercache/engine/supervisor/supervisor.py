"""The supervisor's loop: start an engine, keep what it hands over, wait for its end, replace it or let go."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tiercache.engine.supervisor.channel import EXIT_REPLACE, EXIT_STAGED, Message, close_all, pair, receive, send
from tiercache.engine.supervisor.letting_go import let_go, lost_mount
from tiercache.engine.supervisor.restarts import Restarts

PROTOCOL_VERSION: Final = 1

HELD_MAX: Final = 1024
"""Mounts kept for one engine; further ones end with it."""

ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Launch(NamedTuple):
    """How an engine is started."""

    configuration: bytes
    """JSON for the engine's standard input."""
    foreground: bool
    status: int
    """Descriptor on which the first engine tells its starter how it went; -1 if nobody waits."""


class Engine(NamedTuple):
    """The one that runs now."""

    pid: int
    process: int
    channel: socket.socket


@dataclass(slots=True)
class Held:
    """One mount that outlives its engine."""

    description: Message
    descriptors: tuple[int, ...]


class Supervisor:
    """Runs in the main thread of a process of its own."""

    def __init__(self, launch: Launch, restarts: Restarts, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._launch = launch
        self._restarts = restarts
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._engine: Engine | None = None
        self._ready = False
        self._ending = False
        self._wakeup, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Supervise until an engine ends in order or cannot be replaced; returns the exit status."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in ENDING_SIGNALS:
            signal.signal(number, self._on_signal)
        status = self._launch.status
        while True:
            code = self._run_engine(status)
            status = -1
            delay_s = self._delay_after(code)
            if delay_s is None or not self._pause(delay_s):
                break
        let_go([lost_mount(held.description, held.descriptors) for held in self._held.values()], say)
        return code if code >= 0 else 128 - code

    def _delay_after(self, code: int) -> float | None:
        """How long to wait before the next engine; None when there is to be none."""
        if self._ending or code in (0, EXIT_STAGED):
            return None
        if code == EXIT_REPLACE:
            self._restarts.on_request()
            return 0.0
        if not self._held:
            if code < 0:
                say(f"the engine {_how(code)}; it had no mounts, and whoever needs one starts another")
            return None
        delay_s = self._restarts.after_crash(self._clock(), was_ready=self._ready)
        if delay_s is None:
            say(f"the engine {_how(code)}, and too often: its mounts are given up (see engine.restart_limit)")
        else:
            say(f"the engine {_how(code)}: it is replaced{f' in {delay_s:g} s' if delay_s else ''}")
        return delay_s

    def _pause(self, delay_s: float) -> bool:
        """Wait; False when a signal told us to end meanwhile."""
        deadline_s = self._clock() + delay_s
        while not self._ending and (left_s := deadline_s - self._clock()) > 0:
            select.select([self._wakeup], [], [], left_s)
            self._drain_wakeup()
        return not self._ending

    # -- one engine ---------------------------------------------------------------------------------

    def _run_engine(self, status: int) -> int:
        """Start one, serve it, and return its exit status (negative: the signal that ended it)."""
        self._ready = False
        engine = self._engine = self._start(status)
        if self._ending:  # the signal came while there was nobody to forward it to
            signal.pidfd_send_signal(engine.process, signal.SIGTERM)
        try:
            self._hand_over(engine)
            self._serve(engine)
            _, code = os.waitpid(engine.pid, 0)
        finally:
            self._engine = None
            engine.channel.close()
            os.close(engine.process)
        return os.waitstatus_to_exitcode(code)

    def _start(self, status: int) -> Engine:
        ours, theirs = pair()
        configuration = os.memfd_create("tiercache-configuration", os.MFD_CLOEXEC)
        try:
            os.write(configuration, self._launch.configuration)
            os.lseek(configuration, 0, os.SEEK_SET)
            for descriptor in (theirs.fileno(), status):
                if descriptor >= 0:
                    os.set_inheritable(descriptor, True)
            # -P: the working directory must not be searched for modules.
            command = [sys.executable, "-P", "-m", "tiercache.engine", str(theirs.fileno()), str(status)]
            if self._launch.foreground:
                command.append("--foreground")
            actions = [(os.POSIX_SPAWN_DUP2, configuration, 0)]
            pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
        finally:
            theirs.close()
            os.close(configuration)
            if status >= 0:
                os.close(status)
        return Engine(pid, os.pidfd_open(pid), ours)

    def _hand_over(self, engine: Engine) -> None:
        hello = {"version": PROTOCOL_VERSION, "supervisor": os.getpid(), "restarts": self._restarts.total}
        try:
            send(engine.channel, {"kind": "hello", **hello})
            for mount, held in self._held.items():
                send(engine.channel, {"kind": "mount", "id": mount, **held.description}, held.descriptors)
            send(engine.channel, {"kind": "begin"})
        except OSError as error:
            say(f"the engine (pid {engine.pid}) does not listen: {error}")

    def _serve(self, engine: Engine) -> None:
        """Answer the engine until it ends; what it sent before its end counts."""
        poll = select.poll()
        for descriptor in (engine.process, engine.channel.fileno(), self._wakeup):
            poll.register(descriptor, select.POLLIN)
        listening = True
        while True:
            events = {descriptor for descriptor, _ in poll.poll()}
            if self._wakeup in events:
                self._drain_wakeup()
            ended = engine.process in events
            while listening and self._answer(engine, waiting=engine.channel.fileno() in events and not ended):
                events.discard(engine.channel.fileno())
            if ended:
                return
            if listening and engine.channel.fileno() in events:
                listening = False  # it closed its end and lives on: nothing more comes
                poll.unregister(engine.channel.fileno())

    def _answer(self, engine: Engine, *, waiting: bool) -> bool:
        """Take one message if there is one; False when there is none (now)."""
        try:
            received = receive(engine.channel, 0 if waiting else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if received is None:
            return False
        message, descriptors = received
        match message.pop("kind", None):
            case "hold":
                self._hold(message, descriptors)
            case "release":
                self._release(engine, message["id"])
            case "ready":
                self._ready = True
            case _:
                close_all(descriptors)
        return True

    def _hold(self, message: Message, descriptors: tuple[int, ...]) -> None:
        mount = message.pop("id")
        known = self._held.get(mount)
        if known is not None:
            # The description alone changes when no descriptor comes with it.
            self._held[mount] = Held(message, descriptors or known.descriptors)
            if descriptors:
                close_all(known.descriptors)
        elif descriptors and len(self._held) < HELD_MAX:
            self._held[mount] = Held(message, descriptors)
        else:
            say(f"{message.get('mountpoint')}: cannot be kept for the next engine")
            close_all(descriptors)

    def _release(self, engine: Engine, mount: str) -> None:
        held = self._held.pop(mount, None)
        if held is not None:
            close_all(held.descriptors)
        try:
            send(engine.channel, {"kind": "released", "id": mount})
        except OSError as error:
            say(f"the engine (pid {engine.pid}) does not listen: {error}")

    # -- signals ------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: object) -> None:
        """The engine is told, and ends in order; its end is ours."""
        self._ending = True
        if self._engine is not None:
            signal.pidfd_send_signal(self._engine.process, number)

    def _drain_wakeup(self) -> None:
        try:
            while os.read(self._wakeup, 64):
                pass
        except BlockingIOError:
            return


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def say(text: str) -> None:
    """One line in the engine's log, in its form."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    line = f"{stamp},{int(now % 1 * 1000):03d} WARNING tiercache.supervisor[{os.getpid()}] {text}\n"
    try:
        os.write(2, line.encode("utf-8", "backslashreplace"))
    except OSError:
        return  # the disk is full, or the terminal is gone: nobody is left to be told
