"""Large objects against a store whose limits are scaled down: 10 parts, 5 KiB, 50 KiB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rig.faultproxy import FaultProxy
from rig.remembered_parts import RememberedParts
from rig.s3_limits import ScaledLimits, ScaledStore
from rig.seaweedfs import Bucket
from tiercache.errors import Busy, Changed, InvalidArgument
from tiercache.model import Attributes
from tiercache.origins import ALWAYS, Condition, Limits, Origin, Source, Upload, open_origin
from tiercache.origins.base import Resume
from tiercache.origins.limits import Part, plan_parts

KIB = 1024
STORE = ScaledLimits(max_parts=10, min_part_bytes=5 * KIB, single_put_bytes=50 * KIB, single_copy_bytes=50 * KIB)
LIMITS = Limits(
    part_size_bytes=5 * KIB,
    single_put_bytes=5 * KIB,
    max_parts=10,
    min_part_bytes=5 * KIB,
    max_part_bytes=50 * KIB,
    single_copy_bytes=50 * KIB,
    part_concurrency=2,
    buffer_bytes=10 * KIB,
)
SIZES = [0, 1, 5 * KIB - 1, 5 * KIB, 5 * KIB + 1, 10 * KIB, 40 * KIB, 50 * KIB, 50 * KIB + 1, 300 * KIB, 500 * KIB]


@pytest.fixture
def store(s3_proxy: FaultProxy) -> ScaledStore:
    return s3_proxy.limit(STORE)


@pytest.fixture
def origin(s3_bucket: Bucket, s3_proxy: FaultProxy, store: ScaledStore) -> Iterator[Origin]:
    made, _ = open_origin(s3_bucket.url, options=s3_proxy.options(), limits=LIMITS)
    yield made
    made.close()


def write(
    origin: Origin, directory: Path, data: bytes, *, condition: Condition = ALWAYS, resume: Resume | None = None
) -> None:
    path = directory / "source"
    path.write_bytes(data)
    source = Source(str(path), len(data))
    origin.write(b"key", Upload(source, condition=condition, upload_id="mine", resume=resume))


def test_every_size_is_cut_within_the_limits_and_arrives(
    origin: Origin, store: ScaledStore, s3_bucket: Bucket, tmp_path: Path
) -> None:
    for size_bytes in SIZES:
        data = os.urandom(size_bytes)
        write(origin, tmp_path, data)
        assert s3_bucket.get("key") == data, size_bytes
        assert origin.stat(b"key").upload_id == "mine"
    assert store.unfinished == []


def test_a_copy_over_the_limit_is_made_of_parts_with_all_metadata(
    origin: Origin, store: ScaledStore, s3_bucket: Bucket
) -> None:
    for size_bytes in (50 * KIB, 50 * KIB + 1, 100 * KIB, 499 * KIB):
        data = os.urandom(size_bytes)
        s3_bucket.put("from", data, Metadata={"mode": "33188", "colour": "blue"})
        copied = origin.copy(b"from", b"to")
        assert s3_bucket.get("to") == data, size_bytes
        assert copied.attributes is not None
        assert s3_bucket.head("to")["Metadata"] == {"mode": "33188", "colour": "blue"}
    assert store.unfinished == []


def test_attributes_of_an_object_over_the_copy_limit_can_change(origin: Origin, s3_bucket: Bucket) -> None:
    data = os.urandom(120 * KIB)
    s3_bucket.put("key", data, Metadata={"colour": "blue"})
    changed = origin.set_attributes(b"key", Attributes(0o600, 1, 2, 3_000_000_004))
    assert changed.attributes == Attributes(0o600, 1, 2, 3_000_000_004)
    assert s3_bucket.get("key") == data
    assert s3_bucket.head("key")["Metadata"]["colour"] == "blue"


def test_conditions_hold_for_multipart(origin: Origin, store: ScaledStore, s3_bucket: Bucket, tmp_path: Path) -> None:
    s3_bucket.put("key", b"theirs")
    for condition in (Condition(absent=True), Condition(etag="another")):
        with pytest.raises(Changed):
            write(origin, tmp_path, os.urandom(20 * KIB), condition=condition)
    assert s3_bucket.get("key") == b"theirs"
    assert store.unfinished == []


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_whichever_part_fails_the_upload_is_aborted(
    origin: Origin, store: ScaledStore, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path, number: int
) -> None:
    s3_bucket.put("key", b"old")
    s3_proxy.script([200] * (number - 1) + [500], operation="UploadPart")
    with pytest.raises(Busy):
        write(origin, tmp_path, os.urandom(20 * KIB))
    assert s3_bucket.get("key") == b"old"
    assert store.unfinished == []


def test_parts_in_flight_stay_within_the_concurrency(origin: Origin, s3_proxy: FaultProxy, tmp_path: Path) -> None:
    s3_proxy.forget()
    write(origin, tmp_path, os.urandom(50 * KIB))
    assert s3_proxy.count("UploadPart") == 10
    assert s3_proxy.most_in_flight <= 2


def test_an_interrupted_upload_is_found_and_aborted(
    origin: Origin, store: ScaledStore, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    s3_proxy.answer(500, operation="UploadPart")
    s3_proxy.answer(500, operation="AbortMultipartUpload")  # as if the engine were killed here
    memory = RememberedParts()
    with pytest.raises(Busy):
        write(origin, tmp_path, os.urandom(20 * KIB), resume=memory)
    assert store.unfinished == [b"key"]
    s3_proxy.clear()
    s3_proxy.add(store.act)
    assert memory.parted is not None
    for _ in range(2):
        origin.abort_uploads(b"key", "mine", memory.parted.id)
        assert store.unfinished == []


def test_the_plan_has_no_empty_part_and_grows_with_the_size() -> None:
    assert plan_parts(0, LIMITS) == [Part(1, 0, 0)]
    assert [part.length for part in plan_parts(10 * KIB, LIMITS)] == [5 * KIB, 5 * KIB]
    assert [part.length for part in plan_parts(10 * KIB + 1, LIMITS)] == [5 * KIB, 5 * KIB, 1]
    assert len(plan_parts(499 * KIB, LIMITS)) <= 10
    whole = Limits()
    five_tib = 5 * 1024**4
    parts = plan_parts(five_tib, whole)
    assert len(parts) <= whole.max_parts
    assert sum(part.length for part in parts) == five_tib
    with pytest.raises(InvalidArgument):
        plan_parts(501 * KIB, LIMITS)


def test_a_copy_does_not_wait_for_the_parts_of_a_large_file(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    s3_bucket.put("from", os.urandom(120 * KIB))
    gate = s3_proxy.pause(operation="UploadPart")
    with ThreadPoolExecutor(1) as caller:
        sending = caller.submit(write, origin, tmp_path, os.urandom(50 * KIB))
        gate.wait_reached()
        assert origin.copy(b"from", b"to").size_bytes == 120 * KIB
        assert not sending.done()
        gate.open()
        sending.result()
