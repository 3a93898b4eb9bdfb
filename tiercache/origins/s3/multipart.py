"""Objects too large for one request: uploads and copies in parallel parts, bounded memory, aborted on failure."""

from __future__ import annotations

import base64
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tiercache.errors import Absent, Broken, TierCacheError, Unsupported
from tiercache.memory import Memory, Purpose
from tiercache.model import Key
from tiercache.origins import etags
from tiercache.origins.base import Condition, Progress, Source
from tiercache.origins.fair_pool import FairPool
from tiercache.origins.limits import Limits, Part, plan_parts
from tiercache.origins.local_file import held_body
from tiercache.origins.obstore_calls import text_of
from tiercache.origins.s3.control import Control, conditions

_log = logging.getLogger(__name__)


class Multipart:
    """Runs parts on a pool that all uploads of the origin share, a part of each in turn: so memory is bounded over all
    of them, and none waits for a large one to end."""

    def __init__(self, control: Control, limits: Limits, memory: Memory) -> None:
        self._control = control
        self._limits = limits
        self._memory = memory
        self._uploads = FairPool(limits.part_concurrency, "tiercache-part")
        # Apart: a copy moves no bytes of ours, and somebody waits for the rename that it is made for.
        self._copies = FairPool(limits.part_concurrency, "tiercache-part-copy")

    def close(self) -> None:
        self._uploads.close()
        self._copies.close()

    def upload(
        self, key: Key, source: Source, headers: Mapping[str, Any], condition: Condition, progress: Progress | None
    ) -> str:
        """Upload a local file; returns the etag. Nothing stays behind on failure."""
        parts = plan_parts(source.size_bytes, self._limits.within(self._memory.piece_bytes(Purpose.UPLOAD)))
        report = _serialized(progress)
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:

            def send(upload: str, part: Part) -> str:
                with held_body(self._memory, fd, source, part) as body:
                    answer = self._control.call(
                        "upload_part",
                        key,
                        Key=text_of(key),
                        UploadId=upload,
                        PartNumber=part.number,
                        Body=body.data,
                        ContentMD5=base64.b64encode(body.md5).decode(),
                    )
                report(part.length)
                return str(answer["ETag"])

            return self._run(key, parts, headers, condition, send, self._uploads)
        finally:
            os.close(fd)

    def copy(self, source: Key, target: Key, size_bytes: int, etag: str, headers: Mapping[str, Any]) -> str:
        """Copy an object over the limit of a single copy; returns the etag."""
        parts = plan_parts(size_bytes, self._limits, part_size_bytes=self._limits.single_copy_bytes)
        match = etags.header(etag)

        def send(upload: str, part: Part) -> str:
            answer = self._control.call(
                "upload_part_copy",
                source,
                Key=text_of(target),
                UploadId=upload,
                PartNumber=part.number,
                CopySource={"Bucket": self._control.bucket, "Key": text_of(source)},
                CopySourceRange=f"bytes={part.offset}-{part.offset + part.length - 1}",
                **({"CopySourceIfMatch": match} if match is not None else {}),
            )
            return str(answer["CopyPartResult"]["ETag"])

        return self._run(target, parts, headers, Condition(), send, self._copies)

    def _run(
        self,
        key: Key,
        parts: list[Part],
        headers: Mapping[str, Any],
        condition: Condition,
        send: Callable[[str, Part], str],
        pool: FairPool,
    ) -> str:
        answer = self._control.call(
            "create_multipart_upload", key, Key=text_of(key), **headers, **self._control.write_arguments
        )
        upload = str(answer["UploadId"])
        try:
            # All have ended on an error too: an abort overtaken by a part would leave that part behind.
            sent = pool.map(lambda part: send(upload, part), parts)
            numbered = [{"PartNumber": part.number, "ETag": etag} for part, etag in zip(parts, sent, strict=True)]
            return self._complete(key, upload, numbered, condition)
        except BaseException:
            self.abort(key, upload)
            raise

    def _complete(self, key: Key, upload: str, sent: list[dict[str, Any]], condition: Condition) -> str:
        answer = self._control.call(
            "complete_multipart_upload",
            key,
            Key=text_of(key),
            UploadId=upload,
            MultipartUpload={"Parts": sent},
            **conditions(condition),
        )
        etag = etags.plain(answer.get("ETag"))
        if not etag:
            raise Broken(f"{self._control.name(key)}: the upload was completed without an etag")
        return etag

    def abort(self, key: Key, upload: str) -> None:
        """Give up one multipart upload. A failure is only logged: what led here matters more."""
        try:
            self._control.call("abort_multipart_upload", key, Key=text_of(key), UploadId=upload)
        except Absent:
            pass
        except TierCacheError as error:
            _log.warning("an unfinished upload stays in the bucket: %s", error)

    def abort_all(self, key: Key) -> None:
        """Give up every unfinished upload of exactly this key."""
        for upload in self._unfinished(key):
            try:
                self._control.call("abort_multipart_upload", key, Key=text_of(key), UploadId=upload)
            except TierCacheError as error:
                if "NoSuchUpload" not in str(error) and not isinstance(error, Absent):
                    raise

    def _unfinished(self, key: Key) -> list[str]:
        found: list[str] = []
        markers: dict[str, str] = {}
        while True:
            try:
                answer = self._control.call("list_multipart_uploads", key, Prefix=text_of(key), **markers)
            except Unsupported:
                return found
            found += [str(each["UploadId"]) for each in answer.get("Uploads", ()) if each["Key"] == text_of(key)]
            if not answer.get("IsTruncated"):
                return found
            markers = {
                "KeyMarker": answer.get("NextKeyMarker", ""),
                "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
            }


def _serialized(progress: Progress | None) -> Progress:
    if progress is None:
        return lambda _: None
    lock = threading.Lock()

    def report(sent_bytes: int) -> None:
        with lock:
            progress(sent_bytes)

    return report
