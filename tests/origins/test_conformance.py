"""The conformance suite over every origin and wrapper."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from origins.conformance import OriginConformance, Subject

from rig.seaweedfs import S3Server, make_bucket
from tiercache.memory import SMALLEST_BYTES, Memory
from tiercache.metrics import Metrics
from tiercache.model import Key
from tiercache.origins import Limits, Origin, RetryingOrigin, RetryPolicy, SimulatedOrigin, open_origin
from tiercache.origins.objectstore import ObjectStoreOrigin

BUCKET = "conformance"

SMALL = Limits(
    part_size_bytes=5 * 1024 * 1024,
    single_put_bytes=64 * 1024,
    single_copy_bytes=128 * 1024,
    list_page=10,
    part_concurrency=2,
    buffer_bytes=12 * 1024 * 1024,
)
"""Multipart begins early. Parts under 5 MiB are refused by the real server; ``test_scaled`` has shorter ones."""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    directory = tmp_path / "scratch"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> S3Server:
    make_bucket(s3_server, BUCKET)
    return s3_server


@pytest.fixture(scope="module")
def s3(server: S3Server) -> Iterator[Origin]:
    origin, _ = open_origin(f"s3://{BUCKET}", options=server.options(), limits=SMALL)
    yield origin
    origin.close()


@pytest.fixture(scope="module")
def s3fs(server: S3Server) -> Iterator[Origin]:
    origin, _ = open_origin(f"s3://{BUCKET}", client="s3fs", options=server.options())
    yield origin
    origin.close()


def fresh_prefix() -> Key:
    """A prefix that nothing else used: SeaweedFS lists emptied directories for a while."""
    return uuid.uuid4().hex.encode()


class TestPosix(OriginConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path, scratch: Path) -> Subject:
        root = tmp_path / "root"
        root.mkdir()
        return Subject(*open_origin(str(root)), scratch)


class TestS3(OriginConformance):
    @pytest.fixture
    def subject(self, s3: Origin, scratch: Path) -> Subject:
        return Subject(s3, fresh_prefix(), scratch)


class TestS3FS(OriginConformance):
    @pytest.fixture
    def subject(self, s3fs: Origin, scratch: Path) -> Subject:
        return Subject(s3fs, fresh_prefix(), scratch)


class TestFsspecMemory(OriginConformance):
    @pytest.fixture
    def subject(self, scratch: Path) -> Subject:
        origin, root = open_origin(f"memory://{uuid.uuid4().hex}")
        origin.make_directory(root)
        return Subject(origin, root, scratch)


class TestFsspecLocal(OriginConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path, scratch: Path) -> Subject:
        root = tmp_path / "root"
        root.mkdir()
        return Subject(*open_origin(f"file://{root}", client="fsspec"), scratch)


class TestObjectStore(OriginConformance):
    @pytest.fixture
    def subject(self, scratch: Path) -> Subject:
        return Subject(
            ObjectStoreOrigin(MemoryStore(), "memory://store", limits=SMALL, memory=Memory(SMALLEST_BYTES)),
            b"root",
            scratch,
        )


class TestRetryingS3(OriginConformance):
    @pytest.fixture
    def subject(self, s3: Origin, scratch: Path) -> Subject:
        return Subject(RetryingOrigin(s3, RetryPolicy(), Metrics()), fresh_prefix(), scratch)


class TestSimulatedPosix(OriginConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path, scratch: Path) -> Subject:
        root = tmp_path / "root"
        root.mkdir()
        origin, key = open_origin(str(root))
        slow = SimulatedOrigin(origin, latency_s=1e-4, bandwidth_bytes_per_s=1e9)
        return Subject(RetryingOrigin(slow, RetryPolicy()), key, scratch)
