"""``tiercache plan``."""

from __future__ import annotations

import json
from pathlib import Path

from rig.command import Command
from rig.mounts import wait_for


def fetched(tiercache: Command) -> float:
    files = json.loads(tiercache.good(*tiercache.here("status", "--json")))["metrics"]["plan_files_total"]
    return float(files.get("fetched", 0))


def test_the_order_of_files_under_a_mount_is_told_by_a_list(
    tiercache: Command, origin: Path, mountpoint: Path, tmp_path: Path
) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    order = tmp_path / "order.txt"
    order.write_text(f"sub/b.txt\n{mountpoint}/a.txt\n\nmissing\n")
    assert tiercache.good("plan", order, "-C", mountpoint) == "3 files planned\n"
    wait_for(lambda: fetched(tiercache) == 2)
    assert (mountpoint / "sub" / "b.txt").read_bytes() == b"b" * 200_000
    tiercache.good(*tiercache.here("umount", mountpoint))


def test_what_cannot_be_planned_is_told(tiercache: Command, tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    assert tiercache.failure("plan", order) == f"{order}: No such file or directory"
    order.write_text("")
    assert tiercache.failure("plan", order) == f"{order}: names no file"
    order.write_text("/elsewhere/a\n")
    assert tiercache.failure("plan", order) == "/elsewhere/a: lies under no mount of tiercache"
