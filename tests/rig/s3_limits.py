"""S3's limits on parts and single requests, scaled down and enforced."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import NamedTuple

from rig.s3_requests import Answer, Request, error

_PART_NUMBER = re.compile(rb"<PartNumber>(\d+)</PartNumber>")
_COPY_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class ScaledLimits(NamedTuple):
    """The defaults stand for 10,000 parts, 5 MiB and 5 GiB."""

    max_parts: int = 10
    min_part_bytes: int = 5 * 1024
    single_put_bytes: int = 50 * 1024
    single_copy_bytes: int = 50 * 1024


class Watch:
    """Remembers the parts of each upload and refuses what S3 would refuse; it also refuses an empty part."""

    def __init__(self, limits: ScaledLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._parts: dict[tuple[str, int], int] = {}

    def act(self, request: Request, forward: Callable[[], Answer]) -> Answer:
        """A rule of the fault proxy."""
        refused = self._refused(request)
        return refused if refused is not None else forward()

    def _refused(self, request: Request) -> Answer | None:
        limits = self._limits
        match request.operation:
            case "PutObject" if len(request.body) > limits.single_put_bytes:
                return error(400, "EntityTooLarge", f"{len(request.body)} bytes in one PUT")
            case "UploadPart":
                return self._refused_part(request, len(request.body), limits.single_put_bytes)
            case "UploadPartCopy":
                found = _COPY_RANGE.match(request.headers.get("x-amz-copy-source-range", ""))
                size_bytes = int(found.group(2)) - int(found.group(1)) + 1 if found else 0
                return self._refused_part(request, size_bytes, limits.single_copy_bytes)
            case "CompleteMultipartUpload":
                return self._refused_complete(request)
            case _:
                return None

    def _refused_part(self, request: Request, size_bytes: int, most_bytes: int) -> Answer | None:
        number = int(request.query["partNumber"])
        if number > self._limits.max_parts:
            return error(400, "InvalidArgument", f"part number {number}")
        if not size_bytes or size_bytes > most_bytes:
            return error(400, "EntityTooLarge", f"a part of {size_bytes} bytes")
        with self._lock:
            self._parts[request.query["uploadId"], number] = size_bytes
        return None

    def _refused_complete(self, request: Request) -> Answer | None:
        numbers = [int(number) for number in _PART_NUMBER.findall(request.body)]
        with self._lock:
            sizes = [self._parts.get((request.query["uploadId"], number), 0) for number in numbers]
        if any(size < self._limits.min_part_bytes for size in sizes[:-1]):
            return error(400, "EntityTooSmall", f"parts of {sizes}")
        return None
