"""A run of the benchmark as a user starts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiercache.bench.cli import main
from tiercache.fuse.mountpoint import mounts


def run(workload: str, arguments: list[str], tmp_path: Path) -> Any:
    """What it found, as its JSON tells. It must leave nothing behind."""
    assert main([workload, *arguments, f"--json={tmp_path / 'r.json'}"]) == 0
    assert list((tmp_path / "work").iterdir()) == []
    assert not [mount for mount in mounts() if str(tmp_path) in mount.mountpoint]
    return json.loads((tmp_path / "r.json").read_text())
