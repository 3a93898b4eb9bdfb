"""Files that go up in parts: what a later try and a later run go on with, and what they clean up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from rig.faultproxy import FaultProxy, Forward, Gate
from rig.s3_limits import ScaledLimits, ScaledStore
from rig.s3_requests import Answer, Request
from rig.seaweedfs import Bucket, client
from rig.writing_desk import Desk, crash, in_trio
from tiercache.journal import ConditionKind
from tiercache.model import StagedState
from tiercache.origins import Limits, Origin, RetryingOrigin, RetryPolicy, open_origin

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
SIZE_BYTES = PARTS * 5 * KIB


class Ground:
    """A store with scaled limits behind the proxy, and the desks that write to it."""

    def __init__(self, bucket: Bucket, proxy: FaultProxy, root: Path) -> None:
        self.bucket = bucket
        self.proxy = proxy
        self.root = root
        self.store: ScaledStore = proxy.limit(STORE)

    def origin(self) -> Origin:
        made, _ = open_origin(self.bucket.url, options=self.proxy.options(), limits=LIMITS)
        return RetryingOrigin(made, RetryPolicy(retries=0))

    def desk(self, **options: Any) -> Desk:
        return Desk(self.root, origin=self.origin(), prefix=b"", **options)

    def fail_after(self, parts: int) -> None:
        self.proxy.script([200] * parts + [500] * 100, operation="UploadPart")

    def hold_after(self, parts: int) -> Gate:
        """So many parts are answered, and all others wait."""
        gate = self.proxy.pause(operation="UploadPart", key=b"none")
        passing = iter(range(parts))

        def act(request: Request, forward: Forward) -> Answer:
            if next(passing, None) is None:
                gate.pass_through()
            return forward()

        self.proxy.add(act, operation="UploadPart")
        return gate

    def heal(self) -> None:
        self.proxy.clear()
        self.proxy.add(self.store.act)
        self.proxy.forget()


@pytest.fixture
def parts(s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path) -> Ground:
    return Ground(s3_bucket, s3_proxy, tmp_path)


async def fail_once(ground: Ground, desk: Desk, data: bytes, *, sent: int, **fields: Any) -> int:
    """Save a file, of which so many parts go up before the store fails."""
    ground.fail_after(sent)
    staged_id = await desk.save("a", data, **fields)
    while not desk.record(staged_id).last_error:
        await desk.write_back.changed()
    return staged_id


@in_trio
async def test_a_later_try_sends_the_rest_alone(parts: Ground) -> None:
    data = os.urandom(SIZE_BYTES)
    desk = parts.desk()
    async with desk.running():
        staged_id = await fail_once(parts, desk, data, sent=5)
        assert len(desk.record(staged_id).parted.etags) == 5  # type: ignore[union-attr]
        parts.heal()
        await desk.write_back.wait(staged_id)
    assert parts.bucket.get("a") == data
    assert parts.proxy.count("UploadPart") == PARTS - 5
    assert parts.store.unfinished == []
    desk.close()


@pytest.mark.parametrize("sent", [0, 1, 4, 7])
@in_trio
async def test_after_a_kill_the_next_run_sends_the_rest_alone(parts: Ground, sent: int) -> None:
    data = os.urandom(SIZE_BYTES)
    desk = parts.desk()
    gate = parts.hold_after(sent)
    async with desk.running():
        await desk.save("a", data)
        await trio.to_thread.run_sync(gate.wait_reached)
    crash(desk)
    again = parts.desk()
    await again.write_back.recover()
    parts.heal()
    async with again.running():
        await again.write_back.drain(60)
    assert parts.bucket.get("a") == data
    assert parts.proxy.count("CreateMultipartUpload") == 0
    assert parts.proxy.count("UploadPart", b"a") <= PARTS - sent + 1  # one more: that which the kill met
    assert parts.store.unfinished == []
    again.close()


@in_trio
async def test_a_proper_end_keeps_the_parts_for_the_next_start(parts: Ground) -> None:
    data = os.urandom(SIZE_BYTES)
    desk = parts.desk()
    gate = parts.hold_after(4)
    async with desk.running():
        await desk.save("a", data)
        await trio.to_thread.run_sync(gate.wait_reached)
    again = desk.again(origin=parts.origin(), prefix=b"")
    await again.write_back.recover()
    parts.heal()
    async with again.running():
        await again.write_back.drain(60)
    assert parts.bucket.get("a") == data
    assert parts.proxy.count("CreateMultipartUpload") == 0
    assert parts.store.unfinished == []
    again.close()


@in_trio
async def test_parts_of_an_earlier_state_are_aborted_and_never_mixed_in(parts: Ground) -> None:
    desk = parts.desk()
    async with desk.running():
        staged_id = await fail_once(parts, desk, os.urandom(SIZE_BYTES), sent=5)
        data = os.urandom(SIZE_BYTES)
        assert await desk.write_back.unseal(staged_id)
        desk.staging.open(staged_id).write(0, data)
        parts.heal()
        await desk.write_back.seal(staged_id)
        await desk.write_back.wait(staged_id)
    assert parts.bucket.get("a") == data
    assert parts.proxy.count("UploadPart") == PARTS
    assert parts.store.unfinished == []
    desk.close()


@in_trio
async def test_a_file_that_is_deleted_after_a_failed_try_leaves_no_parts(parts: Ground) -> None:
    desk = parts.desk()
    async with desk.running():
        staged_id = await fail_once(parts, desk, os.urandom(SIZE_BYTES), sent=5)
        parts.heal()
        await desk.write_back.cancel(staged_id)
        await desk.write_back.drain(60)
    assert parts.bucket.keys() == []
    assert parts.store.unfinished == []
    desk.close()


@in_trio
async def test_a_file_that_is_renamed_after_a_failed_try_leaves_no_parts_under_the_old_name(parts: Ground) -> None:
    data = os.urandom(SIZE_BYTES)
    desk = parts.desk()
    async with desk.running():
        staged_id = await fail_once(parts, desk, data, sent=5)
        parts.heal()
        await desk.write_back.rename(staged_id, desk.key("b"))
        await desk.write_back.drain(60)
    assert parts.bucket.keys() == ["b"]
    assert parts.bucket.get("b") == data
    assert parts.store.unfinished == []
    desk.close()


@in_trio
async def test_a_newer_file_of_the_name_aborts_the_parts_of_the_older_one(parts: Ground) -> None:
    data = os.urandom(SIZE_BYTES)
    desk = parts.desk()
    async with desk.running():
        await fail_once(parts, desk, os.urandom(SIZE_BYTES), sent=5)
        parts.heal()
        await desk.save("a", data)
        await desk.write_back.drain(60)
    assert parts.bucket.get("a") == data
    assert parts.store.unfinished == []
    desk.close()


@in_trio
async def test_a_conflict_leaves_no_parts(parts: Ground) -> None:
    parts.bucket.put("a", b"base")
    desk = parts.desk()
    async with desk.running():
        base = desk.etag("a")
        fields = {"condition": ConditionKind.IF_MATCH, "base_etag": base}
        staged_id = await fail_once(parts, desk, os.urandom(SIZE_BYTES), sent=5, **fields)
        parts.bucket.put("a", b"theirs")
        parts.heal()
        await desk.write_back.drain(60)
        assert desk.record(staged_id).state is StagedState.CONFLICT
        assert desk.record(staged_id).parted is None
    assert parts.bucket.get("a") == b"theirs"
    assert parts.store.unfinished == []
    desk.close()


@in_trio
async def test_a_file_that_is_lost_at_a_start_leaves_no_parts(parts: Ground) -> None:
    desk = parts.desk()
    async with desk.running():
        staged_id = await fail_once(parts, desk, os.urandom(SIZE_BYTES), sent=5)
        desk.shrink(staged_id, 100)
    parts.heal()
    again = desk.again(origin=parts.origin(), prefix=b"")
    await again.write_back.recover()
    async with again.running():
        await again.write_back.drain(60)
    assert again.record(staged_id).state is StagedState.LOST
    assert parts.bucket.keys() == []
    assert parts.store.unfinished == []
    again.close()


@in_trio
async def test_parts_that_others_send_to_the_name_are_left_alone(parts: Ground) -> None:
    data = os.urandom(SIZE_BYTES)
    theirs = client(parts.proxy.server)
    name = {"Bucket": parts.bucket.name, "Key": "a"}
    upload = theirs.create_multipart_upload(**name)["UploadId"]
    etag = theirs.upload_part(**name, UploadId=upload, PartNumber=1, Body=b"theirs")["ETag"]
    desk = parts.desk()
    async with desk.running():
        staged_id = await fail_once(parts, desk, data, sent=5)
        parts.heal()
        await desk.write_back.wait(staged_id)
        assert parts.bucket.get("a") == data
        staged_id = await fail_once(parts, desk, data, sent=5)
        parts.heal()
        await desk.write_back.cancel(staged_id)
        await desk.write_back.drain(60)
    assert parts.store.unfinished == [b"a"]
    theirs.complete_multipart_upload(
        **name, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]}
    )
    assert parts.bucket.get("a") == b"theirs"
    desk.close()
