"""A change of a large file on S3: what is copied inside the store, and what is sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.faultproxy import FaultProxy
from rig.remembered_parts import RememberedParts
from rig.seaweedfs import Bucket
from tiercache.checksum import block_checksums
from tiercache.errors import Busy, Changed
from tiercache.model import BaseVersion
from tiercache.origins import Condition, Limits, Origin, Source, Upload, open_origin

MIB = 1024 * 1024
PART = 8 * MIB


@pytest.fixture
def origin(s3_bucket: Bucket, s3_proxy: FaultProxy) -> Iterator[Origin]:
    limits = Limits(part_size_bytes=PART, single_put_bytes=PART, part_concurrency=2)
    made, _ = open_origin(s3_bucket.url, options=s3_proxy.options(), limits=limits)
    yield made
    made.close()


class Change:
    """An object of three parts and a bit, and a local file that was made from it."""

    def __init__(self, bucket: Bucket, path: Path) -> None:
        self.path = path
        self.data = bytearray(os.urandom(3 * PART + 5))
        self.base = BaseVersion(bucket.put("key", bytes(self.data)), len(self.data), block_checksums(self.data))
        self.memory = RememberedParts()

    def upload(self) -> Upload:
        self.path.write_bytes(self.data)
        source = Source(str(self.path), len(self.data), block_checksums(self.data))
        condition = Condition(etag=self.base.etag)
        return Upload(source, None, condition, "mine", base=self.base, resume=self.memory)


@pytest.fixture
def change(s3_bucket: Bucket, tmp_path: Path) -> Change:
    return Change(s3_bucket, tmp_path / "source")


def sent(proxy: FaultProxy) -> tuple[int, int]:
    return proxy.count("UploadPartCopy"), proxy.count("UploadPart")


def test_an_append_sends_the_last_part(origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, change: Change) -> None:
    change.data += b"more"
    written = origin.write(b"key", change.upload())
    assert sent(s3_proxy) == (3, 1)
    assert s3_bucket.get("key") == change.data
    assert written.upload_id == "mine"


@pytest.mark.parametrize("at", [0, PART - 1, PART, 3 * PART + 4])
def test_a_byte_in_the_middle_sends_its_part(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, change: Change, at: int
) -> None:
    change.data[at] ^= 1
    origin.write(b"key", change.upload())
    assert sent(s3_proxy) == (3, 1)
    assert s3_bucket.get("key") == change.data


@pytest.mark.parametrize(("size_bytes", "expected"), [(2 * PART, (2, 0)), (2 * PART - 1, (1, 1)), (PART + 1, (1, 1))])
def test_what_is_cut_off_is_not_copied(
    origin: Origin,
    s3_bucket: Bucket,
    s3_proxy: FaultProxy,
    change: Change,
    size_bytes: int,
    expected: tuple[int, int],
) -> None:
    del change.data[size_bytes:]
    origin.write(b"key", change.upload())
    assert sent(s3_proxy) == expected
    assert s3_bucket.get("key") == change.data


def test_nothing_is_copied_from_another_version(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, change: Change
) -> None:
    change.data += b"more"
    s3_bucket.put("key", b"theirs" * MIB * 5)
    with pytest.raises(Changed):
        origin.write(b"key", change.upload())
    assert s3_bucket.get("key") == b"theirs" * MIB * 5
    assert s3_proxy.count("UploadPart") <= 1  # no more than was under way: the rest would be sent in vain
    assert s3_bucket.unfinished_uploads() == []


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (400, "InvalidRequest"), (404, "NoSuchKey")])
def test_a_store_that_copies_no_parts_gets_all_of_them(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, change: Change, status: int, code: str
) -> None:
    change.data += b"more"
    s3_proxy.answer(status, code, operation="UploadPartCopy")
    origin.write(b"key", change.upload())
    assert s3_proxy.count("UploadPart") == 4
    assert s3_proxy.count("UploadPartCopy") <= 2  # as many as were under way
    assert s3_bucket.get("key") == change.data


def test_copied_parts_are_not_copied_again(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, change: Change
) -> None:
    change.data += b"more"
    upload = change.upload()
    s3_proxy.answer(500, operation="UploadPart", times=1)
    with pytest.raises(Busy):
        origin.write(b"key", upload)
    copied = s3_proxy.count("UploadPartCopy")
    origin.write(b"key", upload)
    assert sent(s3_proxy) == (3, 2)
    assert copied
    assert s3_bucket.get("key") == change.data
