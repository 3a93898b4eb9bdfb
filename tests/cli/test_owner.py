"""A command about a path asks the engine that has it mounted, whatever other engines do that run beside it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rig.command import Command
from rig.engines import stopped
from rig.namespaces import OtherNamespace
from tiercache.cli import owner
from tiercache.engine.lock import LOCK_NAME
from tiercache.ipc import SOCKET_NAME

SILENT = 8
"""So many that a command which waits for one after the other outlasts its test's patience."""


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[list[socket.socket]]:
    """What engines that hang look like from outside. They are found before the one of the test."""
    with ExitStack() as stack:
        sockets = []
        for number in range(SILENT):
            cache_dir = tmp_path / f"0{number}"
            cache_dir.mkdir()
            (cache_dir / LOCK_NAME).touch()
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(cache_dir / SOCKET_NAME))
            listening.listen()
            listening.setblocking(False)
            sockets.append(listening)
        yield sockets


def was_asked(listening: socket.socket) -> bool:
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_the_mount_tells_and_no_other_engine_is_asked(
    tiercache: Command, origin: Path, mountpoint: Path, silent: list[socket.socket]
) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    assert json.loads(tiercache.good("status", mountpoint / "a.txt", "--json"))["size_bytes"] == 1000
    assert "is unmounted" in tiercache.good("umount", mountpoint)
    assert not any(map(was_asked, silent))


def test_where_the_mount_does_not_tell_all_are_asked_at_once(
    tiercache: Command, origin: Path, mountpoint: Path, tmp_path: Path, silent: list[socket.socket]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    linked = tmp_path / "link" / mountpoint.name  # the kernel knows it by another path
    tiercache.good(*tiercache.here("mount", origin, linked))
    assert json.loads(tiercache.good("status", linked / "a.txt", "--json"))["size_bytes"] == 1000
    assert "is unmounted" in tiercache.good("umount", linked)
    assert any(map(was_asked, silent))


def test_a_stopped_engine_keeps_no_other_from_its_answer(
    tiercache: Command, origin: Path, mountpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "00"
    tiercache.good("warmup", f"file://{origin}", "--cache-dir", other)
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    try:
        with stopped(other):
            assert json.loads(tiercache.good("status", mountpoint / "a.txt", "--json"))["size_bytes"] == 1000
            assert "is unmounted" in tiercache.good("umount", mountpoint)
    finally:
        tiercache.good("stop", "--cache-dir", other)


def test_an_owner_that_hangs_is_told(
    tiercache: Command, inside: Command, origin: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    monkeypatch.setattr(owner, "ANSWER_S", 0.2)
    with stopped(tiercache.cache_dir):
        for command in ("status", "umount"):
            assert "its engine does not answer" in inside.failure(command, mountpoint)
        monkeypatch.setattr(owner.mountpoints, "is_of", lambda config, mount: False)  # as one of an earlier release
        assert "no engine that answers has it mounted" in inside.failure("umount", mountpoint)
    assert os.path.ismount(mountpoint)


def test_what_is_still_mounted_in_a_container_is_told(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    with OtherNamespace() as other:
        text = tiercache.good("umount", mountpoint)
        assert text.splitlines() == [
            f"{mountpoint}: still mounted in another mount namespace, such as a container's; it is served there until "
            "it ends",
            f"{mountpoint} is unmounted, everything is in the origin",
        ]
        assert (other.path(mountpoint) / "a.txt").read_bytes() == b"a" * 1000
        assert f"{mountpoint} (elsewhere)" in tiercache.good(*tiercache.here("status"))
        tiercache.good(*tiercache.here("stop"))
