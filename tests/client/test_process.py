"""Reaching an engine: one starts, however many ask; what keeps it from starting is said by whoever asked."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rig.engines import PATIENCE_S, Ended, attached_client, small_config, status_pid, stop_engine
from tiercache.client import Client
from tiercache.client import client as client_module
from tiercache.client.client import GREETINGS_MAX
from tiercache.config import Config, load_config
from tiercache.engine.lock import EngineLock, owner_pid
from tiercache.engine.process import start_detached
from tiercache.errors import EngineRunning, EngineUnreachable, NotDirectory, TierCacheError

SPAWN = multiprocessing.get_context("spawn")


def _pid(client: Client) -> int:
    pid = client.status()["engine"]["pid"]
    assert isinstance(pid, int)
    return pid


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    ended = Ended(pid)
    os.kill(pid, number)
    assert ended.wait()


def test_malloc_gives_an_engine_huge_pages(config: Config) -> None:
    """An environment that tells glibc otherwise has the last word."""
    with attached_client(config) as client:
        environment = Path(f"/proc/{_pid(client)}/environ").read_bytes().split(b"\0")
    wanted = os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert f"GLIBC_TUNABLES={wanted}".encode() in environment


def test_auto_starts_an_engine_that_is_nobodys_child_and_keeps_a_log(config: Config) -> None:
    client = Client(config)
    pid = _pid(client)
    assert pid == owner_pid(config.cache_dir)
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session = int(stat[1]), int(stat[3])
    assert parent != os.getpid()
    assert session != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert "is ready" in (config.cache_dir / "engine.log").read_text()
    client.close()


def test_attach_does_not_start_one_and_says_what_to_do(config: Config) -> None:
    with pytest.raises(EngineUnreachable, match=r"no engine runs for cache directory .*: start one with"):
        Client(config, mode="attach").status()
    assert not config.cache_dir.exists()


def test_eight_processes_that_start_at_once_end_with_one_engine(config: Config) -> None:
    together, results = SPAWN.Barrier(8), SPAWN.Queue()
    settings = config.model_dump(mode="json", exclude_unset=True)
    processes = [SPAWN.Process(target=status_pid, args=(settings, together, results)) for _ in range(8)]
    for process in processes:
        process.start()
    pids = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert pids == {owner_pid(config.cache_dir)}
    assert (config.cache_dir / "engine.log").read_text().count("is ready") == 1


def test_a_second_engine_is_refused_with_the_pid_of_the_first(config: Config) -> None:
    """C26."""
    pid = start_detached(config)
    with pytest.raises(EngineRunning, match=rf"already has an engine \(pid {pid}\)"):
        start_detached(config)
    assert owner_pid(config.cache_dir) == pid


def test_a_killed_engine_is_replaced_and_the_client_goes_on(config: Config, tree: Path) -> None:
    """C26: its lock and its socket are still there, and mean nothing."""
    client = Client(config)
    origin = client.attach(str(tree))
    data = (tree / "picture").read_bytes()
    first = _pid(client)
    _kill(first)
    assert origin.cat(origin.root + b"/picture") == data
    second = _pid(client)
    assert second not in (first, os.getpid())
    assert [name for name, _ in origin.list(origin.root)]
    client.close()


def test_every_idle_connection_to_a_killed_engine_is_given_up(config: Config, tree: Path) -> None:
    client = Client(config)
    origin = client.attach(str(tree))
    writers = [origin.create(origin.root + b"/w%d" % number) for number in range(4)]
    for writer in writers:
        writer.discard()
    _kill(_pid(client))
    origin.mkdir(origin.root + b"/made")  # not idempotent, but the old engine cannot have seen it
    assert (tree / "made").is_dir()
    client.close()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_dying_engine_may_take_connections_and_close_them_more_than_once(
    config: Config, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    """As a killed one does while the kernel still closes its descriptors."""
    connect, dying = client_module.connect_or_start, GREETINGS_MAX - 1

    def connect_late(*args: Any, **settings: Any) -> socket.socket:
        nonlocal dying
        if not dying:
            return connect(*args, **settings)
        dying -= 1
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    with attached_client(config) as client:
        client.status()
        client.close()
        monkeypatch.setattr(client_module, "connect_or_start", connect_late)
        assert client.request("status", idempotent=idempotent)["engine"]
        assert not dying
        client.close()
        dying = 1 << 30
        with pytest.raises(EngineUnreachable):
            client.status()
        dying = 0


def test_a_writer_does_not_survive_its_engine_and_says_so(config: Config, tree: Path) -> None:
    client = Client(config)
    origin = client.attach(str(tree))
    writer = origin.create(origin.root + b"/tiny")
    writer.write(b"lost with the engine")
    _kill(_pid(client))
    with pytest.raises(EngineUnreachable, match=r"/tiny: .* what was written to it is discarded"):
        writer.close()
    assert origin.cat(origin.root + b"/tiny") == (tree / "tiny").read_bytes()
    assert [name for name in os.listdir(config.cache_dir / "staging") if name.isdigit()] == []
    client.close()


def test_with_attach_a_killed_engine_is_a_clear_error_and_a_new_one_is_found(config: Config, tree: Path) -> None:
    start_detached(config)
    client = Client(config, mode="attach")
    origin = client.attach(str(tree))
    _kill(_pid(client))
    with pytest.raises(EngineUnreachable, match="no engine runs"):
        origin.list(origin.root)
    start_detached(config)
    assert origin.list(origin.root)
    client.close()


def test_warm_files_are_read_while_no_engine_runs(config: Config, tree: Path) -> None:
    start_detached(config)
    client = Client(config, mode="attach")
    origin = client.attach(str(tree), profile="dataset")
    data = origin.cat(origin.root + b"/picture")
    _kill(_pid(client))
    assert origin.cat(origin.root + b"/picture") == data
    client.close()


def test_an_engine_that_does_not_answer_is_told_within_the_timeout(tmp_path: Path) -> None:
    settings = {"engine.request_timeout_s": 0.1}
    with attached_client(small_config(tmp_path, **settings)) as client:
        client.status()
        impatient = Client(small_config(tmp_path, **settings), mode="attach", silence_s=0.2)
        pid = _pid(client)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(EngineUnreachable, match=r"did not answer .* within 0.2 s"):
                impatient.status()
        finally:
            os.kill(pid, signal.SIGCONT)
        impatient.close()


def test_a_very_long_cache_directory_works(tmp_path: Path, tree: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 120] * 3)
    with attached_client(small_config(deep)) as client:
        origin = client.attach(str(tree))
        assert origin.cat(origin.root + b"/picture") == (tree / "picture").read_bytes()


def test_a_cache_directory_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(NotDirectory) as caught:
        Client(small_config(tmp_path)).status()
    assert str(caught.value) == (
        f"cache directory {tmp_path / 'cache'} is not a directory: choose another with --cache-dir"
    )


def test_what_keeps_the_engine_from_starting_is_said_by_the_starter(config: Config) -> None:
    """In the engine's words, not only in its log."""
    config.cache_dir.mkdir()
    (config.cache_dir / "staging").write_bytes(b"in the way")
    with pytest.raises(TierCacheError) as caught:
        Client(config).status()
    assert "staging" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert owner_pid(config.cache_dir) is None


def test_a_start_that_hangs_ends_with_the_timeout_and_names_the_owner(tmp_path: Path) -> None:
    """Somebody holds the lock and never listens."""
    config = small_config(tmp_path, **{"engine.start_timeout_s": 0.3})
    lock = EngineLock(config.cache_dir)
    with pytest.raises(EngineUnreachable, match=rf"\(pid {os.getpid()}\) holds its lock but did not answer"):
        Client(config).status()
    lock.release()


def test_sigterm_ends_the_engine_in_order_and_what_is_staged_comes_back(config: Config, tree: Path) -> None:
    """C15."""
    client = Client(config)
    origin = client.attach(str(tree))
    for number in range(5):
        with origin.create(origin.root + b"/t%d" % number) as writer:
            writer.write(b"%d" % number * 100)
    _kill(_pid(client), signal.SIGTERM)
    assert not (config.cache_dir / "engine.sock").exists()
    assert not client.drain(PATIENCE_S)["left"]
    for number in range(5):
        assert (tree / f"t{number}").read_bytes() == b"%d" % number * 100
    client.close()


def test_stop_is_answered_before_the_engine_ends(config: Config) -> None:
    client = Client(config)
    ended = Ended(_pid(client))
    client.stop()
    assert ended.wait()
    assert owner_pid(config.cache_dir) is None
    client.close()


def test_an_engine_without_clients_and_work_ends_by_itself(tmp_path: Path) -> None:
    config = small_config(tmp_path, **{"engine.idle_timeout_s": 0.1})
    client = Client(config)
    ended = Ended(_pid(client))
    client.close()
    assert ended.wait()
    assert owner_pid(config.cache_dir) is None
    assert "idle for 0.1 s" in (config.cache_dir / "engine.log").read_text()


@pytest.mark.parametrize("module", ["tiercache.client", "tiercache.filesystem"])
def test_a_client_imports_nothing_that_only_an_engine_needs(module: str) -> None:
    """Each worker of a data loader would pay for it; a time would depend on the machine."""
    script = (
        f"import sys, {module}; "
        "print([m for m in ('trio', 'prometheus_client', 'obstore', 'botocore', 'rich') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_the_users_working_directory_is_not_searched_for_modules(config: Config, tmp_path: Path) -> None:
    (tmp_path / "trio.py").write_text("raise SystemExit('a file of the user')")
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        client = Client(config)
        assert _pid(client)
        client.close()
    finally:
        os.chdir(before)


IN_PROCESS = """
import os, sys
from pathlib import Path
from rig.engines import small_config
from tiercache.client import Client
from tiercache.engine.lock import owner_pid
config = small_config(Path(sys.argv[1]), **{"engine.mode": "inprocess", "engine.stop_drain_s": 30})
client = Client(config)
origin = client.attach(sys.argv[2])
assert owner_pid(config.cache_dir) == os.getpid()
assert origin.cat(origin.root + b"/picture") == Path(sys.argv[2], "picture").read_bytes()
child = os.fork()
if not child:
    good = origin.cat(origin.root + b"/two") == Path(sys.argv[2], "two").read_bytes()
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0
with origin.create(origin.root + b"/written") as writer:
    writer.write(b"just before the end")
"""


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def test_an_engine_in_the_users_process_serves_its_children_and_drains_at_exit(
    tmp_path: Path, tree: Path, environment: dict[str, str]
) -> None:
    """C15: interpreter exit."""
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, str(tmp_path), str(tree)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tree / "written").read_bytes() == b"just before the end"
    assert owner_pid(tmp_path / "cache") is None


def test_inprocess_uses_an_engine_that_already_runs(config: Config) -> None:
    pid = start_detached(config)
    client = Client(config, mode="inprocess")
    assert _pid(client) == pid
    client.close()


def test_settings_survive_the_way_to_the_engine(tmp_path: Path) -> None:
    """Infinity, sizes, paths and names with odd bytes."""
    config = small_config(tmp_path / "odd näme %20", **{"engine.idle_timeout_s": "inf"})
    start_detached(config)
    stop_engine(config)
    again = load_config(None, {"cache_dir": str(config.cache_dir)})
    assert again.cache_dir == config.cache_dir


def test_a_client_that_cannot_read_the_catalog_says_so_and_leaves_no_connection(config: Config) -> None:
    start_detached(config)
    catalog = config.cache_dir / "catalog"
    catalog.rename(config.cache_dir / "hidden")
    client = Client(config, mode="attach")
    with pytest.raises(EngineUnreachable, match="there is no catalog yet"):
        client.status()
    gc.collect()  # would warn of a socket that nobody closed
    (config.cache_dir / "hidden").rename(catalog)
    client.close()
