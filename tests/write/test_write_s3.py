"""The write path over a real S3 server: parts, cancellation, conflicts, and a real kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rig.faultproxy import FaultProxy, Forward
from rig.s3_requests import Answer, Request
from rig.seaweedfs import Bucket
from rig.writing_desk import Desk, in_trio
from tiercache.config import UploadConfig
from tiercache.errors import Conflict
from tiercache.journal import ConditionKind
from tiercache.model import StagedState
from tiercache.origins.base import Origin
from tiercache.origins.registry import open_origin

MIB = 1024 * 1024


def s3_origin(bucket: Bucket) -> Origin:
    origin, _ = open_origin(bucket.url, options=bucket.server.options(), upload=UploadConfig(part_size=5 * MIB))
    return origin


def desk_on(bucket: Bucket, root: Path, **options: Any) -> Desk:
    return Desk(root, origin=s3_origin(bucket), prefix=b"", **options)


def everything_in(bucket: Bucket) -> dict[str, bytes]:
    names = bucket.keys()
    return {name: bucket.get(name) for name in names}


@pytest.fixture
def s3_desk(s3_bucket: Bucket, tmp_path: Path) -> Iterator[Desk]:
    desk = desk_on(s3_bucket, tmp_path)
    yield desk
    desk.origin.release.set()
    desk.close()


@in_trio
async def test_small_and_multipart_files_arrive_byte_exact(s3_desk: Desk, s3_bucket: Bucket) -> None:
    contents = {"empty": b"", "small": b"s", "parts": os.urandom(12 * MIB + 1), "exact": os.urandom(10 * MIB)}
    async with s3_desk.running():
        for name, data in contents.items():
            await s3_desk.save(name, data)
        result = await s3_desk.write_back.drain(60)
    assert (result.left, result.errors) == ([], {})
    assert everything_in(s3_bucket) == contents
    assert sorted(s3_desk.shelf.data()) == sorted(contents.values())


@in_trio
async def test_a_cancelled_multipart_upload_leaves_neither_object_nor_parts(s3_desk: Desk, s3_bucket: Bucket) -> None:
    async with s3_desk.running():
        staged_id = await s3_desk.save("checkpoint", os.urandom(32 * MIB))
        await s3_desk.reaches(staged_id, StagedState.UPLOADING)
        await s3_desk.write_back.cancel(staged_id)
        await s3_desk.write_back.drain(60)
    assert s3_bucket.keys() == []
    assert s3_bucket.unfinished_uploads() == []


@in_trio
async def test_if_match_guards_the_object_of_others(s3_desk: Desk, s3_bucket: Bucket) -> None:
    s3_bucket.put("a", b"base")
    base_etag = s3_desk.origin.stat(b"a").etag
    async with s3_desk.running():
        first = await s3_desk.save("a", b"edited", condition=ConditionKind.IF_MATCH, base_etag=base_etag)
        await s3_desk.write_back.wait(first)
        assert s3_bucket.get("a") == b"edited"
        s3_bucket.put("a", b"foreign")
        [(_, stat)] = s3_desk.commits
        second = await s3_desk.save("a", b"mine", condition=ConditionKind.IF_MATCH, base_etag=stat.etag)
        with pytest.raises(Conflict):
            await s3_desk.write_back.wait(second)
    assert s3_bucket.get("a") == b"foreign"
    assert s3_desk.staged_bytes(second) == b"mine"


WRITER = """
import sys, os
import trio
from pathlib import Path
from rig.writing_desk import Desk

async def main():
    desk = Desk(Path(sys.argv[1]), prefix=b"")
    desk.origin.hold_writes = True
    async with desk.running():
        for number in range(50):
            await desk.save(f"f{number}", b"%03d" % number * 1000)
        print("saved", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def save_fifty_and_die(root: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        process.send_signal(signal.SIGKILL)


@in_trio
async def test_fifty_saved_files_survive_kill_minus_nine(s3_bucket: Bucket, tmp_path: Path) -> None:
    save_fifty_and_die(tmp_path)
    desk = desk_on(s3_bucket, tmp_path)
    ids = sorted(int(name) for name in desk.staged_names())
    for staged_id in ids[:3]:
        desk.shrink(staged_id, 100)
    report = await desk.write_back.recover()
    assert (len(report.queued), len(report.lost)) == (47, 3)
    async with desk.running():
        result = await desk.write_back.drain(60)
    assert sorted(result.left) == ids[:3]
    assert everything_in(s3_bucket) == {f"f{number}": b"%03d" % number * 1000 for number in range(3, 50)}
    desk.close()


@pytest.mark.parametrize("size_bytes", [1000, 12 * MIB])
@in_trio
async def test_what_a_store_spoiled_is_replaced_by_the_next_try(
    s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path, size_bytes: int
) -> None:
    etag = s3_bucket.put("a", b"base")
    spoilt = []

    def spoil(request: Request, forward: Forward) -> Answer:
        answer = forward()
        found = s3_bucket.s3.get_object(Bucket=request.bucket, Key="a")
        body = b"x" + found["Body"].read()[1:]
        spoilt.append(s3_bucket.put("a", body, Metadata=found["Metadata"]))
        if request.operation == "PutObject":
            return answer.with_headers(etag=f'"{spoilt[0]}"')
        return answer

    origin, _ = open_origin(s3_bucket.url, options=s3_proxy.options(), upload=UploadConfig(part_size=5 * MIB))
    desk = Desk(tmp_path, origin=origin, prefix=b"")
    operation = "PutObject" if size_bytes < MIB else "CompleteMultipartUpload"
    s3_proxy.add(spoil, operation=operation, times=1)
    if operation != "PutObject":  # a wrong etag is what makes it look
        s3_proxy.add(lambda _, forward: _with_another_etag(forward()), operation=operation, times=1)
    data = os.urandom(size_bytes)
    async with desk.running():
        staged_id = await desk.save("a", data, condition=ConditionKind.IF_MATCH, base_etag=etag)
        await desk.write_back.wait(staged_id)
    assert len(spoilt) == 1
    assert s3_bucket.get("a") == data
    desk.close()


def _with_another_etag(answer: Answer) -> Answer:
    start, end = answer.body.index(b"<ETag>"), answer.body.index(b"</ETag>")
    return answer._replace(body=answer.body[: start + 6] + b"0" * 32 + b"-2" + answer.body[end:])
