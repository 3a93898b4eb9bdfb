"""An fsync of a file that is written through fsspec is kept: we only see the descriptor, and never the call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rig.engines import attached_client, small_config
from rig.power_loss import bring_home
from tiercache.client import Client
from tiercache.config import Config
from tiercache.filesystem import TierCacheFileSystem

DATA = np.random.default_rng(5).bytes(300_000)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Nothing goes up by itself."""
    return small_config(tmp_path, **{"staging.upload_delay_s": "1h"})


@pytest.fixture
def client(config: Config) -> Iterator[Client]:
    with attached_client(config) as client:
        client.status()  # starts it, with these settings
        yield client


@pytest.fixture
def fs(config: Config, client: Client) -> TierCacheFileSystem:
    return TierCacheFileSystem(target_protocol="file", cache_dir=str(config.cache_dir))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "origin").mkdir()
    return tmp_path / "origin" / "file"


def synced(file: Any) -> None:
    file.write(DATA)
    os.fsync(file.fileno())


def synced_with_much_buffered(file: Any) -> None:
    file.write(DATA[:290_000])
    file.write(DATA[290_000:])
    os.fsync(file)


def synced_by_a_copy(file: Any) -> None:
    file.write(DATA)
    descriptor = os.dup(file.fileno())
    os.fdatasync(descriptor)
    os.close(descriptor)


def synced_before_the_end(file: Any) -> None:
    """What comes after an fsync is not covered by it, but must not take with it what is."""
    file.write(DATA[:200_000])
    os.fsync(file.fileno())
    file.write(DATA[200_000:])


@pytest.mark.parametrize("write", [synced, synced_with_much_buffered, synced_by_a_copy, synced_before_the_end])
def test_what_was_synced_before_it_was_closed_survives_a_power_loss(
    fs: TierCacheFileSystem, client: Client, path: Path, tmp_path: Path, write: Callable[[Any], None]
) -> None:
    with fs.open(str(path), "wb") as file:
        write(file)
    assert bring_home(client, tmp_path) == []
    assert path.read_bytes() == DATA


def test_a_transaction_keeps_what_was_synced_in_it(
    fs: TierCacheFileSystem, client: Client, path: Path, tmp_path: Path
) -> None:
    with fs.transaction, fs.open(str(path), "wb") as file:
        synced(file)
    assert bring_home(client, tmp_path) == []
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("asks", [False, True], ids=["no descriptor", "descriptor"])
def test_what_nobody_synced_costs_no_sync_and_is_not_taken_for_durable(
    fs: TierCacheFileSystem, client: Client, path: Path, tmp_path: Path, asks: bool
) -> None:
    """numpy writes through the descriptor, and calls no fsync."""
    with fs.open(str(path), "wb") as file:
        if asks:
            np.frombuffer(DATA, "u1").tofile(file)
        else:
            file.write(DATA)
    assert client.request("status_path", path=str(path))["durable"] == "memory"
    bring_home(client, tmp_path)
    assert not path.exists()
