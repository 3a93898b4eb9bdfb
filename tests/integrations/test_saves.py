"""Training runs save real checkpoints on a mount while its engine is killed at random moments, and go on from them.

``SAVES_MIB=2048`` saves that much in all instead of a little, and ``SAVES_SEED=7`` kills at other moments.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from rig.mount_fixtures import bucket_client, mountpoint, s3
from rig.mounts import EngineProcess, Source, umount_when_free, wait_for, wait_until_gone
from rig.saves import FORMATS, Training, go_on, go_on_in_another_process
from tiercache.filesystem import TierCacheFileSystem

__all__ = ["bucket_client", "mountpoint", "s3"]

MIB = 1 << 20
CHECKPOINTS = 6
ALL_BYTES = int(os.environ.get("SAVES_MIB", "60")) * MIB
SIZE_BYTES = ALL_BYTES // (CHECKPOINTS * len(FORMATS))
SEED = int(os.environ.get("SAVES_SEED", "4"))

PATIENCE_S = 600.0 + ALL_BYTES / (8 * MIB)
"""Only how long a broken test takes to fail, on a machine that does much else."""

LATEST = "latest-complete"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    process = node(tmp_path / "cache")
    yield process
    process.stop()


def node(cache_dir: Path) -> EngineProcess:
    """A machine with room for all that is saved, and uploads so slow that kills find them under way."""
    room_bytes = 512 * MIB + 2 * ALL_BYTES
    settings = {
        "nvme.capacity": room_bytes,
        "staging.capacity": room_bytes,
        "engine.restart_limit": 100,
        "upload.bandwidth_max": SIZE_BYTES,
    }
    return EngineProcess(cache_dir, **settings)


class Bucket(NamedTuple):
    """What lies at the origin, seen past every engine."""

    source: Source
    kind: str

    def announced(self) -> set[str]:
        """The checkpoints whose last files are there; all files of each must be."""
        *_, last = self._files("*")
        # Listed twice: what stands in the first listing was there before the second began.
        found = {name.split("/")[0] for name in self.source.names() if fnmatchcase(name, last)}
        names = self.source.names()
        for checkpoint in found:
            missing = set(self._files(checkpoint)) - names
            assert not missing, f"announced without {sorted(missing)}"
        return found

    def take(self, checkpoint: str, directory: Path) -> Path:
        """A copy of it."""
        for name in self._files(checkpoint):
            copy = directory / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(self.source.get(name))
        return directory / checkpoint

    def _files(self, checkpoint: str) -> list[str]:
        return [f"{checkpoint}/{name}" for name in FORMATS[self.kind].names] or [checkpoint]


def kill(engine: EngineProcess, pid: int) -> int:
    """The pid of the one that serves the mount now."""
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    return engine.pid


def save_under_kills(kind: str, engine: EngineProcess, bucket: Bucket, place: Path) -> None:
    """Kill the engine once in every save or right after it, when what was saved is on its way."""
    moments = random.Random(f"{kind} {SEED}")
    training = Training(kind, place, SIZE_BYTES)
    try:
        for number in (1, 2):  # the first makes ready much that the others find
            began_s = time.monotonic()
            training.begin(number)
            training.saved(number, PATIENCE_S)
            usual_s = time.monotonic() - began_s
        pid = engine.pid
        for number in range(3, CHECKPOINTS + 1):
            training.begin(number)
            time.sleep(moments.uniform(0, usual_s))
            pid = kill(engine, pid)
            bucket.announced()
            training.saved(number, PATIENCE_S)
        training.end(PATIENCE_S)
    finally:
        training.kill()


def go_on_elsewhere(kind: str, source: Source, cache_dir: Path) -> int:
    """Go on from the bucket alone, on a machine that has never seen it; 0 where there is nothing to go on from."""
    other = node(cache_dir)
    other.client.status()  # starts it, with these settings
    try:
        options = {"target_protocol": "s3", "target_options": source.options, "cache_dir": str(cache_dir)}
        fs = TierCacheFileSystem(**options)
        try:
            latest = fs.latest_complete(source.url.removeprefix("s3://"))
        except FileNotFoundError:
            return 0
        return go_on(kind, fs.unstrip_protocol(latest), SIZE_BYTES, **options)
    finally:
        other.stop()


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_run_goes_on_from_its_last_checkpoint_though_the_engine_is_killed_again_and_again(
    kind: str, engine: EngineProcess, s3: Source, mountpoint: Path, tmp_path: Path
) -> None:
    bucket = Bucket(s3, kind)

    def mount() -> None:
        engine.mount(s3, mountpoint, profile="checkpoint", mount_options={"driver": "kernel"})

    mount()
    save_under_kills(kind, engine, bucket, mountpoint)
    engine.kill()  # and nobody replaces it: the bucket stays as the node left it

    left = bucket.announced()
    for checkpoint in left:
        copy = bucket.take(checkpoint, tmp_path / "copies")
        assert go_on(kind, copy.as_uri(), SIZE_BYTES) == number_of(checkpoint)
    assert go_on_elsewhere(kind, s3, tmp_path / "other") == max(map(number_of, left), default=0)

    mount()
    assert engine.client.drain(deadline_s=PATIENCE_S)["left"] == []
    wait_for(lambda: (mountpoint / LATEST).is_symlink())
    latest = (mountpoint / LATEST).as_uri()
    assert go_on_in_another_process(kind, latest, SIZE_BYTES, patience_s=PATIENCE_S) == CHECKPOINTS
    assert bucket.announced() == {f"checkpoint-{number}{FORMATS[kind].suffix}" for number in range(1, CHECKPOINTS + 1)}
    assert go_on_elsewhere(kind, s3, tmp_path / "third") == CHECKPOINTS
    umount_when_free(engine, mountpoint)


def number_of(checkpoint: str) -> int:
    return int(checkpoint.removesuffix(".ckpt").rpartition("-")[2])
