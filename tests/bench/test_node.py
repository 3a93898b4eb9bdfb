"""Our own side of a run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tiercache.bench.node import Node
from tiercache.bench.place import Place
from tiercache.bench.terms import PUT_OFF_S, Terms
from tiercache.errors import TierCacheError


def test_an_engine_that_was_replaced_ends_the_run(tmp_path: Path) -> None:
    """Its figures would begin anew, and what was in its memory is gone."""
    (tmp_path / "origin").mkdir()
    place = Place.of_directory(tmp_path / "origin")
    terms = Terms("general", put_off_uploads=True)
    settings = {"ram.capacity": 0, "nvme.free_space_floor": "0"}
    with Node(tmp_path / "node", place, terms=terms, settings=settings) as node:
        assert node.config.staging.upload_delay_s == PUT_OFF_S
        pid = node.status()["engine"]["pid"]
        assert node.usage().rss_bytes > 2**20
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TierCacheError, match="the engine ended in the middle of the run"):
            node.status()
    node.remove()
    assert not Path(f"/proc/{pid}").exists()
