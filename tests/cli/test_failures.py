"""Every failure is one line on stderr with what to do, an exit status other than 0, and no traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rig.command import Command


@pytest.mark.parametrize(
    "arguments",
    [
        ["mount"],
        ["mount", "s3://b"],
        ["umount"],
        ["nonsense"],
        ["status", "--nonsense"],
        ["mount", "s3://b", "/m", "--deadline"],
        ["config"],
        ["config", "nonsense"],
    ],
)
def test_wrong_usage_is_told_with_status_2(inside: Command, arguments: list[str]) -> None:
    assert inside.failure(*arguments, status=2)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["drain", "--deadline", "soon"], "--deadline: 'soon' is not understood; allowed: a duration such as"),
        (["stop", "--deadline", "-1"], "--deadline: '-1' is "),
        (["umount", "m", "--deadline", "2 weeks"], "--deadline: '2 weeks' is "),
        (["mount", "/", "m", "--deadline", "x"], "--deadline: 'x' is "),
        (["drain", "--level", "disk"], "--level: 'disk' is not known; allowed: memory, local, origin"),
        (["drain", "m", "--level", "replica"], "--level: replica comes with the shared cluster, which is not there"),
        (["mount", "/", "m", "--ack", "disk"], "--ack: 'disk' is not known; allowed: memory, local, origin"),
        (["mount", "/", "m", "--ack", "replica"], "--ack: replica comes with the shared cluster, which is not there"),
        (["mount", "/", "m", "--driver", "nfs"], "--driver: 'nfs' is not known; allowed: auto, kernel, pyfuse3"),
        (["mount", "/", "m", "--profile", "data"], "--profile: 'data' is not known; allowed: dataset, checkpoint"),
        (["mount", "/", "m", "--client", "boto"], "--client: 'boto' is not known; allowed: obstore, s3fs"),
        (["mount", "/", "m", "-o", "x"], "--option x: is no setting; allowed: KEY=VALUE"),
        (["drain", "--set", "nvme"], "--set nvme: is no setting; allowed: KEY=VALUE"),
    ],
)
def test_what_no_option_can_be_is_wrong_usage_and_one_line(inside: Command, arguments: list[str], line: str) -> None:
    told = inside.failure(*arguments, status=2)
    assert told.startswith(line)
    assert "replica, " not in told


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["status", "--cache-dir", "nowhere"], "there is no such cache directory; check --cache-dir"),
        (["drain", "--cache-dir", "nowhere"], "there is no such cache directory; check --cache-dir"),
        (["stop", "--cache-dir", "nowhere"], "there is no such cache directory; check --cache-dir"),
        (["status", "--cache-dir", "."], "no engine runs for cache directory {home}; another is named by --cache"),
        (["stop", "--cache-dir", "."], "no engine runs for cache directory {home}; another is named by --cache"),
        (["restart", "--cache-dir", "."], "no engine runs for cache directory {home}; another is named by --cache"),
        (["status", "--config", "gone.toml"], "gone.toml: cannot be read: No such file or directory"),
        (["status", "--cache-dir", "/c\udcff"], "options:cache_dir: /c\\udcff is not UTF-8; allowed: a path of UTF-8"),
        (["drain", "--set", "nvme.capcity=1"], "options:nvme.capcity: unknown key, did you mean 'capacity'?"),
        (["umount", "unmounted"], "unmounted: nothing of tiercache is mounted there"),
    ],
)
def test_bad_arguments_are_one_line(inside: Command, arguments: list[str], line: str) -> None:
    assert line.format(home=inside.home) in inside.failure(*arguments)


@pytest.mark.parametrize("command", ["status", "stop", "drain", "restart"])
def test_without_any_engine_the_directory_that_was_looked_at_is_told(
    inside: Command, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.cli.link.running_cache_dirs", list)
    assert inside.failure(command) == (
        f"no engine runs, neither for the default cache directory {inside.home}/.cache/tiercache nor for another that "
        "can be seen from here; one is named by --cache-dir DIR"
    )


def test_a_bad_setting_of_the_environment_is_one_line(inside: Command) -> None:
    line = inside.failure("status", TIERCACHE_NVME__CAPACITY="lots")
    assert line.startswith("environment:TIERCACHE_NVME__CAPACITY: 'lots' is not understood; allowed: a size such as")


def test_a_file_as_cache_directory_is_one_line(tiercache: Command, origin: Path) -> None:
    tiercache.cache_dir.write_text("a file")
    line = tiercache.failure(*tiercache.here("warmup", origin))
    assert "is not a directory" in line
    assert "--cache-dir" in line
    tiercache.cache_dir.unlink()


def test_debug_shows_the_traceback_as_well(inside: Command) -> None:
    result = inside("status", "--cache-dir", "nowhere", TIERCACHE_DEBUG="1")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("tiercache: ")
    assert "Traceback" not in inside("status", "--cache-dir", "nowhere", TIERCACHE_DEBUG="0").stderr


def test_a_reader_that_leaves_early_is_no_error(tiercache: Command) -> None:
    process = subprocess.Popen(
        tiercache.arguments("config", "show"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=tiercache.environment | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()
