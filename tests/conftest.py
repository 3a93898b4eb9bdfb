"""Fixtures of all tests: the S3 server, a bucket of one's own, the fault proxy; and no AWS settings from outside."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.faultproxy import FaultProxy
from rig.seaweedfs import Bucket, S3Server, SeaweedFS, fresh_bucket

_LEAKS = ("AWS_", "BOTO_", "GOOGLE_", "AZURE_", "FSSPEC_", "TIERCACHE_")


def pytest_configure() -> None:
    # What a script runs in the background ignores SIGINT, and so would each program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _isolated_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No credentials, profiles or endpoints of the machine reach a test, nor do its instance role's."""
    nowhere = tmp_path_factory.mktemp("no-aws")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(_LEAKS):
                patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", str(nowhere / "config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nowhere / "credentials"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("XDG_CONFIG_HOME", str(nowhere))
        # Hundreds of processes are started, and each would compile the whole package for itself.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS of this test session."""
    directory: Path = tmp_path_factory.mktemp("s3")
    with SeaweedFS(directory) as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> Bucket:
    """A new, empty bucket."""
    return fresh_bucket(s3_server)


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A fault proxy in front of the S3 server, without faults yet."""
    proxy = FaultProxy(s3_server)
    yield proxy
    proxy.close()


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory, where a sync costs nothing, for tests that start anew hundreds of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)
