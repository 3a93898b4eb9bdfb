"""The S3 server of tests, demo and benchmarks comes and goes without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiercache.bench.s3server import SeaweedFS


def test_the_server_leaves_nothing_where_temporary_files_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with SeaweedFS(tmp_path / "server") as server:
        assert "Start Seaweed" in (server.directory / "weed.log").read_text()
    assert list((tmp_path / "temporary").iterdir()) == []
