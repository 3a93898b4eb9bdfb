"""The process above the engine: it replaces one that crashes, and ends with one that ends in order."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from rig.engines import PATIENCE_S, Ended
from tiercache.client import Client
from tiercache.config import Config
from tiercache.engine.lock import SUPERVISOR_LOCK_NAME, EngineLock, owner_pid
from tiercache.engine.process import start_detached
from tiercache.engine.supervisor import channel
from tiercache.engine.supervisor.restarts import DELAY_MAX_S, Restarts
from tiercache.errors import EngineRunning, EngineUnreachable, Unsupported


def _engine(client: Client) -> dict[str, int]:
    engine = client.status()["engine"]
    assert isinstance(engine, dict)
    return engine


def _end(pid: int, number: int = signal.SIGKILL) -> None:
    ended = Ended(pid)
    os.kill(pid, number)
    assert ended.wait()


def test_the_supervisor_is_the_parent_of_the_engine_and_small(config: Config) -> None:
    client = Client(config)
    engine = _engine(client)
    supervisor = engine["supervisor_pid"]
    assert owner_pid(config.cache_dir, SUPERVISOR_LOCK_NAME) == supervisor
    stat = Path(f"/proc/{engine['pid']}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) == supervisor
    status = dict(line.split(":\t") for line in Path(f"/proc/{supervisor}/status").read_text().splitlines())
    assert status["Threads"] == "1"
    assert int(status["VmRSS"].split()[0]) < 32 * 1024
    client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_supervisor_ends_with_an_engine_that_has_no_mounts(config: Config, number: signal.Signals) -> None:
    client = Client(config)
    engine = _engine(client)
    ended = Ended(engine["supervisor_pid"])
    _end(engine["pid"], number)
    assert ended.wait()
    assert _engine(client)["restarts"] == 0
    client.close()


def test_a_signal_to_the_supervisor_ends_both_in_order(config: Config) -> None:
    client = Client(config)
    engine = _engine(client)
    ended = Ended(engine["pid"])
    _end(engine["supervisor_pid"], signal.SIGTERM)
    assert ended.wait()
    assert "stopping on SIGTERM" in (config.cache_dir / "engine.log").read_text()
    assert not (config.cache_dir / "engine.sock").exists()
    client.close()


def test_an_engine_goes_on_without_its_supervisor_and_says_so(config: Config, tree: Path) -> None:
    client = Client(config)
    origin = client.attach(str(tree))
    engine = _engine(client)
    _end(engine["supervisor_pid"])
    assert origin.cat(origin.root + b"/picture") == (tree / "picture").read_bytes()
    while (now := _engine(client))["supervisor_pid"]:  # it hears of it at its next look
        pass
    assert now["pid"] == engine["pid"]
    assert f"the supervisor (pid {engine['supervisor_pid']}) has ended" in (config.cache_dir / "engine.log").read_text()
    with pytest.raises(Unsupported, match="has no supervisor that could replace it"):
        client.request("restart")
    with pytest.raises(EngineRunning, match=rf"already has an engine \(pid {engine['pid']}\)"):
        start_detached(config)
    client.close()


def test_a_restart_keeps_what_is_staged_and_clients_go_on(config: Config, tree: Path) -> None:
    client = Client(config)
    origin = client.attach(str(tree))
    with origin.create(origin.root + b"/written") as writer:
        writer.write(b"before the restart")
    old = _engine(client)
    ended = Ended(old["pid"])
    client.request("restart")
    assert ended.wait()
    assert origin.cat(origin.root + b"/written") == b"before the restart"
    new = _engine(client)
    assert new["pid"] != old["pid"]
    assert (new["supervisor_pid"], new["restarts"]) == (old["supervisor_pid"], 1)
    assert client.status()["metrics"]["restarts"] == 1
    assert not client.drain(PATIENCE_S)["left"]
    assert (tree / "written").read_bytes() == b"before the restart"
    client.close()


def test_nobody_starts_an_engine_beside_a_supervisor_that_is_about_to(config: Config) -> None:
    """Between a crash and the next engine the cache directory has no engine, and must not get a stranger."""
    impatient = config.model_copy(update={"engine": config.engine.model_copy(update={"start_timeout_s": 0.1})})
    supervisor = EngineLock(config.cache_dir, SUPERVISOR_LOCK_NAME)
    for mode in ("auto", "attach"):
        with pytest.raises(EngineUnreachable, match="did not answer within"):
            Client(impatient, mode=mode).status()
    supervisor.release()
    client = Client(config)
    assert _engine(client)["restarts"] == 0
    client.close()


def test_an_engine_that_was_ready_is_replaced_at_once_and_one_that_was_not_after_a_pause() -> None:
    restarts = Restarts(limit=100, window_s=60, backoff_s=0.5)
    assert restarts.after_crash(0, was_ready=True) == 0
    assert [restarts.after_crash(1, was_ready=False) for _ in range(7)] == [0.5, 1, 2, 4, 8, DELAY_MAX_S, DELAY_MAX_S]
    assert restarts.after_crash(2, was_ready=True) == 0
    assert restarts.after_crash(3, was_ready=False) == 0.5
    assert restarts.total == 10


def test_the_limit_counts_within_the_window_only() -> None:
    restarts = Restarts(limit=2, window_s=60, backoff_s=0)
    assert restarts.after_crash(0, was_ready=True) == 0
    assert restarts.after_crash(59, was_ready=True) == 0
    assert restarts.after_crash(59.5, was_ready=True) is None
    assert restarts.after_crash(61, was_ready=True) == 0
    restarts.on_request()
    assert restarts.after_crash(62, was_ready=True) is None
    assert restarts.total == 4


def test_a_message_brings_its_descriptors() -> None:
    ours, theirs = channel.pair()
    with ours, theirs, open(os.devnull, "rb") as file:
        channel.send(ours, {"kind": "hold", "path": "a\udcff"}, (file.fileno(), file.fileno()))
        received = channel.receive(theirs)
        assert received is not None
        message, descriptors = received
        assert message == {"kind": "hold", "path": "a\udcff"}
        assert len(descriptors) == 2
        for descriptor in descriptors:
            assert os.fstat(descriptor).st_rdev == os.fstat(file.fileno()).st_rdev
            assert not os.get_inheritable(descriptor)
        channel.close_all(descriptors)
        with pytest.raises(ValueError, match="over the limits"):
            channel.send(ours, {"kind": "x" * channel.MESSAGE_MAX_BYTES})
        ours.shutdown(socket.SHUT_WR)
        assert channel.receive(theirs) is None
