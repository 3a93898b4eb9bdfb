"""``latest-complete`` in a mount: where a training run goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rig.mounts import EngineProcess, Mounted, Source, mounted_for, refused, wait_for

LATEST = "latest-complete"


def save(directory: Path, *names: str) -> None:
    directory.mkdir()
    for name in names:
        (directory / name).write_bytes(name.encode())


def test_it_leads_to_the_latest_checkpoint_with_all_its_files(mounted: Mounted, root: Path) -> None:
    with refused(errno.ENOENT):
        os.readlink(root / LATEST)
    save(root / "checkpoint-9", "__0_0.distcp", ".metadata")
    save(root / "checkpoint-10", "__0_0.distcp")
    mounted.drain()
    wait_for(lambda: (root / LATEST).is_symlink())  # that there is none may be believed for as long as other absences
    assert os.readlink(root / LATEST) == "checkpoint-9"
    assert (root / LATEST / ".metadata").read_bytes() == b".metadata"
    (root / "checkpoint-10" / ".metadata").write_bytes(b"now")
    mounted.drain()
    assert os.readlink(root / LATEST) == "checkpoint-10"
    assert (root / LATEST / ".metadata").read_bytes() == b"now"
    assert os.stat(root / LATEST).st_ino == os.stat(root / "checkpoint-10").st_ino
    # It is nobody's: neither listed, nor at the origin; and what is renamed to its name has the name.
    assert sorted(os.listdir(root)) == ["checkpoint-10", "checkpoint-9"]
    assert not any(LATEST in name for name in mounted.source.names())
    os.symlink("checkpoint-9", root / "link")
    os.rename(root / "link", root / LATEST)
    assert os.readlink(root / LATEST) == "checkpoint-9"


def test_a_checkpoint_that_is_not_at_the_origin_yet_is_none(
    s3: Source, driver: str, mountpoint: Path, tmp_path: Path
) -> None:
    engine = EngineProcess(tmp_path / "own-cache", **{"staging.upload_delay_s": 600})
    try:
        for mounted in mounted_for(engine, s3, mountpoint, driver):
            save(mountpoint / "checkpoint-1", "model.pt")
            assert not os.path.lexists(mountpoint / LATEST)
            mounted.drain()
            wait_for(lambda: os.path.lexists(mountpoint / LATEST))
            assert (mountpoint / LATEST / "model.pt").read_bytes() == b"model.pt"
            with open(mountpoint / "checkpoint-1" / "model.pt", "ab") as file:
                file.write(b"more")
                file.flush()
                assert not os.path.lexists(mountpoint / LATEST)
    finally:
        engine.stop()


def test_a_symlink_to_an_absolute_path_in_the_mount_goes_up_after_its_target(
    s3: Source, driver: str, mountpoint: Path, tmp_path: Path
) -> None:
    engine = EngineProcess(tmp_path / "own-cache", **{"staging.upload_delay_s": 600})
    try:
        for mounted in mounted_for(engine, s3, mountpoint, driver):
            save(mountpoint / "checkpoint-1", "model.pt")
            targets = {"latest": str(mountpoint / "checkpoint-1"), "elsewhere": str(tmp_path / "checkpoint-1")}
            for name, target in targets.items():
                os.symlink(target, mountpoint / name)
            assert (mountpoint / "latest" / "model.pt").read_bytes() == b"model.pt"
            assert s3.names() == {"elsewhere"}
            mounted.drain()
            assert s3.names() == {"checkpoint-1/model.pt", *targets}
            assert {name: os.readlink(mountpoint / name) for name in targets} == targets
    finally:
        engine.stop()
