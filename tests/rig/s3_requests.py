"""S3 requests and answers as the fault proxy sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, unquote_to_bytes


class Request(NamedTuple):
    """One request of a client, with the name that S3 gives the operation."""

    method: str
    target: str
    bucket: str
    key: bytes
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    operation: str


class Answer(NamedTuple):
    """What goes back. The body is cut ``after`` so many bytes unless that is None; ``reset`` ends by RST, not FIN."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    after: int | None = None
    reset: bool = False

    def with_headers(self, **changed: str) -> Answer:
        """The same answer with headers replaced; underscores stand for dashes."""
        new = {name.replace("_", "-").lower(): value for name, value in changed.items()}
        kept = tuple((name, value) for name, value in self.headers if name.lower() not in new)
        return self._replace(headers=kept + tuple(new.items()))

    def header(self, name: str) -> str:
        return next((value for found, value in self.headers if found.lower() == name.lower()), "")


def error(status: int, code: str = "", message: str = "injected") -> Answer:
    """An S3 error document."""
    name = code or _CODES.get(status, "InjectedFault")
    document = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{name}</Code><Message>{message}</Message></Error>'
    return Answer(status, (("content-type", "application/xml"),), document.encode())


_CODES = {
    403: "AccessDenied",
    404: "NoSuchKey",
    408: "RequestTimeout",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}


def parse(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Request:
    """Take a path-style request apart."""
    path, _, query_text = target.partition("?")
    query = {name: values[0] for name, values in parse_qs(query_text, keep_blank_values=True).items()}
    bucket, _, key = path.lstrip("/").partition("/")
    lower = {name.lower(): value for name, value in headers.items()}
    operation = _operation(method, key, query, lower)
    return Request(method, target, bucket, unquote_to_bytes(key), query, lower, body, operation)


def _operation(method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    copying = "x-amz-copy-source" in headers
    if not key:
        if method == "GET":
            return "ListMultipartUploads" if "uploads" in query else "ListObjects"
        return {"HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket", "POST": "DeleteObjects"}[method]
    if "partNumber" in query:
        return "UploadPartCopy" if copying else "UploadPart"
    if method == "POST":
        return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload"
    if method == "DELETE":
        return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
    if method == "PUT":
        return "CopyObject" if copying else "PutObject"
    if method == "GET" and "uploadId" in query:
        return "ListParts"
    return {"GET": "GetObject", "HEAD": "HeadObject"}.get(method, method)
