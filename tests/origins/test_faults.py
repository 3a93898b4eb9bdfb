"""What the S3 origin makes of bad answers: through the fault proxy, at the level of single requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rig.faultproxy import FaultProxy
from rig.seaweedfs import Bucket, S3Server, fresh_bucket
from tiercache.config import FetchConfig
from tiercache.errors import Absent, Broken, Busy, Changed, Denied, TierCacheError, Unsupported
from tiercache.metrics import Metrics
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

MIB = 1024 * 1024
FETCH = FetchConfig(timeout_s=2.0, connect_timeout_s=2.0)
LIMITS = Limits(part_size_bytes=5 * MIB, single_put_bytes=MIB, part_concurrency=2, list_page=10)
QUICK = RetryPolicy(retries=4, base_s=0.001, cap_s=0.002, deadline_s=20.0)


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> Bucket:
    return fresh_bucket(s3_server)


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    made = FaultProxy(s3_server)
    yield made
    made.close()


@pytest.fixture
def s3_bucket(bucket: Bucket) -> Bucket:
    """One bucket for all these tests, emptied: a new one each would take longer than the tests."""
    for key in bucket.keys(""):
        bucket.delete(key)
    return bucket


@pytest.fixture
def s3_proxy(proxy: FaultProxy) -> Iterator[FaultProxy]:
    proxy.forget()
    yield proxy
    proxy.clear()


@pytest.fixture(scope="module", params=["obstore", "s3fs"])
def origin(request: pytest.FixtureRequest, bucket: Bucket, proxy: FaultProxy) -> Iterator[Origin]:
    made, _ = open_origin(bucket.url, client=request.param, options=proxy.options(), fetch=FETCH, limits=LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def s3(bucket: Bucket, proxy: FaultProxy) -> Iterator[Origin]:
    made, _ = open_origin(bucket.url, options=proxy.options(), fetch=FETCH, limits=LIMITS)
    yield made
    made.close()


@pytest.fixture
def retrying(s3: Origin) -> RetryingOrigin:
    return RetryingOrigin(s3, QUICK, Metrics())


def source(directory: Path, data: bytes) -> Source:
    path = directory / "source"
    path.write_bytes(data)
    return Source(str(path), len(data))


CALLS: dict[str, tuple[str, Callable[[Origin, str], object]]] = {
    "stat": ("HeadObject", lambda origin, etag: origin.stat(b"key")),
    "stat of a directory": ("ListObjects", lambda origin, etag: origin.stat(b"dir")),
    "list": ("ListObjects", lambda origin, etag: list(origin.list(b"dir"))),
    "walk": ("ListObjects", lambda origin, etag: list(origin.walk(b"dir"))),
    "read": ("GetObject", lambda origin, etag: origin.read(b"key", 0, 3, etag)),
    "read whole": ("GetObject", lambda origin, etag: origin.read_whole(b"key", 100)),
}

STATUSES: dict[int, type[TierCacheError]] = {
    401: Denied,
    403: Denied,
    408: Busy,
    429: Busy,
    500: Busy,
    502: Busy,
    503: Busy,
    504: Busy,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_failed_answer_is_told_as_what_it_is_and_never_as_absence(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, call: str
) -> None:
    etag = s3_bucket.put("key", b"content")
    s3_bucket.put("dir/inside", b"1")
    operation, run = CALLS[call]
    for status, kind in STATUSES.items():
        s3_proxy.answer(status, operation=operation)
        with pytest.raises(TierCacheError) as caught:
            run(origin, etag)
        assert type(caught.value) is kind, (status, caught.value)
        s3_proxy.clear()
    run(origin, etag)  # nothing negative was remembered


@pytest.mark.parametrize("call", CALLS)
def test_a_reset_connection_is_busy(origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, call: str) -> None:
    etag = s3_bucket.put("key", b"content")
    s3_bucket.put("dir/inside", b"1")
    operation, run = CALLS[call]
    s3_proxy.reset(operation=operation)
    with pytest.raises(Busy):
        run(origin, etag)


@pytest.mark.parametrize("call", ["stat", "list", "read"])
def test_silence_is_busy_after_the_timeout(origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, call: str) -> None:
    etag = s3_bucket.put("key", b"content")
    s3_bucket.put("dir/inside", b"1")
    operation, run = CALLS[call]
    gate = s3_proxy.pause(operation=operation)
    with pytest.raises(Busy):
        run(origin, etag)
    gate.open()


def test_an_unreachable_endpoint_is_busy(s3_bucket: Bucket) -> None:
    options = s3_bucket.server.options() | {"endpoint_url": "http://127.0.0.1:1"}
    origin, _ = open_origin(s3_bucket.url, options=options, fetch=FETCH)
    for call in (lambda: origin.stat(b"key"), lambda: origin.read_whole(b"key", 1), lambda: list(origin.list(b""))):
        with pytest.raises(Busy):
            call()


def test_a_missing_bucket_is_told_and_never_an_empty_directory(s3_bucket: Bucket, tmp_path: Path) -> None:
    for client in ("obstore", "s3fs"):
        origin, _ = open_origin("s3://no-such-bucket", client=client, options=s3_bucket.server.options())
        for call in (
            lambda origin=origin: origin.stat(b""),
            lambda origin=origin: list(origin.list(b"")),
            lambda origin=origin: list(origin.walk(b"")),
        ):
            with pytest.raises(Broken, match="bucket does not exist"):
                call()


def test_a_wrong_key_is_denied(s3_bucket: Bucket) -> None:
    s3_bucket.put("key", b"1")
    origin, _ = open_origin(s3_bucket.url, options=s3_bucket.server.options() | {"secret": "wrong"})
    for call in (lambda: origin.stat(b"key"), lambda: list(origin.list(b"")), lambda: origin.read_whole(b"key", 9)):
        with pytest.raises(Denied):
            call()


def test_without_credentials_the_message_says_so(s3_bucket: Bucket) -> None:
    origin, _ = open_origin(s3_bucket.url, options={"endpoint_url": s3_bucket.server.endpoint})
    with pytest.raises(Denied, match="credentials"):
        origin.stat(b"key")


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_body_is_busy_and_its_bytes_are_not_given(
    s3: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, reset: bool
) -> None:
    data = os.urandom(300_000)
    etag = s3_bucket.put("key", data)
    s3_proxy.cut(150_000, reset=reset, operation="GetObject")
    with pytest.raises(Busy):
        s3.read(b"key", 0, len(data), etag)
    with pytest.raises(Busy):
        s3.read_whole(b"key", 1 << 20)


def test_a_body_cut_once_is_fetched_again_with_range_and_if_match(
    retrying: RetryingOrigin, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    data = os.urandom(300_000)
    etag = s3_bucket.put("key", data)
    s3_proxy.cut(150_000, times=1, operation="GetObject")
    assert retrying.read(b"key", 1000, 290_000, etag) == data[1000:291_000]
    assert [(each.range, each.if_match) for each in s3_proxy.log] == [("bytes=1000-290999", f'"{etag}"')] * 2


def test_an_ignored_range_is_broken(s3: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy) -> None:
    etag = s3_bucket.put("key", b"0123456789")
    s3_proxy.ignore_range()
    with pytest.raises(Broken):
        s3.read(b"key", 2, 3, etag)
    with pytest.raises(Broken):
        s3.read(b"key", 0, 3, etag)


@pytest.mark.parametrize("honest", [False, True])
def test_a_short_range_is_broken(s3: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, honest: bool) -> None:
    etag = s3_bucket.put("key", b"0123456789")
    s3_proxy.short_range(2, honest=honest)
    with pytest.raises((Broken, Busy)):
        s3.read(b"key", 2, 6, etag)


def test_an_object_swapped_between_two_reads_is_changed(
    origin: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    etag = s3_bucket.put("key", b"old" * 100)
    s3_proxy.swap(s3_bucket.name, "key", b"new" * 100, at=2)
    assert origin.read(b"key", 0, 3, etag) == b"old"
    with pytest.raises(Changed):
        origin.read(b"key", 3, 3, etag)


def test_a_store_that_ignores_if_match_is_found_out(s3: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy) -> None:
    etag = s3_bucket.put("key", b"0123456789")
    s3_proxy.add(lambda request, forward: forward().with_headers(etag='"another"'), operation="GetObject")
    with pytest.raises(Changed):
        s3.read(b"key", 0, 3, etag)


def test_an_object_replaced_between_look_and_deletion_stays(
    s3: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    etag = s3_bucket.put("key", b"seen")
    s3_proxy.before(lambda: s3_bucket.put("key", b"theirs"), times=1, operation="DeleteObject")
    with pytest.raises(Changed):
        s3.delete(b"key", etag)
    assert s3_bucket.get("key") == b"theirs"


def test_a_store_that_knows_no_conditional_deletion_deletes_all_the_same(
    s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    etags = [s3_bucket.put(name, b"seen") for name in ("a", "b")]
    s3_proxy.answer(501, "NotImplemented", times=1, operation="DeleteObject")
    s3, _ = open_origin(s3_bucket.url, options=s3_proxy.options(), fetch=FETCH, limits=LIMITS)
    for key, etag in zip((b"a", b"b"), etags, strict=True):
        s3.delete(key, etag)
    s3.close()
    assert s3_bucket.keys("") == []
    assert s3_proxy.count("DeleteObject") == 3


def test_gzip_encoded_objects_give_the_stored_bytes(origin: Origin, s3_bucket: Bucket) -> None:
    import gzip

    stored = gzip.compress(b"text " * 1000)
    etag = s3_bucket.put("key.gz", stored, ContentEncoding="gzip", ContentType="text/plain")
    found, body = origin.read_whole(b"key.gz", 1 << 20)
    assert (found.size_bytes, body) == (len(stored), stored)
    assert origin.read(b"key.gz", 0, len(stored), etag) == stored
    assert origin.read(b"key.gz", 5, 10, etag) == stored[5:15]


def test_two_failures_then_success_is_success(
    retrying: RetryingOrigin, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    etag = s3_bucket.put("key", b"content")
    s3_bucket.put("dir/inside", b"1")
    for operation, run in CALLS.values():
        s3_proxy.answer(503, times=2, operation=operation)
        run(retrying, etag)
        s3_proxy.clear()


def test_only_the_failed_page_of_a_listing_is_repeated(
    retrying: RetryingOrigin, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    for number in range(25):
        s3_bucket.put(f"dir/{number:02}", b"1")
    s3_proxy.script([200, 503, 200, 500], operation="ListObjects")
    assert [entry.key for entry in retrying.list(b"dir")] == [b"dir/%02d" % number for number in range(25)]
    assert s3_proxy.count("ListObjects") == 5


def test_a_listing_that_keeps_failing_midway_raises(
    retrying: RetryingOrigin, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    for number in range(25):
        s3_bucket.put(f"dir/{number:02}", b"1")
    s3_proxy.script([200] + [500] * 100, operation="ListObjects")
    with pytest.raises(Busy):
        list(retrying.list(b"dir"))


def upload(origin: Origin, directory: Path, data: bytes, *, condition: Condition = ALWAYS) -> None:
    origin.write(b"key", Upload(source(directory, data), condition=condition, upload_id="mine"))


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])
def test_a_failed_upload_changes_nothing_and_leaves_nothing(
    s3: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path, operation: str
) -> None:
    s3_bucket.put("key", b"old")
    s3_proxy.answer(500, operation=operation)
    with pytest.raises(Busy):
        upload(s3, tmp_path, os.urandom(11 * MIB))
    assert s3_bucket.get("key") == b"old"
    assert s3_bucket.unfinished_uploads() == []


def test_an_error_document_under_200_is_a_failure(
    s3: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    s3_bucket.put("key", b"old")
    s3_proxy.error_document()
    with pytest.raises(Busy):
        upload(s3, tmp_path, os.urandom(11 * MIB))
    assert s3_bucket.get("key") == b"old"
    assert s3_bucket.unfinished_uploads() == []


def test_a_copy_with_an_error_document_under_200_is_a_failure(
    s3: Origin, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    s3_bucket.put("key", b"old")
    s3_proxy.error_document(operation="CopyObject")
    with pytest.raises(Busy):
        s3.copy(b"key", b"other")


def test_parts_that_fail_once_are_sent_again(
    retrying: RetryingOrigin, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    data = os.urandom(11 * MIB)
    s3_proxy.answer(500, times=1, operation="UploadPart")
    upload(retrying, tmp_path, data)
    assert s3_bucket.get("key") == data
    assert s3_bucket.unfinished_uploads() == []


@pytest.mark.parametrize("condition", [Condition(absent=True), Condition(etag="of the base")])
@pytest.mark.parametrize("size_bytes", [100, 6 * MIB])
def test_a_lost_answer_to_a_conditional_write_is_recognised_by_its_upload_id(
    retrying: RetryingOrigin,
    s3_bucket: Bucket,
    s3_proxy: FaultProxy,
    tmp_path: Path,
    condition: Condition,
    size_bytes: int,
) -> None:
    if condition.etag:
        condition = Condition(etag=s3_bucket.put("key", b"base"))
    data = os.urandom(size_bytes)
    s3_proxy.lose_answer(operation="PutObject" if size_bytes < MIB else "CompleteMultipartUpload", times=1)
    upload(retrying, tmp_path, data, condition=condition)
    assert s3_bucket.get("key") == data


def test_anothers_write_in_between_is_still_a_conflict(
    retrying: RetryingOrigin, s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    base = s3_bucket.put("key", b"base")
    s3_proxy.answer(503, times=1, operation="PutObject")
    s3_proxy.before(lambda: s3_bucket.put("key", b"theirs"), times=1, operation="PutObject")
    with pytest.raises(Changed):
        upload(retrying, tmp_path, b"mine", condition=Condition(etag=base))
    assert s3_bucket.get("key") == b"theirs"


def test_a_lost_answer_to_a_delete_is_success(
    retrying: RetryingOrigin, s3_bucket: Bucket, s3_proxy: FaultProxy
) -> None:
    s3_bucket.put("key", b"1")
    s3_proxy.lose_answer(operation="DeleteObject", times=1)
    retrying.delete(b"key")
    assert s3_bucket.keys() == []


def test_expired_credentials_are_read_anew(
    s3_bucket: Bucket, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = s3_bucket.put("key", b"content")
    for name, value in s3_proxy.server.environment().items():
        monkeypatch.setenv(name, value)
    origin, _ = open_origin(s3_bucket.url)
    assert origin.read(b"key", 0, 3, etag) == b"con"
    s3_proxy.expire_credentials(s3_proxy.server.access_key, after=0)
    with pytest.raises(Denied):
        origin.read(b"key", 0, 3, etag)
    second = s3_proxy.server.second
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", second.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", second.secret_key)
    assert origin.read(b"key", 3, 4, etag) == b"tent"
    assert origin.stat(b"key").size_bytes == 7
    assert b"key" in [entry.key for entry in origin.list(b"")]


def test_a_store_without_conditions_says_unsupported(s3: Origin, s3_proxy: FaultProxy, tmp_path: Path) -> None:
    s3_proxy.answer(501, "NotImplemented", operation="PutObject")
    with pytest.raises(Unsupported):
        upload(s3, tmp_path, b"1", condition=Condition(absent=True))


def test_absence_is_what_a_404_says(origin: Origin, s3_proxy: FaultProxy) -> None:
    with pytest.raises(Absent):
        origin.stat(b"nothing")
    with pytest.raises(Absent):
        origin.read_whole(b"nothing", 1)
    with pytest.raises(Absent):
        list(origin.list(b"nothing"))
