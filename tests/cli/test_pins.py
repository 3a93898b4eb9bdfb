"""``tiercache pin``, ``unpin`` and ``pins`` as users call them."""

from __future__ import annotations

import json
from pathlib import Path

from rig.command import Command


def test_a_directory_is_pinned_warmed_listed_and_unpinned(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    here = tiercache.here
    assert "sub: is a directory; --recursive pins all that is below it" in tiercache.failure("pin", mountpoint / "sub")
    said = tiercache.good("pin", mountpoint / "sub", "--recursive", "--warm")
    assert said.startswith(f"file://{origin}/sub is pinned\n")
    assert "1 of 1 file, 195 KiB of 195 KiB are cached" in said
    tiercache.good("pin", f"file://{origin}/a.txt", *here())
    told = json.loads(tiercache.good(*here("pins", "--json")))
    assert [(pin["name"], pin["files"], pin["bytes"], pin["resident_bytes"]) for pin in told] == [
        (f"file://{origin}/sub", 1, 200_000, 200_000),
        (f"file://{origin}/a.txt", 1, 1_000, 0),
    ]
    assert "is not pinned itself" in tiercache.failure("unpin", mountpoint / "sub" / "b.txt")
    tiercache.good("unpin", mountpoint / "sub")
    tiercache.good("unpin", mountpoint / "a.txt")
    assert tiercache.good(*here("pins")) == "nothing is pinned\n"
