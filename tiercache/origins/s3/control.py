"""The control plane of a bucket: single botocore calls, classified, repeated once when the credentials expired."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import botocore.exceptions
import urllib3.exceptions

from tiercache.errors import Absent, Broken, Changed, Unsupported
from tiercache.model import Key
from tiercache.origins import etags
from tiercache.origins.base import Condition
from tiercache.origins.http_status import CredentialsExpired
from tiercache.origins.obstore_calls import Found, nanoseconds, text_of
from tiercache.origins.s3.errors import classify
from tiercache.origins.s3.session import Clients, Session

T = TypeVar("T")

_STREAM_ERRORS = (
    botocore.exceptions.BotoCoreError,
    botocore.exceptions.ClientError,
    urllib3.exceptions.HTTPError,
    OSError,
)

_KEPT_HEADERS = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "StorageClass",
    "WebsiteRedirectLocation",
)


class Control:
    """Everything asked of a bucket that obstore cannot ask."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.bucket = session.bucket
        self._payer = {"RequestPayer": "requester"} if session.options.requester_pays else {}
        self.write_arguments = session.options.write_arguments
        self._deletes_by_etag = True

    def name(self, key: Key) -> str:
        """The object as messages call it."""
        return f"s3://{self.bucket}/{key.decode('utf-8', 'backslashreplace')}"

    def renewing(self, run: Callable[[Clients], T]) -> T:
        """Run with the current clients, and once more with new ones if the credentials have expired."""
        clients = self._session.clients()
        try:
            return run(clients)
        except CredentialsExpired:
            return run(self._session.renew(clients))

    def call(self, operation: str, key: Key, **arguments: Any) -> dict[str, Any]:
        """One request. ``key`` goes into messages only."""

        def run(clients: Clients) -> dict[str, Any]:
            try:
                answer: dict[str, Any] = getattr(clients.control, operation)(
                    Bucket=self.bucket, **self._payer, **arguments
                )
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
                raise classify(error, self.name(key)) from error
            return answer

        return self.renewing(run)

    def head(self, key: Key) -> tuple[Found, dict[str, Any]]:
        """HEAD of an object: what it says of it, and the whole answer."""
        answer = self.call("head_object", key, Key=text_of(key))
        return found_of(answer), answer

    def get(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        """A ranged GET, for keys that obstore cannot spell; checks as there."""
        what = self.name(key)
        arguments: dict[str, Any] = {"Range": f"bytes={offset}-{offset + length - 1}"}
        if (match := etags.header(etag)) is not None:
            arguments["IfMatch"] = match
        answer = self.call("get_object", key, Key=text_of(key), **arguments)
        found = found_of(answer)
        if found.etag != etag:
            raise Changed(f"{what} is no longer the version that was asked for")
        range_text = str(answer.get("ContentRange", "")).partition("/")[0]
        if range_text != f"bytes {offset}-{offset + length - 1}":
            raise Broken(f"{what}: range {offset}+{length} wanted, {range_text or 'the whole object'} answered")
        return self._body(answer, length, what)

    def get_whole(self, key: Key, limit_bytes: int) -> tuple[Found, memoryview | None]:
        """A GET, for keys that obstore cannot spell; the body of an object over the limit is not read."""
        answer = self.call("get_object", key, Key=text_of(key))
        found = found_of(answer)
        if found.size_bytes > limit_bytes:
            answer["Body"].close()
            return found, None
        return found, self._body(answer, found.size_bytes, self.name(key))

    def _body(self, answer: Mapping[str, Any], length: int, what: str) -> memoryview:
        try:
            data = answer["Body"].read()
        except _STREAM_ERRORS as error:
            raise classify(_as_streaming(error), what) from error
        if len(data) != length:
            raise Broken(f"{what}: {length} bytes wanted, {len(data)} arrived")
        return memoryview(data)

    def put(
        self,
        key: Key,
        data: bytes,
        metadata: Mapping[str, str],
        condition: Condition,
        content_type: str,
        md5: bytes = b"",
    ) -> str:
        """One PUT; returns the etag. Changed if the condition fails; with ``md5`` the store refuses other bytes."""
        answer = self.call(
            "put_object",
            key,
            Key=text_of(key),
            Body=data,
            Metadata=dict(metadata),
            **({"ContentType": content_type} if content_type else {}),
            **({"ContentMD5": base64.b64encode(md5).decode()} if md5 else {}),
            **conditions(condition),
            **self.write_arguments,
        )
        return etags.plain(answer.get("ETag"))

    def delete(self, key: Key, etag: str = "") -> None:
        """Of this version only, where the store can tell at that moment."""
        match = etags.header(etag) if self._deletes_by_etag else None
        if match is not None:
            try:
                self.call("delete_object", key, Key=text_of(key), IfMatch=match)
                return
            except Unsupported:
                self._deletes_by_etag = False
        self.call("delete_object", key, Key=text_of(key))

    def exists(self, key: Key) -> bool:
        """Whether an object of exactly this key is there."""
        try:
            self.head(key)
        except Absent:
            return False
        return True


def conditions(condition: Condition) -> dict[str, str]:
    """The condition as arguments of PutObject and CompleteMultipartUpload."""
    if condition.absent:
        return {"IfNoneMatch": "*"}
    match = etags.header(condition.etag)
    return {"IfMatch": match} if match is not None else {}


def kept_headers(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of an object that a copy with new metadata must repeat, or they are lost."""
    return {name: answer[name] for name in _KEPT_HEADERS if name in answer}


def found_of(answer: Mapping[str, Any]) -> Found:
    """What the headers of a GET or HEAD say; the total size, whatever range was sent."""
    size_bytes = int(answer["ContentLength"])
    total = str(answer.get("ContentRange", "")).rpartition("/")[2]
    if total.isdigit():
        size_bytes = int(total)
    modified_ns = nanoseconds(answer["LastModified"])
    etag = etags.plain_or_made_up(answer.get("ETag"), modified_ns, size_bytes)
    return Found(size_bytes, etag, modified_ns, answer.get("Metadata", {}))


def _as_streaming(error: Exception) -> Exception:
    if isinstance(error, botocore.exceptions.BotoCoreError):
        return error  # type: ignore[no-any-return]
    return botocore.exceptions.ResponseStreamingError(error=error)  # type: ignore[no-any-return]
