"""Objects too large for one request: uploads and copies in parallel parts, in bounded memory."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tiercache.errors import Absent, Broken, Busy, Changed, Denied, TierCacheError
from tiercache.memory import Memory, Purpose
from tiercache.model import BLOCK_SIZE_BYTES, BaseVersion, Key, PartedUpload
from tiercache.origins import etags
from tiercache.origins.base import Condition, Repeating, Suspended, Upload
from tiercache.origins.fair_pool import FairPool
from tiercache.origins.http_status import UploadGone
from tiercache.origins.limits import Limits, Part, plan_parts
from tiercache.origins.local_file import held_body
from tiercache.origins.obstore_calls import Found, text_of
from tiercache.origins.s3.control import Control, conditions
from tiercache.origins.s3.proof import md5_of_parts, tells_md5
from tiercache.origins.s3.sending import Listed, Sending

_log = logging.getLogger(__name__)

_RESUMABLE = (Busy, Denied, Suspended)
"""After these, waiting or other credentials may help: what the store has of a file is worth keeping."""


class Completed(NamedTuple):
    """The store has the object."""

    etag: str
    expected: str
    """What the etag is if it tells of the bytes; ``""`` if the parts' etags did not."""


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

    def upload(self, key: Key, upload: Upload, headers: Mapping[str, Any]) -> Completed:
        """Upload a local file. What stays behind on a failure is what ``Origin.write`` says.
        UploadGone if the store does not know the upload any more: it may have been completed."""
        sending = self._taken_up(key, upload) or self._begun(key, upload, headers)
        fd = os.open(upload.source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # All have ended on an error too: an abort overtaken by a part would leave that part behind.
            sent = self._uploads.map(lambda part: self._send(sending, fd, part), sending.parts)
            etag = upload.repeating(lambda: self._complete(key, sending.id, sent, upload.condition))
        except BaseException as error:
            if upload.resume is not None and isinstance(error, _RESUMABLE) and not isinstance(error, UploadGone):
                sending.tell()
            else:
                self._give_up(sending)
            raise
        finally:
            os.close(fd)
        if upload.resume is not None:
            upload.resume.ended()
        return Completed(etag, md5_of_parts(sending.md5s(sent)) if sending.etags_are_md5s else "")

    def begin_stream(self, key: Key, upload: Upload, headers: Mapping[str, Any]) -> Sending:
        """Begin an upload whose end is not known."""
        return Sending(key, upload, PartedUpload(upload.repeating(lambda: self._begin(key, headers)), 0), [], {})

    def send_parts(self, sending: Sending, parts: Sequence[Part]) -> None:
        """Send further parts of it; those that were confirmed are left out."""
        fd = os.open(sending.upload.source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            missing = [part for part in parts if not sending.etag_of(part.number)]
            self._uploads.map(lambda part: self._send(sending, fd, part), missing)
        finally:
            os.close(fd)

    def end_stream(self, sending: Sending, count: int, condition: Condition) -> Completed:
        """Complete it of its first ``count`` parts."""
        sent = [sending.etag_of(number) for number in range(1, count + 1)]
        assert all(sent), "a part is missing"
        etag = sending.upload.repeating(lambda: self._complete(sending.key, sending.id, sent, condition))
        return Completed(etag, md5_of_parts(sending.md5s(sent)) if sending.etags_are_md5s else "")

    def _taken_up(self, key: Key, upload: Upload) -> Sending | None:
        """What an earlier write has begun, with the parts that the store has of it."""
        parted = upload.resume.parted if upload.resume is not None else None
        if parted is None:
            return None
        parts = plan_parts(
            upload.source.size_bytes,
            self._limits,
            part_size_bytes=parted.part_bytes,
            multiple_of=BLOCK_SIZE_BYTES,
        )
        try:
            listed = upload.repeating(lambda: self._listed(key, parted.id))
        except (UploadGone, Absent):  # a rule of the bucket may remove what lies about
            return None
        return Sending(key, upload, parted, parts, listed)

    def _begun(self, key: Key, upload: Upload, headers: Mapping[str, Any]) -> Sending:
        limits = self._limits.within(self._memory.piece_bytes(Purpose.UPLOAD))
        parts = plan_parts(upload.source.size_bytes, limits, multiple_of=BLOCK_SIZE_BYTES)
        parted = PartedUpload(upload.repeating(lambda: self._begin(key, headers)), parts[0].length)
        sending = Sending(key, upload, parted, parts, {})
        if upload.resume is not None:
            try:
                upload.resume.begun(parted)
            except BaseException:
                self._give_up(sending)
                raise
        return sending

    def _send(self, sending: Sending, fd: int, part: Part) -> str:
        etag = sending.known(part) or sending.upload.repeating(lambda: self._send_once(sending, fd, part))
        sending.confirm(part, etag)
        return etag

    def _send_once(self, sending: Sending, fd: int, part: Part) -> str:
        sending.check()
        if (base := sending.unchanged_in(part)) is not None and (etag := self._copied(sending, part, base)):
            return etag
        with held_body(self._memory, fd, sending.upload.source, part) as body:
            if sending.has(part, body.md5):
                return body.md5.hex()
            sending.upload.pace(part.length)
            answer = self._control.call(
                "upload_part",
                sending.key,
                Key=text_of(sending.key),
                UploadId=sending.id,
                PartNumber=part.number,
                Body=body.data,
                ContentMD5=base64.b64encode(body.md5).decode(),
            )
        sending.was_sent(part, body.md5, tells_md5(answer))
        return etags.plain(answer["ETag"])

    def _copied(self, sending: Sending, part: Part, base: BaseVersion) -> str:
        """A part that the store has in the version that the file was made from; ``""`` if it does not copy it."""
        try:
            answer = self._copy_part(sending.key, sending.key, sending.id, part, base.etag)
        except (Busy, Denied):
            raise
        except TierCacheError as error:
            if isinstance(error, Changed) and sending.upload.condition.etag == base.etag:
                raise  # what the completion would meet, after all that is to be sent
            # The store may not do that, or the version be gone that need not be there.
            _log.info("unchanged parts are sent: %s", error)
            sending.send_all()
            return ""
        return etags.plain(answer["CopyPartResult"]["ETag"])

    def _copy_part(self, source: Key, target: Key, upload: str, part: Part, etag: str) -> dict[str, Any]:
        match = etags.header(etag)
        return self._control.call(
            "upload_part_copy",
            source,
            Key=text_of(target),
            UploadId=upload,
            PartNumber=part.number,
            CopySource={"Bucket": self._control.bucket, "Key": text_of(source)},
            CopySourceRange=f"bytes={part.offset}-{part.offset + part.length - 1}",
            **({"CopySourceIfMatch": match} if match is not None else {}),
        )

    def copy(self, source: Key, target: Key, found: Found, headers: Mapping[str, Any], repeating: Repeating) -> str:
        """Copy an object over the limit of a single copy, in the version that was found; returns the etag."""
        parts = plan_parts(found.size_bytes, self._limits, part_size_bytes=self._limits.single_copy_bytes)
        upload = repeating(lambda: self._begin(target, headers))

        def send(part: Part) -> str:
            answer = repeating(lambda: self._copy_part(source, target, upload, part, found.etag))
            return etags.plain(answer["CopyPartResult"]["ETag"])

        try:
            sent = self._copies.map(send, parts)
            return self._complete(target, upload, sent, Condition())
        except BaseException:
            self._abort_quietly(target, upload)
            raise

    def _begin(self, key: Key, headers: Mapping[str, Any]) -> str:
        answer = self._control.call(
            "create_multipart_upload", key, Key=text_of(key), **headers, **self._control.write_arguments
        )
        return str(answer["UploadId"])

    def _complete(self, key: Key, upload: str, sent: Sequence[str], condition: Condition) -> str:
        """``sent``: the etags of all parts."""
        numbered = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in enumerate(sent, 1)]
        answer = self._control.call(
            "complete_multipart_upload",
            key,
            Key=text_of(key),
            UploadId=upload,
            MultipartUpload={"Parts": numbered},
            **conditions(condition),
        )
        etag = etags.plain(answer.get("ETag"))
        if not etag:
            raise Broken(f"{self._control.name(key)}: the upload was completed without an etag")
        return etag

    def _listed(self, key: Key, upload: str) -> dict[int, Listed]:
        """The parts that the store has, by number."""
        found: dict[int, Listed] = {}
        marker: dict[str, Any] = {}
        while True:
            answer = self._control.call("list_parts", key, Key=text_of(key), UploadId=upload, **marker)
            for part in answer.get("Parts", ()):
                found[int(part["PartNumber"])] = Listed(etags.plain(part["ETag"]), int(part["Size"]))
            if not answer.get("IsTruncated"):
                return found
            marker = {"PartNumberMarker": int(answer["NextPartNumberMarker"])}

    def abort(self, key: Key, upload: str) -> None:
        """Give up one upload. Nothing happens if the store does not know it (any more)."""
        with contextlib.suppress(UploadGone, Absent):
            self._control.call("abort_multipart_upload", key, Key=text_of(key), UploadId=upload)

    def _give_up(self, sending: Sending) -> None:
        """It stays remembered if it cannot be aborted now."""
        if self._abort_quietly(sending.key, sending.id) and sending.upload.resume is not None:
            sending.upload.resume.ended()

    def _abort_quietly(self, key: Key, upload: str) -> bool:
        """A failure is only logged: what led here matters more."""
        try:
            self.abort(key, upload)
        except TierCacheError as error:
            _log.warning("an unfinished upload stays in the bucket: %s", error)
            return False
        return True
