"""An upload in parts that meets trouble: what is sent again, what is kept, and what is left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.faultproxy import FaultProxy
from rig.remembered_parts import RememberedParts
from rig.s3_limits import ScaledLimits, ScaledStore
from rig.seaweedfs import Bucket
from tiercache.errors import Broken, Busy, Changed, Denied
from tiercache.model import Attributes, PartedUpload
from tiercache.origins import (
    ALWAYS,
    Condition,
    Limits,
    Origin,
    RetryingOrigin,
    RetryPolicy,
    Source,
    Upload,
    open_origin,
)
from tiercache.origins.base import Suspended

KIB = 1024
STORE = ScaledLimits(max_parts=10, min_part_bytes=5 * KIB, single_put_bytes=50 * KIB, single_copy_bytes=50 * KIB)
LIMITS = Limits(
    part_size_bytes=5 * KIB,
    single_put_bytes=5 * KIB,
    max_parts=10,
    min_part_bytes=5 * KIB,
    max_part_bytes=50 * KIB,
    single_copy_bytes=50 * KIB,
    part_concurrency=1,
)
PARTS = 8
QUICK = RetryPolicy(retries=3, base_s=0.001, cap_s=0.002, deadline_s=20.0)


@pytest.fixture
def store(s3_proxy: FaultProxy) -> ScaledStore:
    return s3_proxy.limit(STORE)


@pytest.fixture
def origin(s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore) -> Iterator[Origin]:
    made, _ = open_origin(s3_bucket.url, options=s3_proxy.options(), limits=LIMITS)
    yield RetryingOrigin(made, QUICK)
    made.close()


class File:
    """What is to go up."""

    def __init__(self, path: Path) -> None:
        self.data = os.urandom(PARTS * 5 * KIB)
        self.path = path
        path.write_bytes(self.data)
        self.memory = RememberedParts()

    def upload(self, *, condition: Condition = ALWAYS) -> Upload:
        source = Source(str(self.path), len(self.data))
        return Upload(source, condition=condition, upload_id="mine", resume=self.memory)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "source")


def fail_after(s3_proxy: FaultProxy, parts: int, status: int = 500) -> None:
    s3_proxy.script([200] * parts + [status] * 100, operation="UploadPart")


def heal(s3_proxy: FaultProxy, store: ScaledStore) -> None:
    s3_proxy.clear()
    s3_proxy.add(store.act)
    s3_proxy.forget()


@pytest.mark.parametrize("number", range(PARTS))
def test_a_part_that_fails_some_times_is_the_only_one_that_is_sent_again(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, file: File, number: int
) -> None:
    s3_proxy.script([200] * number + [500, 503, 429], operation="UploadPart")
    origin.write(b"key", file.upload())
    assert s3_bucket.get("key") == file.data
    assert s3_proxy.count("UploadPart") == PARTS + 3
    assert file.memory.parted is None


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "CompleteMultipartUpload"])
def test_the_other_requests_are_made_again_too(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, file: File, operation: str
) -> None:
    s3_proxy.script([500, 503], operation=operation)
    origin.write(b"key", file.upload())
    assert s3_bucket.get("key") == file.data
    assert s3_proxy.count("UploadPart") == PARTS
    assert store.unfinished == []


def test_the_tries_of_a_part_are_not_multiplied_by_those_of_the_file(
    origin: Origin, s3_proxy: FaultProxy, file: File
) -> None:
    s3_proxy.answer(500, operation="UploadPart")
    with pytest.raises(Busy):
        origin.write(b"key", file.upload())
    assert s3_proxy.count("UploadPart") == 1 + QUICK.retries


@pytest.mark.parametrize("status", [500, 403])
@pytest.mark.parametrize("sent", [0, 1, 5, PARTS - 1])
def test_a_later_try_sends_only_the_rest(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, file: File, sent: int, status: int
) -> None:
    fail_after(s3_proxy, sent, status)
    with pytest.raises((Busy, Denied)):
        origin.write(b"key", file.upload())
    assert file.memory.parted is not None
    assert sorted(file.memory.parted.etags) == list(range(1, sent + 1))
    heal(s3_proxy, store)
    origin.write(b"key", file.upload())
    assert s3_proxy.count("UploadPart") == PARTS - sent
    assert s3_bucket.get("key") == file.data
    assert (store.unfinished, file.memory.parted) == ([], None)


def test_parts_that_nobody_remembers_are_recognised_by_their_bytes(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, file: File
) -> None:
    fail_after(s3_proxy, 5)
    with pytest.raises(Busy):
        origin.write(b"key", file.upload())
    assert file.memory.parted is not None
    file.memory.parted = file.memory.parted._replace(etags={})  # as if killed before they were written down
    heal(s3_proxy, store)
    origin.write(b"key", file.upload())
    assert s3_proxy.count("UploadPart") == PARTS - 5
    assert s3_bucket.get("key") == file.data


def test_a_part_that_is_not_as_it_was_confirmed_is_sent_again(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, file: File
) -> None:
    fail_after(s3_proxy, 5)
    with pytest.raises(Busy):
        origin.write(b"key", file.upload())
    store.damage_part(2)
    heal(s3_proxy, store)
    origin.write(b"key", file.upload())
    assert s3_proxy.count("UploadPart") == PARTS - 4
    assert s3_bucket.get("key") == file.data


def test_an_upload_that_the_store_has_dropped_is_begun_anew(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, file: File
) -> None:
    fail_after(s3_proxy, 5)
    with pytest.raises(Busy):
        origin.write(b"key", file.upload())
    store.forget()
    heal(s3_proxy, store)
    origin.write(b"key", file.upload())
    assert s3_proxy.count("UploadPart") == PARTS
    assert s3_bucket.get("key") == file.data


def test_an_upload_that_is_aborted_from_elsewhere_while_it_is_sent_is_begun_anew(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, file: File
) -> None:
    s3_proxy.script([200] * 3, operation="UploadPart")
    calls = iter(range(100))
    s3_proxy.before(lambda: store.forget() if next(calls) == 3 else None, operation="UploadPart")
    origin.write(b"key", file.upload())
    assert s3_bucket.get("key") == file.data
    assert s3_proxy.count("CreateMultipartUpload") == 2


def test_a_suspended_upload_keeps_its_parts_and_a_cancelled_one_leaves_none(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, file: File
) -> None:
    class Cancelled(Exception):
        pass

    def ending(error: type[Exception]) -> Upload:
        sent: list[int] = []

        def progress(further_bytes: int) -> None:
            sent.append(further_bytes)
            if sum(sent) == 15 * KIB:
                raise error

        return file.upload()._replace(progress=progress)

    with pytest.raises(Suspended):
        origin.write(b"key", ending(Suspended))
    assert file.memory.parted is not None
    assert len(file.memory.parted.etags) == 3
    with pytest.raises(Cancelled):
        origin.write(b"key", ending(Cancelled))
    assert (store.unfinished, file.memory.parted) == ([], None)


def test_a_condition_that_fails_ends_the_upload(
    origin: Origin, s3_bucket: Bucket, store: ScaledStore, file: File
) -> None:
    s3_bucket.put("key", b"theirs")
    with pytest.raises(Changed):
        origin.write(b"key", file.upload(condition=Condition(absent=True)))
    assert (store.unfinished, file.memory.parted) == ([], None)
    assert s3_bucket.get("key") == b"theirs"


def test_an_upload_that_could_not_be_aborted_stays_remembered(
    origin: Origin, s3_proxy: FaultProxy, store: ScaledStore, file: File
) -> None:
    s3_proxy.answer(400, "InvalidPart", operation="CompleteMultipartUpload")
    s3_proxy.answer(500, operation="AbortMultipartUpload")
    with pytest.raises(Broken):
        origin.write(b"key", file.upload())
    assert store.unfinished == [b"key"]
    assert file.memory.parted is not None


def test_an_upload_whose_begin_cannot_be_remembered_leaves_nothing(
    origin: Origin, store: ScaledStore, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(parted: PartedUpload) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(file.memory, "begun", refuse)
    with pytest.raises(OSError, match="no space"):
        origin.write(b"key", file.upload())
    assert store.unfinished == []


@pytest.mark.parametrize("kind", ["always", "absent", "match"])
def test_a_lost_answer_to_the_completion_is_success(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, file: File, kind: str
) -> None:
    condition = Condition(absent=True) if kind == "absent" else ALWAYS
    if kind == "match":
        condition = Condition(etag=s3_bucket.put("key", b"base"))
    s3_proxy.lose_answer(operation="CompleteMultipartUpload", times=1)
    written = origin.write(b"key", file.upload(condition=condition))
    assert written.size_bytes == len(file.data)
    assert s3_bucket.get("key") == file.data
    assert s3_proxy.count("CreateMultipartUpload") == 1


@pytest.mark.parametrize("change", ["copy", "set attributes"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_part_of_a_copy_that_fails_some_times_is_the_only_one_that_is_copied_again(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore, number: int, change: str
) -> None:
    data = os.urandom(3 * 50 * KIB)
    s3_bucket.put("key", data)
    s3_proxy.script([200] * number + [500, 503], operation="UploadPartCopy")
    if change == "copy":
        origin.copy(b"key", b"target")
        assert s3_bucket.get("target") == data
    else:
        origin.set_attributes(b"key", Attributes(0o600, 1, 2, 3))
    assert s3_bucket.get("key") == data
    assert s3_proxy.count("UploadPartCopy") == 3 + 2
    assert store.unfinished == []


def test_a_part_of_a_copy_that_fails_for_good_leaves_nothing(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore
) -> None:
    s3_bucket.put("key", os.urandom(3 * 50 * KIB))
    s3_proxy.answer(500, operation="UploadPartCopy")
    with pytest.raises(Busy) as told:
        origin.copy(b"key", b"target")
    assert type(told.value) is Busy
    assert s3_proxy.count("UploadPartCopy") == 1 + QUICK.retries
    assert store.unfinished == []
    assert s3_bucket.keys() == ["key"]
