"""Each benchmark runs once, small, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rig.benchmarks import run
from tiercache.bench import node
from tiercache.bench.cli import main
from tiercache.bench.peers.choice import KINDS
from tiercache.bench.realfiles import copy_real_files, find_real_files
from tiercache.bench.stage import Stage
from tiercache.bench.suites import SUITES
from tiercache.bench.targets import DIRECTORY, MOUNT, OURS_CAT, OURS_OPEN, PLAIN_OPEN, S3FS_OPEN
from tiercache.bench.workloads import Saving
from tiercache.errors import ConfigError, TierCacheError
from tiercache.fuse.mountpoint import mounts

READING = {"cold", "warm", "disk-warm"}
SAVING = {"save", "save, until the origin has it", "load, same node", "load, fresh node"}
PHASES = {
    "smallfiles-4": {"smallfiles-4": READING},
    "largefile": {"largefile": READING},
    "checkpoint": {"checkpoint": SAVING, "checkpoint-fsync": SAVING},
    "metadata": {
        "metadata": {
            "list a directory, cold",
            "stat a name, cold",
            "list a directory, warm",
            "stat a name, warm",
            "create, write 4 KiB, close",
        }
    },
    "mount": {
        "mount-files": {"warm", "disk-warm"},
        "mount-files-buffered": {"warm", "disk-warm"},
        "mount-large": {"disk-warm"},
        "mount-large-weights": {"disk-warm"},
        "mount-checkpoint": {"save"},
        "mount-checkpoint-fsync": {"save"},
        "mount-tree": {"walk the tree and stat each file, warm"},
        "mount-create": {"create, write 4 KiB, close"},
        "mount-memory": {"cold"},
    },
}


def processes_that_name(path: Path) -> list[str]:
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found += [text for text in (command.read_bytes().replace(b"\0", b" ").decode(),) if str(path) in text]
    return found


def phases_of(found: Any) -> dict[str, set[str]]:
    phases: dict[str, set[str]] = {}
    for row in found["rows"]:
        phases.setdefault(row["workload"], set()).add(row["phase"])
    return phases


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param("smallfiles-4", marks=pytest.mark.exhaustive),
        pytest.param("checkpoint", marks=pytest.mark.exhaustive),
        "metadata",
    ],
)
def test_each_workload_runs_over_s3(
    workload: str, quick_arguments: list[str], bench_keys: Callable[[], list[str]], tmp_path: Path
) -> None:
    found = run(workload, quick_arguments, tmp_path)
    assert bench_keys() == []
    assert phases_of(found) == PHASES[workload]
    assert {S3FS_OPEN, MOUNT, OURS_OPEN} <= {row["target"] for row in found["rows"]}
    assert found["machine"]["python"]


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_mount_suite_puts_us_beside_the_plain_directory_and_the_peers_that_are_installed(
    quick_arguments: list[str], bench_keys: Callable[[], list[str]], tmp_path: Path
) -> None:
    found = run("mount", [*quick_arguments, f"--against={','.join(KINDS)}"], tmp_path)
    assert bench_keys() == []
    assert phases_of(found) == PHASES["mount"]
    peers = {name for name, kind in KINDS.items() if kind.find()}
    assert peers <= found["machine"].keys()
    for name in KINDS.keys() - peers:
        assert any(name in note and "not installed" in note for note in found["notes"])
    rows = {(row["workload"], row["phase"], row["target"]): row for row in found["rows"]}
    for workload, phases in PHASES["mount"].items():
        for phase in phases:
            ours = rows[workload, phase, MOUNT]
            assert (workload, phase, PLAIN_OPEN) in rows
            assert ours["against_local"]["median"] > 0
            assert ours["server_rss_bytes"] > 2**20
            # One origin is a directory, which only one of them can show.
            assert ours["against_peers"].keys() == (peers if workload != "mount-memory" else peers & {"rclone"})
    read = [epoch for epoch in found["epochs"] if epoch["phase"] == "disk-warm" and epoch["target"] == MOUNT]
    assert all(epoch["server"]["read_calls"] > 0 and epoch["resident_before"] == 0 for epoch in read)
    assert not any("origin_requests_total" in counter for epoch in read for counter in epoch["counters"])


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_slow_s3_server_is_slow_for_everybody_and_its_requests_are_counted(
    quick_arguments: list[str], tmp_path: Path
) -> None:
    arguments = [*quick_arguments, "--simulate-origin=latency=1ms,bandwidth=1GB/s"]
    found = run("largefile", arguments, tmp_path)
    assert phases_of(found) == PHASES["largefile"]
    cold = {row["target"]: row for row in found["rows"] if row["phase"] == "cold"}
    assert cold[S3FS_OPEN]["origin_requests"] > 0
    assert cold[OURS_OPEN]["origin_requests"] > 0


@pytest.mark.timeout(900)
def test_a_slow_directory_is_an_origin_too(tmp_path: Path) -> None:
    """The engine and the uncached reader see the same slowness; cold reads come from the origin, warm ones do not."""
    for name in ("work", "origin"):
        (tmp_path / name).mkdir()
    arguments = [
        "--quick", "--rounds=1", "--no-mount", f"--origin={tmp_path / 'origin'}", f"--work-dir={tmp_path / 'work'}",
        "--simulate-origin=latency=1ms,bandwidth=100MB/s,serial=yes",
    ]  # fmt: skip
    found = run("largefile", arguments, tmp_path)
    assert list((tmp_path / "origin").iterdir()) == []
    rows = {(row["phase"], row["target"]): row for row in found["rows"]}
    assert ("cold", DIRECTORY) in rows
    assert rows["cold", OURS_CAT]["sources"]["origin"] == 1.0
    assert rows["warm", OURS_CAT]["sources"]["origin"] == 0.0
    assert rows["warm", OURS_CAT]["origin_requests"] == 0.0
    assert any("slowed down" in note for note in found["notes"])
    assert any("No mount was measured" in note for note in found["notes"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.exhaustive),
    ],
)
def test_a_signal_in_the_middle_leaves_nothing(
    number: signal.Signals, status: int, quick_arguments: list[str], bench_keys: Callable[[], list[str]], tmp_path: Path
) -> None:
    against = f"--against={','.join(KINDS)}"
    command = [sys.executable, "-P", "-m", "tiercache.cli", "bench", "mount", *quick_arguments, against]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if re.match(r"\d+/\d+ mount-files", line))
        process.send_signal(number)
        process.stderr.read()
    assert process.returncode == status
    assert list((tmp_path / "work").iterdir()) == []
    assert not [mount for mount in mounts() if str(tmp_path) in mount.mountpoint]
    assert bench_keys() == []
    assert processes_that_name(tmp_path / "work") == []


def test_without_the_device_the_mount_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.why_no_mount() == ""
    monkeypatch.setattr(node, "FUSE_DEVICE", Path("/dev/no-such-device"))
    assert node.why_no_mount() == "/dev/no-such-device is missing"


def test_real_images_sound_and_text_are_found_and_copied_byte_for_byte(tmp_path: Path) -> None:
    files = find_real_files()
    assert {file.kind for file in files} == {"images", "sound", "text"}
    assert len(files) > 50
    chosen = files[:: len(files) // 10]
    copy_real_files(chosen, tmp_path, copies=2)
    copied = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = {(file.kind, file.source, file.path.name) for file in chosen}
    assert len(copied) == 2 * len(names)
    assert {path.read_bytes() for path in copied} == {file.path.read_bytes() for file in chosen}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--origin=ftp://host/x"], "allowed: s3://BUCKET/PREFIX or a directory"),
        (["--origin=/nowhere/at/all"], "/nowhere/at/all is not a directory"),
        (["--work-dir=/nowhere/at/all"], "No such file or directory"),
        (["--against=rclone", "--origin=."], "--against needs an S3 origin"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_done(arguments: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        main(["smallfiles", f"--work-dir={tmp_path}", *arguments])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--json=/nowhere/at/all/r.json"], "there is no directory /nowhere/at/all"),
        (["--html=/"], "is a directory"),
        (["--option=novalue"], "is not NAME=VALUE"),
        (["--simulate-origin=speed=1"], "allowed: such as latency"),
        (["--against=nobody"], "'nobody' is not known; there are: juicefs, rclone, s3fs"),
        (["--rounds=0"], "argument --rounds: 0 is not above 0"),
        (["--rounds=x"], "argument --rounds: invalid int value: 'x'"),
        (["--driver=none"], "argument --driver: invalid choice"),
        (["another"], "unrecognized arguments: another"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line_and_status_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["smallfiles", *arguments])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tiercache: bench: ")
    assert told in line


def test_what_was_measured_before_a_failure_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second part cannot make its data set."""
    for name in ("work", "origin"):
        (tmp_path / name).mkdir()

    def fail(stage: Stage, workload: Saving) -> None:
        raise TierCacheError("no more")

    monkeypatch.setattr("tiercache.bench.run.run_saving", fail)
    monkeypatch.setattr(
        "tiercache.bench.cli.find_workloads", lambda name: [*SUITES["largefile"], *SUITES["checkpoint"]]
    )
    arguments = [
        "--quick", "--rounds=1", "--scale=0.1", "--no-mount", f"--origin={tmp_path / 'origin'}",
        f"--work-dir={tmp_path / 'work'}", f"--json={tmp_path / 'r.json'}",
    ]  # fmt: skip
    with pytest.raises(TierCacheError, match="no more"):
        main(["all", *arguments])
    assert "The run was ended before checkpoint, checkpoint-fsync." in capsys.readouterr().out
    assert phases_of(json.loads((tmp_path / "r.json").read_text())) == PHASES["largefile"]
    assert list((tmp_path / "work").iterdir()) == []
