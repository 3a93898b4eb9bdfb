"""An object that goes to S3 in parts while it is written, and is completed when its end is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiercache.errors import Absent, Broken, Busy, Changed
from tiercache.model import ObjectStat
from tiercache.origins.base import Condition, Part, Source, Upload
from tiercache.origins.http_status import UploadGone
from tiercache.origins.limits import Limits, growing_part_bytes
from tiercache.origins.s3.multipart import Multipart
from tiercache.origins.s3.proof import Proof
from tiercache.origins.s3.sending import Sending

Settle = Callable[[Upload, str, "UploadGone | Changed | None"], ObjectStat]
"""Describes what was completed with an etag, or tells what an error of the completion means."""


class S3Stream:
    """See ``origins.base.Stream``."""

    def __init__(self, multipart: Multipart, proof: Proof, limits: Limits, sending: Sending, settle: Settle) -> None:
        self._multipart = multipart
        self._proof = proof
        self._limits = limits
        self._sending = sending
        self._settle = settle
        self._lengths: dict[int, int] = {}

    @property
    def id(self) -> str:
        return self._sending.id

    def part_bytes(self, number: int) -> int:
        return growing_part_bytes(number, self._limits)

    def send(self, parts: Sequence[Part]) -> None:
        try:
            self._multipart.send_parts(self._sending, parts)
        except UploadGone as error:
            raise self._gone() from error
        self._lengths |= {part.number: part.length for part in parts}

    def complete(self, size_bytes: int, condition: Condition) -> ObjectStat:
        sending, upload = self._sending, self._sending.upload
        upload = upload._replace(source=Source(upload.source.path, size_bytes), condition=condition)
        try:
            completed = self._multipart.end_stream(sending, len(self._lengths), condition)
            etag = completed.etag
            if completed.expected:
                etag = self._proof.by(sending.key, upload, etag, completed.expected, self._is_at)
        except Changed as error:
            return self._settle(upload, "", error)
        except UploadGone as error:
            try:
                return self._settle(upload, "", error)  # the answer to a completion may have been lost
            except Busy:
                raise self._gone() from error
        except Absent as error:
            if condition.etag:  # If-Match on an object that is gone
                raise Changed(str(error)) from error
            raise Broken(str(error)) from error  # a write cannot miss anything: never "not found"
        return self._settle(upload, etag, None)

    def _gone(self) -> Broken:
        """What others abort does not come back, and neither do the bytes."""
        return Broken(f"{self._sending.key!r}: the parts that were sent are gone, somebody aborted their upload")

    def _is_at(self, etag: str) -> bool:
        lengths = [length for _, length in sorted(self._lengths.items())]
        md5s = self._sending.md5s([""] * len(lengths))
        return self._proof.has_parts(self._sending.key, etag, list(zip(lengths, md5s, strict=True)))
