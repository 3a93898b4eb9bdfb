"""S3's limits on parts and single requests, scaled down: the proxy plays multipart itself and enforces them."""

from __future__ import annotations

import hashlib
import html
import itertools
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote
from xml.sax.saxutils import escape

import botocore.exceptions

from rig.s3_requests import Answer, Request, error

_PART_NUMBER = re.compile(rb"<PartNumber>(\d+)</PartNumber>")
_PART_ETAG = re.compile(rb"<ETag>([^<]*)</ETag>")
_METADATA = "x-amz-meta-"


class ScaledLimits(NamedTuple):
    """The defaults stand for 10,000 parts, 5 MiB and 5 GiB."""

    max_parts: int = 10
    min_part_bytes: int = 5 * 1024
    single_put_bytes: int = 50 * 1024
    single_copy_bytes: int = 50 * 1024


class _Upload(NamedTuple):
    bucket: str
    key: bytes
    metadata: Mapping[str, str]
    parts: dict[int, bytes]


class ScaledStore:
    """Multipart uploads are kept here, since SeaweedFS refuses parts under 5 MiB; a complete one is one PUT to it.

    Refused are what S3 refuses (too many, too large, too small parts, too large single requests) and an empty part.
    """

    def __init__(self, s3: Any, limits: ScaledLimits) -> None:
        self._s3 = s3
        self._limits = limits
        self._lock = threading.Lock()
        self._uploads: dict[str, _Upload] = {}
        self._ids = itertools.count(1)

    def act(self, request: Request, forward: Callable[[], Answer]) -> Answer:
        """A rule of the fault proxy."""
        match request.operation:
            case "CreateMultipartUpload":
                return self._create(request)
            case "UploadPart":
                return self._part(request, request.body, self._limits.single_put_bytes)
            case "UploadPartCopy":
                return self._part(request, self._copied(request), self._limits.single_copy_bytes)
            case "CompleteMultipartUpload":
                return self._complete(request)
            case "AbortMultipartUpload":
                with self._lock:
                    known = self._uploads.pop(request.query["uploadId"], None)
                return Answer(204, (), b"") if known else error(404, "NoSuchUpload")
            case "ListParts":
                return self._list_parts(request)
            case "ListMultipartUploads":
                return self._list(request)
            case "PutObject" if len(request.body) > self._limits.single_put_bytes:
                return error(400, "EntityTooLarge", f"{len(request.body)} bytes in one PUT")
            case "CopyObject" if self._source_size(request) > self._limits.single_copy_bytes:
                return error(400, "InvalidRequest", "the copy source is larger than the maximum allowable size")
            case _:
                return forward()

    def _create(self, request: Request) -> Answer:
        upload_id = f"scaled-{next(self._ids)}"
        metadata = {
            name.removeprefix(_METADATA): value for name, value in request.headers.items() if name.startswith(_METADATA)
        }
        with self._lock:
            self._uploads[upload_id] = _Upload(request.bucket, request.key, metadata, {})
        return _document("InitiateMultipartUploadResult", f"<UploadId>{upload_id}</UploadId>")

    def _part(self, request: Request, data: bytes, most_bytes: int) -> Answer:
        number = int(request.query["partNumber"])
        if not 1 <= number <= self._limits.max_parts:
            return error(400, "InvalidArgument", f"part number {number}")
        if not data or len(data) > most_bytes:
            return error(400, "EntityTooLarge", f"a part of {len(data)} bytes")
        with self._lock:
            upload = self._uploads.get(request.query["uploadId"])
            if upload is None:
                return error(404, "NoSuchUpload")
            upload.parts[number] = data
        if request.operation == "UploadPartCopy":
            return _document("CopyPartResult", f"<ETag>{_etag(data)}</ETag>")
        return Answer(200, (("etag", _etag(data)),), b"")

    def _source(self, request: Request) -> tuple[str, str]:
        bucket, _, key = unquote(request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
        return bucket, key

    def _source_size(self, request: Request) -> int:
        bucket, key = self._source(request)
        return int(self._s3.head_object(Bucket=bucket, Key=key)["ContentLength"])

    def _copied(self, request: Request) -> bytes:
        bucket, key = self._source(request)
        span = request.headers.get("x-amz-copy-source-range", "bytes=0-")
        return bytes(self._s3.get_object(Bucket=bucket, Key=key, Range=span)["Body"].read())

    def _complete(self, request: Request) -> Answer:
        with self._lock:
            upload = self._uploads.get(request.query["uploadId"])
        if upload is None:
            return error(404, "NoSuchUpload")
        numbers = [int(number) for number in _PART_NUMBER.findall(request.body)]
        etags = [html.unescape(etag.decode()) for etag in _PART_ETAG.findall(request.body)]
        if numbers != sorted(upload.parts) or etags != [_etag(upload.parts[number]) for number in numbers]:
            return error(400, "InvalidPart", f"{numbers} of {sorted(upload.parts)}")
        if any(len(upload.parts[number]) < self._limits.min_part_bytes for number in numbers[:-1]):
            return error(400, "EntityTooSmall")
        conditions = {
            argument: request.headers[header]
            for header, argument in (("if-match", "IfMatch"), ("if-none-match", "IfNoneMatch"))
            if header in request.headers
        }
        try:
            answer = self._s3.put_object(
                Bucket=upload.bucket,
                Key=upload.key.decode(),
                Body=b"".join(upload.parts[number] for number in numbers),
                Metadata=dict(upload.metadata),
                **conditions,
            )
        except botocore.exceptions.ClientError as failure:
            return error(failure.response["ResponseMetadata"]["HTTPStatusCode"], failure.response["Error"]["Code"])
        with self._lock:
            del self._uploads[request.query["uploadId"]]
        return _document("CompleteMultipartUploadResult", f"<ETag>{escape(answer['ETag'])}</ETag>")

    def _list(self, request: Request) -> Answer:
        with self._lock:
            found = [
                f"<Upload><Key>{escape(upload.key.decode())}</Key><UploadId>{upload_id}</UploadId></Upload>"
                for upload_id, upload in self._uploads.items()
                if upload.bucket == request.bucket and upload.key.decode().startswith(request.query.get("prefix", ""))
            ]
        return _document("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>" + "".join(found))

    def _list_parts(self, request: Request) -> Answer:
        """Pages of three."""
        with self._lock:
            upload = self._uploads.get(request.query["uploadId"])
            parts = {} if upload is None else dict(upload.parts)
        if upload is None:
            return error(404, "NoSuchUpload")
        later = sorted(number for number in parts if number > int(request.query.get("part-number-marker", "0")))
        found = [
            f"<Part><PartNumber>{number}</PartNumber><ETag>{_etag(parts[number])}</ETag>"
            f"<Size>{len(parts[number])}</Size></Part>"
            for number in later[:3]
        ]
        truncated = len(later) > 3
        marker = f"<NextPartNumberMarker>{later[2]}</NextPartNumberMarker>" if truncated else ""
        told = f"<IsTruncated>{str(truncated).lower()}</IsTruncated>{marker}"
        return _document("ListPartsResult", told + "".join(found))

    def damage_part(self, number: int) -> None:
        """Another writer who guessed the id has replaced this part of each upload."""
        with self._lock:
            for upload in self._uploads.values():
                upload.parts[number] = b"x" * len(upload.parts[number])

    def forget(self) -> None:
        """A rule of the bucket has removed all unfinished uploads."""
        with self._lock:
            self._uploads.clear()

    @property
    def unfinished(self) -> list[bytes]:
        """Keys of uploads that were neither completed nor aborted."""
        with self._lock:
            return [upload.key for upload in self._uploads.values()]

    @property
    def left_with_parts(self) -> list[bytes]:
        """Keys of those that have parts, which cost money."""
        with self._lock:
            return [upload.key for upload in self._uploads.values() if upload.parts]


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _document(name: str, content: str) -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}>{content}</{name}>'
    return Answer(200, (("content-type", "application/xml"),), text.encode())
