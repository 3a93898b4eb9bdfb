"""While the origin hangs, commands keep their deadlines, and status tells what the node knows."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.command import Command
from rig.engines import PATIENCE_S, stopped
from rig.faultproxy import FaultProxy
from rig.s3_requests import Answer, Request
from rig.seaweedfs import Bucket, S3Server

LONG_S = 20.0
"""Longer than any command here takes, and much shorter than the patience of a reader (60 s)."""

TTL_S = 0.2
"""How long the mount believes names."""


class Hanging:
    """A mounted bucket whose store answers nothing any more."""

    def __init__(self, tiercache: Command, mountpoint: Path, bucket: Bucket, looking: threading.Thread) -> None:
        self.tiercache, self.mountpoint, self.bucket = tiercache, mountpoint, bucket
        self.looking = looking
        """A program that waits for the store."""

    def timed(self, *arguments: str | Path, **environment: str) -> tuple[int, str, str]:
        """Status, output and errors of a command, which must not take long."""
        began_s = time.monotonic()
        result = self.tiercache(*arguments, **environment)
        assert time.monotonic() - began_s < LONG_S, (arguments, result)
        return result.returncode, result.stdout, result.stderr

    def told(self, name: str) -> dict[str, object]:
        """What status says of a name."""
        status, out, err = self.timed("status", self.mountpoint / name, "--json")
        assert status == 0, err
        answer: dict[str, object] = json.loads(out)
        return answer


@pytest.fixture
def hanging(
    tiercache: Command, s3_bucket: Bucket, s3_proxy: FaultProxy, s3_server: S3Server, mountpoint: Path
) -> Iterator[Hanging]:
    """``run/new`` is dirty, ``run/old`` is known and clean, of ``run/deep`` only the name is known."""
    for name in ("run/old", "run/deep/other"):
        s3_bucket.put(name, b"old")
    environment = s3_server.environment() | {"AWS_ENDPOINT_URL": s3_proxy.endpoint}
    environment |= {"TIERCACHE_PROFILES__GENERAL__TTL_S": str(TTL_S)}
    delayed = ("--set", "staging.upload_delay_s=1h")
    tiercache.good(*tiercache.here("mount", s3_bucket.url, mountpoint, *delayed), **environment)
    (mountpoint / "run" / "new").write_bytes(b"new")
    assert (mountpoint / "run" / "old").read_bytes() == b"old"
    assert sorted(os.listdir(mountpoint / "run")) == ["deep", "new", "old"]
    end, asked = threading.Event(), threading.Event()

    def hang(request: Request, forward: object) -> Answer:
        asked.set()
        end.wait(100)
        return Answer(0, (), b"", after=0, reset=True)

    s3_proxy.add(hang)
    # Once names are not believed any more: whoever looks waits for the store.
    looking = threading.Thread(target=lambda: os.path.exists(mountpoint / "run" / "deep" / "other"), daemon=True)
    looking.start()
    assert asked.wait(PATIENCE_S)
    hanging = Hanging(tiercache, mountpoint, s3_bucket, looking)
    yield hanging
    end.set()
    s3_proxy.clear()
    looking.join()


def test_status_tells_what_the_node_knows_and_that_the_origin_does_not_answer(hanging: Hanging) -> None:
    new = hanging.told("run/new")
    assert (new["state"], new["durable"], new["size_bytes"], new["origin_error"]) == ("sealed", "memory", 3, "")
    run = hanging.told("run")
    assert (run["state"], run["dirty_files"]) == ("dirty", 1)
    old = hanging.told("run/old")
    assert (old["state"], old["size_bytes"]) == ("clean", 3)
    assert "does not answer within" in str(old["origin_error"])
    _, text, _ = hanging.timed("status", hanging.mountpoint / "run" / "old")
    assert "\norigin     does not answer, and this is what the node knows: it does not answer within 5 s\n" in text
    status, _, line = hanging.timed("status", hanging.mountpoint / "run" / "unheard")
    assert (status, line.count("\n")) == (1, 1)
    assert f"{hanging.mountpoint}/run/unheard: this node does not know the name, and its origin does not tell" in line


@pytest.mark.parametrize("name", ["run/new", "run", "run/../run/new"])
def test_drain_of_a_path_keeps_its_deadline(hanging: Hanging, name: str) -> None:
    status, out, err = hanging.timed("drain", hanging.mountpoint / name, "--deadline", "2")
    assert (status, out) == (3, f"{hanging.mountpoint}/run/new: is on its way\n"), err


def test_drain_of_what_is_clean_needs_no_origin(hanging: Hanging) -> None:
    status, out, _ = hanging.timed("drain", hanging.mountpoint / "run" / "old", "--deadline", "1")
    assert (status, out) == (0, f"{hanging.mountpoint}/run/old: everything is in the origin\n")


@pytest.mark.parametrize("command", ["drain", "stop"])
def test_a_drain_of_everything_keeps_its_deadline(hanging: Hanging, command: str) -> None:
    status, out, err = hanging.timed(*hanging.tiercache.here(command, "--deadline", "2"))
    assert status == 3, (out, err)
    assert "1 file is not in the origin, but kept in the journal" in err
    assert "/run/new: " in out


def test_umount_keeps_its_deadline_and_does_not_wait_for_who_waits_in_the_mount(hanging: Hanging) -> None:
    status, out, err = hanging.timed("umount", hanging.mountpoint, "--lazy", "--deadline", "2")
    assert status == 3, (out, err)
    assert "1 file is not in the origin, but kept in the journal" in err
    assert not os.path.ismount(hanging.mountpoint)
    hanging.looking.join(PATIENCE_S)
    assert not hanging.looking.is_alive()


@pytest.mark.parametrize("command", ["drain", "stop", "umount"])
def test_an_engine_that_hangs_is_told_after_the_deadline(
    tiercache: Command, origin: Path, mountpoint: Path, command: str
) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    path = (mountpoint,) if command == "umount" else ()
    began_s = time.monotonic()
    with stopped(tiercache.cache_dir):
        line = tiercache.failure(*tiercache.here(command, *path, "--deadline", "500ms"))
    assert time.monotonic() - began_s < LONG_S
    assert "does not answer" in line or "nothing tells how far it is" in line
