"""The commands over a real bucket: credentials as every AWS tool takes them, bad input, and a killed engine."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from pathlib import Path

import pytest

from rig.command import Command
from rig.faultproxy import FaultProxy
from rig.mounts import wait_for
from rig.seaweedfs import Bucket, S3Server
from rig.small_disk import small_disk


@pytest.fixture
def environment(s3_server: S3Server) -> dict[str, str]:
    """What a user of this server exports; no retries, so that what fails fails at once."""
    return s3_server.environment() | {"TIERCACHE_FETCH__RETRIES": "0", "TIERCACHE_FETCH__CONNECT_TIMEOUT_S": "2s"}


def engine_pid(tiercache: Command) -> int:
    return int(json.loads(tiercache.good(*tiercache.here("status", "--json")))["engine"]["pid"])


def test_aws_variables_and_a_mounted_bucket(
    tiercache: Command, s3_bucket: Bucket, mountpoint: Path, environment: dict[str, str]
) -> None:
    s3_bucket.put("prefix/old", b"old")
    tiercache.good(*tiercache.here("mount", f"{s3_bucket.url}/prefix", mountpoint), **environment)
    assert (mountpoint / "old").read_bytes() == b"old"
    (mountpoint / "new").write_bytes(b"new")
    # No variables here: the engine has them.
    tiercache.good(*tiercache.here("umount", mountpoint))
    assert s3_bucket.get("prefix/new") == b"new"


def test_a_mounted_prefix_without_objects_is_seen_by_its_mount_alone(
    tiercache: Command, s3_bucket: Bucket, mountpoint: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Until something is made in it."""
    above = tmp_path / "above"
    above.mkdir()
    s3_bucket.put("other", b"other")
    environment["TIERCACHE_PROFILES__GENERAL__TTL_S"] = "1h"  # what is remembered would be seen
    tiercache.good(*tiercache.here("mount", s3_bucket.url, above), **environment)
    assert os.listdir(above) == ["other"]
    tiercache.good(*tiercache.here("mount", f"{s3_bucket.url}/no/such", mountpoint), **environment)
    for _ in range(2):
        assert os.listdir(mountpoint) == []
        assert os.listdir(above) == ["other"]
    tiercache.good(*tiercache.here("restart"), **environment)
    assert os.listdir(above) == ["other"]
    assert os.listdir(mountpoint) == []
    tiercache.good(*tiercache.here("umount", mountpoint), **environment)
    assert os.listdir(above) == ["other"]
    assert not (above / "no" / "such").exists()
    tiercache.good(*tiercache.here("mount", f"{s3_bucket.url}/no/such", mountpoint), **environment)
    (mountpoint / "new").write_bytes(b"new")
    # What one mount is told of the changes of another may come a moment late.
    wait_for(lambda: sorted(os.listdir(above)) == ["no", "other"])
    wait_for(lambda: os.listdir(above / "no") == ["such"])
    assert (above / "no" / "such" / "new").read_bytes() == b"new"
    tiercache.good(*tiercache.here("umount", mountpoint), **environment)
    tiercache.good(*tiercache.here("umount", above), **environment)
    assert s3_bucket.keys() == ["no/such/new", "other"]


def test_an_engine_that_was_started_without_credentials_uses_the_callers(
    tiercache: Command, origin: Path, s3_bucket: Bucket, environment: dict[str, str]
) -> None:
    tiercache.good(*tiercache.here("warmup", origin))
    s3_bucket.put("a", b"a")
    assert tiercache.good(*tiercache.here("warmup", s3_bucket.url), **environment).startswith("1 of 1 file, ")


def test_a_profile_of_the_aws_files_serves_as_well(
    tiercache: Command, s3_bucket: Bucket, s3_server: S3Server, tmp_path: Path
) -> None:
    s3_bucket.put("a", b"a")
    credentials, config = tmp_path / "credentials", tmp_path / "aws-config"
    credentials.write_text(
        f"[lab]\naws_access_key_id = {s3_server.access_key}\naws_secret_access_key = {s3_server.secret_key}\n"
    )
    config.write_text(f"[profile lab]\nregion = {s3_server.region}\nendpoint_url = {s3_server.endpoint}\n")
    files = {"AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_CONFIG_FILE": str(config)}
    assert tiercache.good(*tiercache.here("warmup", s3_bucket.url), AWS_PROFILE="lab", **files).startswith("1 of 1")


def test_after_kill_9_between_save_and_upload_a_drain_brings_the_bytes_to_the_bucket(
    tiercache: Command, s3_bucket: Bucket, mountpoint: Path, environment: dict[str, str]
) -> None:
    tiercache.good(
        *tiercache.here("mount", s3_bucket.url, mountpoint, "--set", "staging.upload_delay_s=1h"), **environment
    )
    data = os.urandom(300_000)
    with (mountpoint / "checkpoint").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    pid = engine_pid(tiercache)
    assert s3_bucket.keys() == []
    kill(pid)
    assert tiercache.good(*tiercache.here("drain"), **environment).endswith("everything is in the origin\n")
    assert engine_pid(tiercache) != pid
    assert s3_bucket.get("checkpoint") == data
    tiercache(*tiercache.here("umount", mountpoint))


def kill(pid: int) -> None:
    process = os.pidfd_open(pid)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    assert select.select([process], [], [], 60)[0]
    os.close(process)


def test_drain_and_umount_say_by_status_3_what_stays_in_the_journal(
    tiercache: Command, s3_bucket: Bucket, s3_proxy: FaultProxy, mountpoint: Path, environment: dict[str, str]
) -> None:
    environment |= {"AWS_ENDPOINT_URL": s3_proxy.endpoint}
    tiercache.good(*tiercache.here("mount", s3_bucket.url, mountpoint), **environment)
    s3_proxy.answer(503, operation="PutObject")
    (mountpoint / "new").write_bytes(b"new")
    result = tiercache(*tiercache.here("drain", "--deadline", "500ms"))
    assert result.returncode == 3
    assert "1 file is not in the origin, but kept in the journal" in result.stderr
    assert "/new: " in result.stdout
    result = tiercache(*tiercache.here("umount", mountpoint, "--deadline", "500ms"))
    assert result.returncode == 3
    assert not os.path.ismount(mountpoint)
    s3_proxy.clear()
    assert tiercache.good(*tiercache.here("drain")).endswith("everything is in the origin\n")
    assert s3_bucket.get("new") == b"new"


@pytest.mark.parametrize(
    ("url", "changes", "line"),
    [
        ("s3://no-such-bucket-here/x", {}, "s3://no-such-bucket-here: the bucket does not exist"),
        ("s3://{bucket}", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "{bucket}/: access denied (403 SignatureDoesNotMatch): "),
        (
            "s3://{bucket}",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:{closed}"},
            "s3://{bucket}/: cannot connect to http://127.0.0.1:{closed}",
        ),
        ("s3://{bucket}", {"AWS_ENDPOINT_URL": "localhost:8333"}, "write AWS_ENDPOINT_URL=http://localhost:8333 "),
        ("s3:/{bucket}", {}, ""),
        ("s4://{bucket}", {}, "s4"),
    ],
)
def test_a_bucket_that_cannot_be_reached_is_one_line_and_nothing_is_mounted(
    tiercache: Command,
    s3_bucket: Bucket,
    mountpoint: Path,
    environment: dict[str, str],
    url: str,
    changes: dict[str, str],
    line: str,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        closed = str(sock.getsockname()[1])
    names = {"bucket": s3_bucket.name, "closed": closed}
    changed = environment | {name: value.format(**names) for name, value in changes.items()}
    said = tiercache.failure(*tiercache.here("mount", url.format(**names), mountpoint), **changed)
    assert line.format(**names) in said
    assert not os.path.ismount(mountpoint)


def test_a_full_disk_as_cache_directory_is_one_line(tiercache: Command, origin: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 1) as disk:
        (disk / "filler").write_bytes(bytes(1024**2))
        assert "full" in tiercache.failure("warmup", origin, "--cache-dir", disk / "cache")


def test_a_cache_directory_that_cannot_be_made_is_one_line(tiercache: Command, origin: Path) -> None:
    assert "/proc/tiercache" in tiercache.failure("warmup", origin, "--cache-dir", "/proc/tiercache")


def test_a_url_means_the_origin_that_is_mounted_whatever_options_that_has(
    tiercache: Command, s3_bucket: Bucket, mountpoint: Path, environment: dict[str, str]
) -> None:
    """The mount spells the endpoint in another way than the variables: else its dirty files would count as safe."""
    endpoint = environment["AWS_ENDPOINT_URL"].replace("127.0.0.1", "localhost")
    delayed = ("-o", f"endpoint_url={endpoint}", "--set", "staging.upload_delay_s=1h")
    tiercache.good(*tiercache.here("mount", f"{s3_bucket.url}/run", mountpoint, *delayed), **environment)
    (mountpoint / "new").write_bytes(b"new")
    file = json.loads(tiercache.good(*tiercache.here("status", f"{s3_bucket.url}/run/new", "--json"), **environment))
    assert (file["state"], file["size_bytes"]) == ("sealed", 3)
    tiercache.good(*tiercache.here("drain", f"{s3_bucket.url}/run"), **environment)
    assert s3_bucket.get("run/new") == b"new"
    tiercache.good("umount", mountpoint, **environment)


def test_links_inside_a_mounted_bucket_are_followed(
    tiercache: Command, s3_bucket: Bucket, mountpoint: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Those to a directory on the way, to a file, to an absolute path in the mount, and the latest checkpoint."""
    delayed = ("--set", "staging.upload_delay_s=1h", "--set", "checkpoints.settle_s=0")
    tiercache.good(*tiercache.here("mount", f"{s3_bucket.url}/run", mountpoint, *delayed), **environment)
    (mountpoint / "disk" / "step-1").mkdir(parents=True)
    (mountpoint / "runs").mkdir()
    (mountpoint / "runs" / "now").symlink_to("../disk")
    (mountpoint / "file").symlink_to("runs/now/step-1/model")
    (mountpoint / "top").symlink_to(mountpoint / "disk")
    (mountpoint / "disk" / "step-1" / "model").write_bytes(b"12345")
    names = ("disk/step-1/model", "runs/now/step-1/model", "file", "top/step-1/model", "runs/../file")
    for name in names:
        told = json.loads(tiercache.good("status", mountpoint / name, "--json"))
        assert (told["state"], told["size_bytes"]) == ("sealed", 5), name
    url = f"{s3_bucket.url}/run/runs/now/step-1/model"
    assert json.loads(tiercache.good(*tiercache.here("status", url, "--json"), **environment))["state"] == "sealed"
    assert json.loads(tiercache.good("status", mountpoint / "runs" / "now", "--json"))["dirty_files"] == 1
    tiercache.good("drain", mountpoint / "file")
    assert s3_bucket.get("run/disk/step-1/model") == b"12345"
    assert [json.loads(tiercache.good("status", mountpoint / name, "--json"))["state"] for name in names] == [
        "clean"
    ] * 5
    for name in ("disk", "runs/now", "top"):
        [found] = json.loads(tiercache.good("checkpoints", mountpoint / name, "--json"))
        assert (found["name"], found["complete"]) == ("step-1", True)
        told = json.loads(tiercache.good("status", mountpoint / name / "latest-complete" / "model", "--json"))
        assert (told["state"], told["size_bytes"]) == ("clean", 5)
    outside = tmp_path / "outside"
    outside.write_bytes(b"x")
    (mountpoint / "out").symlink_to(outside)
    line = tiercache.failure("status", mountpoint / "out")
    assert line == f"{mountpoint}/out: leads to {outside}, outside of the mount at {mountpoint}"
    (mountpoint / "up").symlink_to("../../outside")
    assert tiercache.failure("status", mountpoint / "up") == f"{mountpoint}/up: leads out of the mount at {mountpoint}"
    (mountpoint / "loop").symlink_to("loop")
    assert tiercache.failure("status", mountpoint / "loop") == f"{mountpoint}/loop: too many symbolic links"
    tiercache.good("umount", mountpoint)


def test_a_url_that_nobody_has_open_is_opened_as_the_asker_would(
    tiercache: Command, origin: Path, s3_bucket: Bucket, s3_server: S3Server, environment: dict[str, str]
) -> None:
    """Not with the environment of the engine, which has no keys here; and nothing secret is written down."""
    s3_bucket.put("step-1/model", b"12345")
    tiercache.good(*tiercache.here("warmup", origin))
    url = f"{s3_bucket.url}/step-1/model"
    told = json.loads(tiercache.good(*tiercache.here("status", url, "--json"), **environment))
    assert (told["state"], told["size_bytes"]) == ("clean", 5)
    tiercache.good(*tiercache.here("stop"))
    for command in (("checkpoints", s3_bucket.url), ("drain", url), ("status", url)):
        tiercache.good(*tiercache.here("warmup", origin))
        assert tiercache.good(*tiercache.here(*command), **environment)
        secret = s3_server.secret_key.encode()
        files = [path for path in tiercache.cache_dir.rglob("*") if path.is_file()]
        assert [path for path in files if secret in path.read_bytes()] == []
        tiercache.good(*tiercache.here("stop"))
