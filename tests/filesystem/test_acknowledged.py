"""A process writes through fsspec and keeps a log of what was acknowledged, while the engine is killed or the power
goes: acknowledged bytes that are lost are none."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.ack_log import Work, found
from rig.engines import Ended, small_config, stop_engine
from rig.power_loss import bring_on, cut
from tiercache.client import Client
from tiercache.config import Config
from tiercache.engine.lock import owner_pid

KILLS = int(os.environ.get("KILLS", "4"))


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    config = small_config(tmp_path)
    yield config
    stop_engine(config)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "origin"
    tree.mkdir()
    return tree


def kill_engine(config: Config) -> None:
    pid = owner_pid(config.cache_dir)
    if pid:  # else nobody has started the next one yet
        ended = Ended(pid)
        os.kill(pid, signal.SIGKILL)
        assert ended.wait()


def check(work: Work, tree: Path) -> None:
    wrong = {name: found(tree, name) for name, states in work.expected().items() if found(tree, name) not in states}
    assert wrong == {}


@pytest.mark.parametrize("profile", ["general", "checkpoint"])
def test_a_killed_engine_takes_nothing_that_was_acknowledged(config: Config, tree: Path, profile: str) -> None:
    client = Client(config)
    client.status()  # starts it, with these settings
    work = Work(config.cache_dir, tree, profile, seed=KILLS)
    try:
        for kill in range(KILLS):
            work.wait(random.Random(kill).randint(5, 25))
            kill_engine(config)
        work.wait(5)
        work.end()
    finally:
        work.kill()
    assert client.drain(60)["left"] == []
    client.close()
    check(work, tree)


def test_a_power_loss_takes_nothing_that_was_acknowledged_as_durable(
    config: Config, tree: Path, tmp_path: Path
) -> None:
    """Close syncs. What the kernel has not written yet is gone from all files."""
    client = Client(config)
    client.status()
    work = Work(config.cache_dir, tree, "checkpoint", seed=1)
    try:
        work.wait(60)
        work.freeze()
        pid = owner_pid(config.cache_dir)
        assert pid
        cut(pid, config.cache_dir, tmp_path / "after" / "cache")
        kill_engine(config)
    finally:
        work.kill()
        client.close()
    bring_on(tmp_path)
    check(work, tree)
