"""``tiercache why`` as users call it: by a path under a mount, by a URL, for programs, and wrongly."""

from __future__ import annotations

import json
from pathlib import Path

from rig.command import Command


def test_why_of_a_path_and_of_a_url(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    assert (mountpoint / "a.txt").read_bytes() == b"a" * 1000
    said = tiercache.good("why", mountpoint / "a.txt")  # the mount tells which engine
    assert f"path       {mountpoint}/a.txt\nsize       0.977 KiB\n" in said
    assert "\nnvme       all of it is here\n           let in at 20" in said
    told = json.loads(tiercache.good(*tiercache.here("why", f"file://{origin}/a.txt", "--json")))
    assert told["tiers"]["nvme"]["here"] == "all"
    assert told["tiers"]["nvme"]["admission"]["why"] == ""
    said = tiercache.good("why", mountpoint / "sub" / "b.txt")
    assert "\nnvme       not here\nengine     nothing was decided of it since its start at 20" in said

    assert tiercache.failure("why", mountpoint / "nowhere") == f"{mountpoint}/nowhere: no such file or directory"
    directory = mountpoint / "sub"
    assert tiercache.failure("why", directory) == f"{directory}: is no file but a directory; ask of a file"
    assert "lies under no mount" in tiercache.failure("why", origin / "a.txt")
