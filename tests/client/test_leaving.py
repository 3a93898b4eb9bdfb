"""C15: an engine that ends says truly what it leaves behind, in its log and by its exit status."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rig.engines import PATIENCE_S, small_config, stop_engine
from tiercache.client import Client
from tiercache.client.origin import RemoteOrigin
from tiercache.config import Config
from tiercache.engine.process import supervisor_command, supervisor_environment, supervisor_settings

FILES = 20
SLOW = {"simulate": {"bandwidth_bytes_per_s": 1}}
"""An origin that takes no file in any test's time."""


@contextmanager
def foreground(config: Config) -> Iterator[subprocess.Popen[str]]:
    """An engine as a service manager runs it."""
    config.cache_dir.mkdir(exist_ok=True)
    settings = config.cache_dir.parent / "settings"
    settings.write_bytes(supervisor_settings(config))
    with (
        open(settings) as stdin,
        subprocess.Popen(
            [*supervisor_command(-1), "--foreground"],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=supervisor_environment(),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert "is ready" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def write_files(origin: RemoteOrigin, files: int = FILES) -> None:
    for number in range(files):
        with origin.create(origin.root + b"/f%d" % number) as writer:
            writer.write(b"%d" % number * 100)


def written(tree: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in tree.glob("f*")}


ALL = {f"f{number}": b"%d" % number * 100 for number in range(FILES)}


def test_all_that_was_written_is_there_and_the_status_says_so(tmp_path: Path, tree: Path) -> None:
    with foreground(small_config(tmp_path, **{"engine.stop_drain_s": PATIENCE_S})) as process:
        client = Client(small_config(tmp_path), mode="attach")
        write_files(client.attach(str(tree)))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate()
        client.close()
    assert process.returncode == 0
    assert written(tree) == ALL
    assert "not in the origin" not in log


def test_what_is_left_is_named_and_the_status_says_so(tmp_path: Path, tree: Path) -> None:
    settings = {"engine.stop_drain_s": PATIENCE_S, "staging.upload_delay_s": 1000}
    with foreground(small_config(tmp_path, **settings)) as process:
        client = Client(small_config(tmp_path), mode="attach")
        write_files(client.attach(str(tree)))
        for name in ALL:
            (tree / name / "in the way").mkdir(parents=True)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate()
        client.close()
    assert process.returncode == 3
    for name in ALL:
        assert re.search(rf"not in the origin: file://{tree}/{name}, sealed: .*directory", log)
    assert "20 files, 2.93 KiB: kept in the journal" in log
    # The next engine goes on with them.
    for name in ALL:
        shutil.rmtree(tree / name)
    client = Client(small_config(tmp_path))
    client.attach(str(tree))
    assert not client.drain(PATIENCE_S)["left"]
    assert written(tree) == ALL
    stop_engine(small_config(tmp_path), client)
    client.close()


def test_a_second_signal_ends_the_drain(tmp_path: Path, tree: Path) -> None:
    with foreground(small_config(tmp_path, **{"engine.stop_drain_s": 1000})) as process:
        client = Client(small_config(tmp_path), mode="attach")
        write_files(client.attach(str(tree), options=SLOW), 1)
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "stopping on SIGTERM" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert "ending at once" in log
    assert "kept in the journal" in log


IN_PROCESS = """
import sys
from pathlib import Path
from rig.engines import small_config
from tiercache.client import Client
config = small_config(Path(sys.argv[1]), **{"engine.mode": "inprocess", "engine.stop_drain_s": 0.1})
origin = Client(config).attach(sys.argv[2], options={"simulate": {"bandwidth_bytes_per_s": 1}})
with origin.create(origin.root + b"/written") as writer:
    writer.write(b"just before the end")
"""


def test_the_end_of_an_interpreter_tells_what_it_leaves(tmp_path: Path, tree: Path) -> None:
    """Nobody has set up logging there: Python prints warnings to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, str(tmp_path), str(tree)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert f"not in the origin: file://{tree}/written, " in done.stderr
    assert "1 file, 19 B: kept in the journal" in done.stderr


@pytest.fixture(autouse=True)
def _nothing_runs(tmp_path: Path) -> Iterator[None]:
    yield
    assert not (tmp_path / "cache" / "engine.sock").exists()
