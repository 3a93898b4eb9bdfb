"""Stores that lie: what they have is compared with what was sent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rig.faultproxy import Act, FaultProxy, Forward
from rig.s3_requests import Answer, Request
from rig.seaweedfs import Bucket
from tiercache.checksum import block_checksums
from tiercache.errors import Broken
from tiercache.memory import Memory
from tiercache.origins import Limits, Origin, Source, Upload, open_origin
from tiercache.origins.base import Spoiled
from tiercache.origins.limits import Part
from tiercache.origins.local_file import PartFile, held_body, read_part
from tiercache.origins.obstore_calls import Found
from tiercache.origins.s3.proof import Proof, md5_of_parts, tells_md5

MIB = 1024 * 1024
LIMITS = Limits(part_size_bytes=8 * MIB, single_put_bytes=MIB)


@pytest.fixture
def origin(s3_bucket: Bucket, s3_proxy: FaultProxy) -> Iterator[Origin]:
    made, _ = open_origin(s3_bucket.url, options=s3_proxy.options(), limits=LIMITS)
    yield made
    made.close()


def upload_of(path: Path, data: bytes, *, upload_id: str = "mine") -> Upload:
    path.write_bytes(data)
    return Upload(Source(str(path), len(data), block_checksums(data)), upload_id=upload_id)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def store_instead(bucket: Bucket, data: bytes) -> Act:
    """Have a PUT store these bytes, and tell of them as if they were what was sent."""

    def act(request: Request, forward: Forward) -> Answer:
        answer = forward()
        metadata = bucket.head(request.key.decode())["Metadata"]
        etag = bucket.put(request.key.decode(), data, Metadata=metadata)
        return answer.with_headers(etag=f'"{etag}"')

    return act


@pytest.mark.parametrize("damage", [flipped, lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_a_store_that_has_other_bytes_is_noticed(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    data = os.urandom(1000)
    upload = upload_of(tmp_path / "source", data)
    s3_proxy.add(store_instead(s3_bucket, damage(data)), operation="PutObject", times=1)
    with pytest.raises(Spoiled) as told:
        origin.write(b"key", upload)
    assert told.value.etag == origin.stat(b"key").etag
    origin.write(b"key", upload)
    assert s3_bucket.get("key") == data


def test_a_store_that_has_other_bytes_of_one_part_is_noticed(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    data = os.urandom(20 * MIB)
    upload = upload_of(tmp_path / "source", data)

    def act(request: Request, forward: Forward) -> Answer:
        answer = s3_bucket.s3.upload_part(
            Bucket=request.bucket,
            Key=request.key.decode(),
            UploadId=request.query["uploadId"],
            PartNumber=2,
            Body=flipped(request.body),
        )
        return Answer(200, (("etag", answer["ETag"]),), b"")

    s3_proxy.add(
        lambda request, forward: act(request, forward) if request.query["partNumber"] == "2" else forward(),
        operation="UploadPart",
    )
    with pytest.raises(Spoiled):
        origin.write(b"key", upload)
    s3_proxy.clear()
    written = origin.write(b"key", upload)
    assert s3_bucket.get("key") == data
    cut = [data[at : at + 8 * MIB] for at in range(0, len(data), 8 * MIB)]
    assert written.etag == md5_of_parts([hashlib.md5(part).hexdigest() for part in cut])


def test_an_etag_that_is_answered_wrong_is_not_believed(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    data = os.urandom(1000)
    s3_proxy.add(lambda request, forward: forward().with_headers(etag=f'"{"0" * 32}"'), operation="PutObject")
    for _ in range(2):
        written = origin.write(b"key", upload_of(tmp_path / "source", data))
        assert written.etag == hashlib.md5(data).hexdigest()


def test_a_size_that_is_answered_wrong_is_noticed(origin: Origin, s3_proxy: FaultProxy, tmp_path: Path) -> None:
    s3_proxy.add(lambda request, forward: forward().with_headers(content_length="999"), operation="HeadObject")
    with pytest.raises(Broken, match="999 of 1000 bytes"):
        origin.write(b"key", upload_of(tmp_path / "source", os.urandom(1000)))


class OtherStore:
    """One whose etags are no MD5s."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.etag = "f" * 32
        self.reads = 0

    def head(self, key: bytes) -> Found:
        return Found(len(self.data), self.etag, 0, {"tiercache-upload": "mine"})

    def read(self, key: bytes, offset: int, length: int, etag: str) -> memoryview:
        self.reads += 1
        return memoryview(self.data)[offset : offset + length]


def test_a_store_whose_etags_are_no_md5s_is_read_back_once(tmp_path: Path) -> None:
    data = os.urandom(9 * MIB)
    store = OtherStore(data)
    proof = Proof(Memory(256 * MIB), store.head, store.read)
    upload = upload_of(tmp_path / "source", data)
    md5 = hashlib.md5(data).hexdigest()
    assert proof.of(b"key", upload, store.etag, md5) == store.etag
    assert (proof.by_etag, store.reads) == (False, 3)
    assert proof.of(b"key", upload, store.etag, md5) == store.etag
    assert store.reads == 3


def test_a_store_that_says_that_it_encrypts_is_not_compared() -> None:
    assert tells_md5({})
    assert tells_md5({"ServerSideEncryption": "AES256"})
    assert not tells_md5({"ServerSideEncryption": "aws:kms"})
    assert not tells_md5({"ServerSideEncryption": "aws:kms:dsse"})
    assert not tells_md5({"SSECustomerAlgorithm": "AES256"})


@pytest.mark.parametrize("offset", [0, 4 * MIB, 3 * MIB, 8 * MIB])
def test_bytes_that_changed_since_their_checksums_were_taken_are_not_sent(tmp_path: Path, offset: int) -> None:
    data = os.urandom(12 * MIB + 5)
    source = upload_of(tmp_path / "source", data).source
    part = Part(1, offset, len(data) - offset)
    with open(source.path, "r+b") as file:
        assert read_part(file.fileno(), source, part) == data[offset:]
        for at in (offset, 4 * MIB, 8 * MIB - 1, len(data) - 1):
            changed = bytes([data[at] ^ 1])
            os.pwrite(file.fileno(), changed, at)
            if offset <= at // (4 * MIB) * (4 * MIB):
                with pytest.raises(Broken, match="changed while it was sent"):
                    read_part(file.fileno(), source, part)
            os.pwrite(file.fileno(), data[at : at + 1], at)


def test_a_part_that_does_not_fit_in_memory_is_compared_too(tmp_path: Path) -> None:
    data = os.urandom(12 * MIB)
    source = upload_of(tmp_path / "source", data).source
    memory = Memory(16 * MIB)
    with open(source.path, "r+b") as file:
        with held_body(memory, file.fileno(), source, Part(1, 0, len(data))) as body:
            assert isinstance(body.data, PartFile)
        os.pwrite(file.fileno(), bytes([data[0] ^ 1]), 0)
        with (
            pytest.raises(Broken, match="changed while it was sent"),
            held_body(memory, file.fileno(), source, Part(1, 0, len(data))),
        ):
            pass
