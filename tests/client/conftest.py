"""Fixtures: one engine for the tests of a module that leave it running, a fresh one for those that do not."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.engines import HttpOrigin, attached_client, small_config, stop_engine
from tiercache.client import Client, RemoteOrigin
from tiercache.config import Config


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with attached_client(small_config(tmp_path_factory.mktemp("engine"))) as client:
        yield client


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """A cache directory without an engine; whatever is started on it is stopped."""
    config = small_config(tmp_path)
    yield config
    stop_engine(config)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with files of telling sizes: empty, tiny, a picture's, over one block, over several."""
    tree = tmp_path / "origin"
    tree.mkdir()
    noise = random.Random(7)
    for name, size in {"empty": 0, "tiny": 1, "picture": 110_000, "two": 5 << 20, "many": 17_000_001}.items():
        (tree / name).write_bytes(noise.randbytes(size))
    return tree


@pytest.fixture
def origin(client: Client, tree: Path) -> RemoteOrigin:
    return client.attach(str(tree))


@pytest.fixture
def http() -> Iterator[HttpOrigin]:
    origin = HttpOrigin()
    yield origin
    origin.close()


@pytest.fixture
def key(tree: Path) -> bytes:
    """The key prefix of the tree's files."""
    return os.fsencode(tree).lstrip(b"/") + b"/"
