"""What each command does with a real engine and a directory as origin."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import tiercache as package
from rig.command import Command
from rig.mounts import wait_until_gone
from tiercache.fuse import mountpoint as mountpoints


def status_of(tiercache: Command, *arguments: str | Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(tiercache.good(*tiercache.here("status", *arguments, "--json")))
    return answer


def test_version_and_help_answer_without_an_engine(tiercache: Command) -> None:
    assert tiercache.good("version") == f"tiercache {package.__version__}\n"
    assert tiercache.good("--version") == tiercache.good("version")
    text = tiercache.good("--help")
    for command in ("mount", "umount", "status", "drain", "warmup", "stop", "bench", "config", "version"):
        assert f"\n  {command} " in text
    assert "\n  engine " not in text
    assert tiercache.good() == text


def test_bench_has_its_own_help(tiercache: Command) -> None:
    text = "".join(tiercache.good("bench", "--help").split())  # lines are broken anywhere
    assert "smallfiles,largefile,checkpoint,metadata,mount,epochs,hitratio,training,all" in text


def test_help_imports_nothing_heavy(tiercache: Command) -> None:
    """That is what keeps it fast; a time would depend on the machine."""
    script = (
        "import sys, tiercache.cli.app as a, tiercache.cli.failure as f; f.run(a.app, ['--help']); "
        "print([m for m in ('pydantic', 'trio', 'fsspec', 'lmdb', 'obstore', 'botocore', 'prometheus_client', 'rich') "
        "if m in sys.modules], file=sys.stderr)"
    )
    command = [*tiercache.arguments()[:2], "-c", script]
    assert subprocess.run(command, capture_output=True, text=True).stderr == "[]\n"


def test_warmup_starts_an_engine_and_fills_the_cache(tiercache: Command, origin: Path) -> None:
    text = tiercache.good(*tiercache.here("warmup", origin))
    assert text == "2 of 2 files, 196 KiB of 196 KiB are cached\n"
    assert tiercache.good(*tiercache.here("warmup", origin, "--check")) == text
    tiers = status_of(tiercache)["tiers"]
    assert tiers["nvme"]["used_bytes"] + tiers["ram"]["used_bytes"] >= 201_000


def test_warmup_is_let_in_at_its_first_miss_but_not_against_its_name(tiercache: Command, origin: Path) -> None:
    settings = ["--set", "nvme.second_miss_s=1d", "--set", "nvme.exclude=sub/"]
    line = tiercache(*tiercache.here("warmup", origin, *settings))
    assert line.returncode == 1
    refused, summary = line.stdout.splitlines()
    assert "sub/b.txt: does not fit into the cache, or was not admitted: nvme.policy, include, exclude" in refused
    assert summary.startswith("1 of 2 files, ")


def test_a_check_of_what_is_not_cached_fails(tiercache: Command, origin: Path) -> None:
    line = tiercache(*tiercache.here("warmup", origin, "--check"))
    assert line.returncode == 1
    assert line.stdout == "0 of 2 files, 0 B of 196 KiB are cached\n"
    assert line.stderr.endswith("tiercache: 2 files are not in the cache; run it without --check\n")


def test_one_file_is_no_plural(tiercache: Command, origin: Path) -> None:
    line = tiercache.failure(*tiercache.here("warmup", origin / "sub", "--check"))
    assert line == "1 file is not in the cache; run it without --check"
    assert tiercache.good(*tiercache.here("warmup", origin / "sub")).startswith("1 of 1 file, ")


def test_warming_up_what_does_not_exist_fails(tiercache: Command, tmp_path: Path) -> None:
    line = tiercache.failure(*tiercache.here("warmup", tmp_path / "nowhere"))
    assert line == f"{tmp_path}/nowhere: No such file or directory"


def test_status_tells_of_engine_tiers_dirty_files_and_uploads(tiercache: Command, origin: Path) -> None:
    tiercache.good(*tiercache.here("warmup", origin))
    status = status_of(tiercache)
    assert status["engine"]["cache_dir"] == str(tiercache.cache_dir)
    assert status["engine"]["uptime_s"] > 0
    os.kill(status["engine"]["pid"], 0)
    assert {"tiers", "dirty", "uploads", "mounts", "metrics"} <= set(status)
    assert status["uploads"]["bandwidth_max"] is None
    assert status["dirty"]["files"] == 0
    text = tiercache.good(*tiercache.here("status"))
    assert text.startswith(f"engine  pid {status['engine']['pid']}, up ")
    assert "dirty   nothing; uploads: 0 running" in text


def test_status_of_a_url_tells_what_the_file_has_reached(tiercache: Command, origin: Path) -> None:
    tiercache.good(*tiercache.here("warmup", origin))
    file = status_of(tiercache, f"file://{origin}/a.txt")
    assert (file["state"], file["durable"], file["size_bytes"]) == ("clean", "origin", 1000)
    assert file["resident"]["resident_bytes"] == 1000
    text = tiercache.good(*tiercache.here("status", f"file://{origin}/a.txt"))
    assert "safe on    the origin" in text
    missing = f"file://{origin}/missing"
    assert tiercache.failure(*tiercache.here("status", missing)) == f"{missing}: no such file or directory"


def test_the_only_engine_is_found_without_its_cache_directory(tiercache: Command, origin: Path) -> None:
    """Others may run on this machine; then the command names them and asks for a choice."""
    tiercache.good(*tiercache.here("warmup", origin))
    result = tiercache("status", "--json")
    if result.returncode == 0:
        assert json.loads(result.stdout)["engine"]["cache_dir"] == str(tiercache.cache_dir)
    else:
        assert result.stderr.startswith("tiercache: several engines run; choose one with --cache-dir: ")
        assert str(tiercache.cache_dir) in result.stderr


def test_drain_with_nothing_to_do_succeeds_and_starts_an_engine_if_need_be(tiercache: Command) -> None:
    tiercache.cache_dir.mkdir(mode=0o700)
    assert tiercache.good(*tiercache.here("drain")).endswith(": everything is in the origin\n")


def test_stop_ends_the_engine(tiercache: Command, origin: Path) -> None:
    tiercache.good(*tiercache.here("warmup", origin))
    pid = status_of(tiercache)["engine"]["pid"]
    assert f"the engine (pid {pid}) has ended" in tiercache.good(*tiercache.here("stop"))
    assert "no engine runs" in tiercache.failure(*tiercache.here("status"))


def test_an_engine_in_the_foreground_owns_its_directory_until_a_signal(tiercache: Command) -> None:
    process = subprocess.Popen(
        tiercache.arguments(*tiercache.here("engine")),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=tiercache.environment,
    )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        engine = status_of(tiercache)["engine"]
        assert line == f"engine of {tiercache.cache_dir} is ready (pid {engine['pid']})\n"
        assert engine["supervisor_pid"] == process.pid
        line = tiercache.failure(*tiercache.here("engine"))
        assert f"already has an engine (pid {engine['pid']})" in line
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_an_engine_in_the_foreground_that_cannot_start_says_why(tiercache: Command) -> None:
    tiercache.cache_dir.mkdir()
    (tiercache.cache_dir / "staging").write_bytes(b"in the way")
    assert "staging" in tiercache.failure(*tiercache.here("engine"))


def test_restart_replaces_the_engine(tiercache: Command, origin: Path) -> None:
    tiercache.good(*tiercache.here("warmup", origin))
    old = status_of(tiercache)["engine"]
    text = tiercache.good(*tiercache.here("restart"))
    new = status_of(tiercache)["engine"]
    assert text.startswith(f"the engine (pid {old['pid']}) was replaced by pid {new['pid']}, version ")
    assert (new["supervisor_pid"], new["restarts"]) == (old["supervisor_pid"], 1)
    assert "replaced 1 time, " in tiercache.good(*tiercache.here("status"))
    tiercache.good(*tiercache.here("stop"))
    assert "no engine runs" in tiercache.failure(*tiercache.here("restart"))


def test_settings_of_the_command_line_reach_the_engine_that_it_starts(tiercache: Command, origin: Path) -> None:
    tiercache.good(*tiercache.here("warmup", origin, "--set", "nvme.capacity=12345678"))
    assert status_of(tiercache)["tiers"]["nvme"]["capacity_bytes"] == 12345678


def test_settings_that_the_running_engine_has_not_are_refused(tiercache: Command, origin: Path) -> None:
    """Whoever asks for more room must not believe that it is there."""
    tiercache.good(*tiercache.here("warmup", origin, "--set", "nvme.capacity=1GiB"))
    pid = status_of(tiercache)["engine"]["pid"]
    wrong = ("--set", "nvme.capacity=2GiB", "--set", "profiles.dataset.ttl_s=5s", "--set", "verify=open")
    for command in (("warmup", origin), ("mount", origin, tiercache.home / "mnt"), ("drain",)):
        assert tiercache.failure(*tiercache.here(*command, *wrong)) == (
            f"the engine of {tiercache.cache_dir} runs with nvme.capacity=1GiB, not 2GiB and "
            f"profiles.dataset.ttl_s=inf, not 5: end it first with `tiercache stop --cache-dir {tiercache.cache_dir}`, "
            "or leave this out"
        )
    assert status_of(tiercache)["engine"]["pid"] == pid


def test_settings_that_the_running_engine_has_are_taken_however_they_are_spelled(
    tiercache: Command, origin: Path
) -> None:
    tiercache.good(*tiercache.here("warmup", origin, "--set", "nvme.capacity=1GiB"))
    equal = ("nvme.capacity=1024MiB", "engine.idle_timeout_s=5m", "profiles.dataset.read_only=true", "verify=open")
    others = ("engine.mode=attach", "engine.start_timeout_s=59", "origins.mine.url=file:///data")
    arguments = [argument for setting in (*equal, *others) for argument in ("--set", setting)]
    tiercache.good(*tiercache.here("warmup", origin, *arguments))


def test_checkpoints_are_listed_with_what_they_lack(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    (origin / "checkpoint-1").mkdir()
    (origin / "checkpoint-1" / "trainer_state.json").write_bytes(b"1" * 2048)
    tiercache.good(*tiercache.here("mount", origin, mountpoint))
    (mountpoint / "checkpoint-2").mkdir()
    with open(mountpoint / "checkpoint-2" / "model.pt", "wb") as file:
        file.write(b"2" * 1024)
        file.flush()
        found = json.loads(tiercache.good(*tiercache.here("checkpoints", mountpoint, "--json")))
        text = tiercache.good(*tiercache.here("checkpoints", origin.as_uri()))
    assert [(c["name"], c["complete"], c["size_bytes"]) for c in found] == [
        ("checkpoint-2", False, 1024),
        ("checkpoint-1", True, 2048),
    ]
    assert found[0]["lacks"] == "model.pt is being written"
    header, newest, older = map(str.rstrip, text.splitlines())
    assert header.split() == ["checkpoint", "age", "files", "size", "has", "reached"]
    assert newest.split()[0] == "checkpoint-2"
    assert newest.endswith("model.pt is being written")
    assert older.split()[0] == "checkpoint-1"
    assert older.endswith("complete")
    assert "no checkpoint" in tiercache.good(*tiercache.here("checkpoints", mountpoint / "sub"))
    for name, told in (("a.txt", "not a directory"), ("missing", "no such file or directory")):
        line = tiercache.failure(*tiercache.here("checkpoints", mountpoint / name))
        assert line == f"{mountpoint}/{name}: {told}"
    # What is asked for may be one itself, by its name or by what is in it.
    (mountpoint / "sub" / ".metadata").write_bytes(b"m")
    tiercache.good("drain", mountpoint)
    for name, files in (("checkpoint-1", 1), ("sub", 2)):
        [own] = json.loads(tiercache.good(*tiercache.here("checkpoints", mountpoint / name, "--json")))
        assert (own["name"], own["complete"], own["files"]) == (name, True, files)
    tiercache.good(*tiercache.here("umount", mountpoint))


def test_staged_bytes_of_a_dead_engine_are_exported(
    tiercache: Command, origin: Path, mountpoint: Path, tmp_path: Path
) -> None:
    later = {"TIERCACHE_STAGING__UPLOAD_DELAY_S": "1h"}
    tiercache.good(*tiercache.here("mount", origin, mountpoint), **later)
    (mountpoint / "new").write_bytes(b"written")
    engine = status_of(tiercache)["engine"]
    line = tiercache.failure("export-staged", tiercache.cache_dir, tmp_path / "out")
    assert f"its engine runs (pid {engine['pid']})" in line
    for pid in (engine["supervisor_pid"], engine["pid"]):
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
    text = tiercache.good("export-staged", tiercache.cache_dir, tmp_path / "out")
    assert text == f"1 file, 7 B: see {tmp_path}/out/manifest.jsonl\n"
    assert (tmp_path / "out" / "files" / "file" / str(origin)[1:] / "new").read_bytes() == b"written"
    assert "is not empty" in tiercache.failure("export-staged", tiercache.cache_dir, tmp_path / "out")
    shutil.rmtree(tiercache.cache_dir / "journal")
    line = tiercache("export-staged", tiercache.cache_dir, tmp_path / "again")
    assert line.returncode == 3
    assert line.stderr.endswith("tiercache: 1 of 1 file not known to be whole\n")
    mountpoints.unmount(str(mountpoint), detach=True)
    shutil.rmtree(tiercache.cache_dir)


def test_a_conflict_is_resolved(tiercache: Command, origin: Path, mountpoint: Path) -> None:
    later = {"TIERCACHE_STAGING__UPLOAD_DELAY_S": "1h"}
    tiercache.good(*tiercache.here("mount", origin, mountpoint), **later)
    with open(mountpoint / "a.txt", "ab") as file:
        file.write(b"ours")
    (origin / "a.txt").write_bytes(b"theirs")
    line = tiercache(*tiercache.here("drain"))
    assert line.returncode == 3
    assert "conflict" in line.stdout
    text = tiercache.good(*tiercache.here("resolve", mountpoint / "a.txt", "--keep", "both"))
    beside = text.strip().partition(" our bytes go to ")[2]
    assert beside.startswith(f"file://{origin}/a.txt.conflict-")
    tiercache.good(*tiercache.here("drain"))
    assert Path(beside.removeprefix("file://")).read_bytes() == b"a" * 1000 + b"ours"
    assert (origin / "a.txt").read_bytes() == b"theirs"
    line_ = tiercache.failure(*tiercache.here("resolve", mountpoint / "a.txt", "--keep", "ours"))
    assert line_.endswith("is in no conflict")
    tiercache.failure(*tiercache.here("resolve", mountpoint / "a.txt", "--keep", "mine"), status=2)
    tiercache.good(*tiercache.here("umount", mountpoint))
