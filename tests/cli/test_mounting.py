"""Mount, look, write, unmount, by the command line alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from rig.command import Command
from rig.engines import PATIENCE_S, Ended
from tiercache.client import Client
from tiercache.config import load_config
from tiercache.engine.lock import owner_pid


def test_mount_use_status_and_umount(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    text = tiercache.good(*tiercache.here("mount", origin, mountpoint))
    assert text == f"{origin} is mounted at {mountpoint} (profile general)\n"
    assert (mountpoint / "a.txt").read_bytes() == b"a" * 1000
    (mountpoint / "new").write_bytes(b"new")
    # No cache directory given: the engine is found by its mount.
    file = json.loads(tiercache.good("status", mountpoint / "new", "--json"))
    assert file["size_bytes"] == 3
    mounts = json.loads(tiercache.good(*tiercache.here("status", "--json")))["mounts"]
    assert [mount["mountpoint"] for mount in mounts] == [str(mountpoint)]
    assert tiercache.good("umount", mountpoint) == f"{mountpoint} is unmounted, everything is in the origin\n"
    assert not os.path.ismount(mountpoint)
    assert (origin / "new").read_bytes() == b"new"


def test_a_profile_decides_and_read_only_refuses(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    text = tiercache.good(*tiercache.here("mount", origin, mountpoint, "--profile", "dataset"))
    assert text.endswith("(profile dataset, read-only)\n")
    with pytest.raises(OSError, match="Read-only"):
        (mountpoint / "new").write_bytes(b"new")
    tiercache.good(*tiercache.here("umount", mountpoint))


def test_a_busy_mount_is_told_and_stays(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    with (mountpoint / "a.txt").open("rb"):
        assert "is in use" in tiercache.failure(*tiercache.here("umount", mountpoint))
        assert os.path.ismount(mountpoint)
    tiercache.good(*tiercache.here("umount", mountpoint))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_unmounts_on_a_signal(
    tiercache: Command, origin: Path, mountpoint: Path, number: signal.Signals
) -> None:
    with foreground(tiercache, origin, mountpoint) as process:
        (mountpoint / "new").write_bytes(b"new")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out == f"{mountpoint} is unmounted, everything is in the origin\n"
    assert not os.path.ismount(mountpoint)
    assert (origin / "new").read_bytes() == b"new"


def test_foreground_ends_when_somebody_else_unmounts(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    with foreground(tiercache, origin, mountpoint) as process:
        tiercache.good(*tiercache.here("umount", mountpoint))
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, f"{mountpoint} was unmounted\n", "")


def foreground(tiercache: Command, origin: Path, mountpoint: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        tiercache.arguments(*tiercache.here("mount", origin, mountpoint, "--foreground")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=tiercache.environment,
    )
    assert process.stdout is not None
    assert "is mounted at" in process.stdout.readline()
    return process


def kill_engine_and_supervisor(tiercache: Command) -> None:
    engine = json.loads(tiercache.good(*tiercache.here("status", "--json")))["engine"]
    for pid in (engine["supervisor_pid"], engine["pid"]):
        process = os.pidfd_open(pid)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        wait_for_end(process)


def test_a_mount_that_its_dead_engine_left_is_taken_away(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    kill_engine_and_supervisor(tiercache)
    took, drained = tiercache.good("umount", mountpoint).splitlines()
    assert took == f"{mountpoint}: took away the mount that a dead engine had left"
    assert drained == f"{tiercache.cache_dir}: everything is in the origin"
    assert not os.path.ismount(mountpoint)
    assert_no_engine(tiercache.cache_dir)


def test_a_dead_mount_is_told_and_no_engine_is_started_to_take_it_away(
    tiercache: Command, origin: Path, mountpoint: Path, tmp_path: Path
) -> None:
    """Whoever starts one has to say its settings: those of the dead one are not known."""
    delayed = ("--set", "staging.upload_delay_s=1h")
    tiercache.good(*tiercache.here("mount", origin, mountpoint, *delayed))
    (mountpoint / "new").write_bytes(b"new")
    (tmp_path / "link").symlink_to(mountpoint)
    kill_engine_and_supervisor(tiercache)
    here = f"--cache-dir {tiercache.cache_dir}"
    back = f"`tiercache mount URL {mountpoint} {here}` brings it back, `tiercache umount {mountpoint}` takes it away"
    for command in ("status", "drain", "checkpoints"):
        for path in (mountpoint / "new", tmp_path / "link" / "new"):
            assert tiercache.failure(command, path) == (
                f"{path}: its mount at {mountpoint} is dead: its engine and the supervisor of that have ended; {back}"
            )
    assert tiercache.failure("umount", mountpoint, status=3) == (
        "1 file is not in the origin, but kept in the journal; "
        f"`tiercache drain {here}`, with the settings that it had, goes on with them"
    )
    assert not os.path.ismount(mountpoint)
    assert_no_engine(tiercache.cache_dir)
    assert not (tmp_path / ".cache").exists()  # nor one of the default directory
    tiercache.good(*tiercache.here("mount", origin, mountpoint, *delayed))
    kill_engine_and_supervisor(tiercache)
    tiercache.good(*tiercache.here("mount", origin, mountpoint, *delayed))  # brings it back, as it was told
    assert (mountpoint / "new").read_bytes() == b"new"
    kill_engine_and_supervisor(tiercache)
    tiercache.good(*tiercache.here("drain", *delayed))
    assert (origin / "new").read_bytes() == b"new"
    # An engine runs for the cache directory by now, and it is not the one that mounted.
    assert f"{mountpoint}/new: its mount at {mountpoint} is dead" in tiercache.failure("status", mountpoint / "new")
    told = tiercache.good("umount", mountpoint).splitlines()
    assert told[1:] == [f"{tiercache.cache_dir}: everything is in the origin"]


def wait_for_end(process: int) -> None:
    import select

    assert select.select([process], [], [], 60)[0]
    os.close(process)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["{origin}", "{origin}/missing"], "no such directory; make it first: mkdir -p"),
        (["{origin}", "{origin}/a.txt"], "is not a directory"),
        (["{origin}/missing", "{mountpoint}"], "no such"),
        (["{origin}/a.txt", "{mountpoint}"], "{origin}/a.txt: is a file, and only a directory can be mounted"),
        (["xyz://somewhere", "{mountpoint}"], "xyz"),
        (["tiercache://unknown", "{mountpoint}"], "no origin named 'unknown' in the configuration"),
    ],
)
def test_what_cannot_be_mounted_is_one_line_and_nothing_stays(
    tiercache: Command, origin: Path, mountpoint: Path, arguments: list[str], line: str
) -> None:
    formatted = [text.format(origin=origin, mountpoint=mountpoint) for text in arguments]
    assert line.format(origin=origin) in tiercache.failure(*tiercache.here("mount", *formatted))
    assert not os.path.ismount(mountpoint)
    assert_no_engine(tiercache.cache_dir)


def assert_no_engine(cache_dir: Path) -> None:
    """There is none, or the one that is there is about to end."""
    pid = owner_pid(cache_dir) if cache_dir.exists() else None
    if pid is not None:
        with suppress(ProcessLookupError):
            assert Ended(pid).wait()


def test_an_engine_that_ran_before_outlives_a_mount_that_fails(
    tiercache: Command, origin: Path, mountpoint: Path
) -> None:
    tiercache.good(*tiercache.here("warmup", origin))
    pid = owner_pid(tiercache.cache_dir)
    tiercache.failure(*tiercache.here("mount", origin, origin / "missing"))
    assert json.loads(tiercache.good(*tiercache.here("status", "--json")))["engine"]["pid"] == pid


def test_an_engine_that_others_use_outlives_the_mount_that_started_it_and_fails(
    tiercache: Command, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:
        slow.settimeout(PATIENCE_S)
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{slow.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "TIERCACHE_FETCH__RETRIES": "0",
        }
        mounting = subprocess.Popen(
            tiercache.arguments(*tiercache.here("mount", "s3://bucket", tmp_path)),
            stderr=subprocess.PIPE,
            text=True,
            env=tiercache.environment | environment,
        )
        with slow.accept()[0]:  # the engine has begun to ask
            other = Client(load_config(None, {"cache_dir": tiercache.cache_dir}), mode="attach")
            pid = other.status()["engine"]["pid"]
            slow.close()
        # Its message is read: without a reader it would end with the status of a broken pipe.
        _, message = mounting.communicate(timeout=PATIENCE_S)
    assert mounting.returncode == 1
    assert "broke the connection off" in message
    assert other.status()["engine"]["pid"] == pid
    other.close()


def test_a_mount_is_asked_of_its_own_engine_whatever_is_configured(
    tiercache: Command, origin: Path, mountpoint: Path, tmp_path: Path
) -> None:
    """Another engine would call its files clean, and the mount dead."""
    own, other = tmp_path / "own-cache", tmp_path / "another-cache"
    later = ("--set", "staging.upload_delay_s=1h")
    tiercache.good("mount", origin, mountpoint, "--cache-dir", own, *later)
    (mountpoint / "file").write_bytes(b"dirty")
    tiercache.good("warmup", f"file://{origin}", "--cache-dir", other)  # starts the other engine
    configured = {"TIERCACHE_CACHE_DIR": str(other)}
    assert json.loads(tiercache.good("status", mountpoint / "file", "--json", **configured))["state"] != "clean"
    assert "everything is in the origin" in tiercache.good("umount", mountpoint, **configured)
    assert (origin / "file").read_bytes() == b"dirty"
    for cache_dir in (own, other):
        tiercache.good("stop", "--cache-dir", cache_dir)


def test_a_file_on_no_mount_is_not_called_safe(tiercache: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"only here")
    assert "lies under no mount of tiercache" in tiercache.failure("status", tmp_path / "file")


def test_drain_waits_for_a_path_and_says_by_its_status_what_has_not_come_so_far(
    tiercache: Command, origin: Path, mountpoint: Path
) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint, "--set", "staging.upload_delay_s=1h"))
    (mountpoint / "d").mkdir()
    (mountpoint / "d" / "closed").write_bytes(b"bytes")
    told = tiercache.good(*tiercache.here("drain", mountpoint / "d", "--level", "local"))
    assert told == f"{mountpoint / 'd'}: everything is on this node's disk\n"
    assert not (origin / "d" / "closed").exists()
    with (mountpoint / "open").open("wb", buffering=0) as file:
        file.write(b"more")
        told = tiercache.good(*tiercache.here("drain", f"file://{origin}/d"))
        assert told == f"file://{origin}/d: everything is in the origin\n"
        assert (origin / "d" / "closed").read_bytes() == b"bytes"
        told = tiercache.good(*tiercache.here("drain", "--level", "local"))
        assert told.endswith(": everything is on this node's disk\n")
        left = tiercache(*tiercache.here("drain", mountpoint / "open", mountpoint / "d", "--deadline", "200ms"))
        assert left.returncode == 3
        assert left.stdout == f"{mountpoint}/open: is open for writing\n"
        assert left.stderr.endswith("1 file is not in the origin; see tiercache status\n")
    tiercache.good(*tiercache.here("drain", mountpoint / "open"))
    assert (origin / "open").read_bytes() == b"more"
    refused = tiercache.failure(*tiercache.here("resolve", mountpoint / "open", "--keep", "ours"))
    assert refused == f"{mountpoint}/open: is in no conflict"
    missing = tiercache.failure(*tiercache.here("drain", mountpoint / "missing"))
    assert missing == f"{mountpoint}/missing: no such file or directory"
    tiercache.good(*tiercache.here("umount", mountpoint))


def test_drain_of_a_path_and_umount_hurry_nothing_else(
    tiercache: Command, origin: Path, mountpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (other / "shown").mkdir(parents=True)
    (other / "mnt").mkdir()
    tiercache.good(*tiercache.here("mount", origin, mountpoint, "--set", "staging.upload_delay_s=1h"))
    tiercache.good(*tiercache.here("mount", other / "shown", other / "mnt"))
    (mountpoint / "run").mkdir()
    for name in ("run/shard", "run/.metadata", "run/late", "elsewhere"):
        (mountpoint / name).write_bytes(b"bytes")
    (other / "mnt" / "file").write_bytes(b"bytes")
    tiercache.good("drain", mountpoint / "run" / ".metadata")
    arrived = {path.name for path in [*origin.rglob("*"), *(other / "shown").iterdir()] if path.is_file()}
    assert arrived == {"a.txt", "b.txt", "shard", ".metadata"}
    tiercache.good("umount", other / "mnt")
    assert (other / "shown" / "file").read_bytes() == b"bytes"
    assert not (origin / "elsewhere").exists()
    tiercache.good("umount", mountpoint)
    assert (origin / "elsewhere").read_bytes() == b"bytes"


def test_a_mount_says_what_it_promises(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    refused = tiercache.failure(*tiercache.here("mount", origin, mountpoint, "--profile", "scratch", "--ack", "origin"))
    assert refused == "the profile scratch keeps files on this node: no ack = origin"
    told = tiercache.good(*tiercache.here("mount", origin, mountpoint, "--ack", "origin", "--sync-on-close"))
    assert told.endswith("(profile general, fsync and close wait for origin)\n")
    (mountpoint / "f").write_bytes(b"bytes")
    assert (origin / "f").read_bytes() == b"bytes"
    assert "promise    fsync and close wait for the origin\n" in tiercache.good("status", mountpoint / "f")
    tiercache.good(*tiercache.here("umount", mountpoint))


def test_what_lies_under_a_mount_is_found_however_it_is_named(
    tiercache: Command, origin: Path, mountpoint: Path, tmp_path: Path
) -> None:
    """By a symlink to it, by the file URL of the mount, and by the origin's own URL."""
    tiercache.good(*tiercache.here("mount", origin, mountpoint, "--set", "staging.upload_delay_s=1h"))
    (mountpoint / "run").mkdir()
    (mountpoint / "run" / "new").write_bytes(b"new")
    link = tmp_path / "link"
    link.symlink_to(mountpoint / "run")
    for name in (link / "new", f"file://{mountpoint}/run/new", f"file://{link}/new", f"file://{origin}/run/new"):
        file = json.loads(tiercache.good(*tiercache.here("status", name, "--json")))
        assert (file["state"], file["size_bytes"]) == ("sealed", 3), name
    tiercache.good(*tiercache.here("drain", f"file://{link}"))
    assert (origin / "run" / "new").read_bytes() == b"new"
    tiercache.good("umount", mountpoint)


def test_a_directory_tells_what_of_it_is_not_in_the_origin(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    tiercache.good(*tiercache.here("mount", origin, mountpoint, "--set", "staging.upload_delay_s=1h"))
    (mountpoint / "run").mkdir()
    for name in ("a", "b"):
        (mountpoint / "run" / name).write_bytes(b"12345")
    told = json.loads(tiercache.good("status", mountpoint / "run", "--json"))
    assert (told["state"], told["dirty_files"], told["size_bytes"], told["durable"]) == ("dirty", 2, 10, "memory")
    assert "size       10 B in 2 files to go up\n" in tiercache.good("status", mountpoint)
    tiercache.good("drain", mountpoint)
    told = json.loads(tiercache.good("status", mountpoint / "run", "--json"))
    assert (told["state"], told["durable"], told.get("dirty_files")) == ("clean", "origin", None)
    tiercache.good("umount", mountpoint)
