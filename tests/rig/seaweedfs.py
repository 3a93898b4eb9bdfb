"""The S3 server of a test session, under the names that tests import."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from tiercache.bench.s3server import S3Server, SeaweedFS, client, make_bucket

__all__ = ["Bucket", "S3Server", "SeaweedFS", "client", "fresh_bucket", "make_bucket"]


class Bucket(NamedTuple):
    """A bucket of its own for one test, with a plain client that acts behind our back."""

    name: str
    server: S3Server
    s3: Any

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes, **arguments: Any) -> str:
        """Store an object as another program would; returns its etag."""
        return str(self.s3.put_object(Bucket=self.name, Key=key, Body=data, **arguments)["ETag"]).strip('"')

    def get(self, key: str) -> bytes:
        return bytes(self.s3.get_object(Bucket=self.name, Key=key)["Body"].read())

    def head(self, key: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.s3.head_object(Bucket=self.name, Key=key)
        return answer

    def delete(self, key: str) -> None:
        self.s3.delete_object(Bucket=self.name, Key=key)

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def unfinished_uploads(self) -> list[str]:
        """Keys of multipart uploads that were neither completed nor aborted."""
        return [each["Key"] for each in self.s3.list_multipart_uploads(Bucket=self.name).get("Uploads", ())]


def fresh_bucket(server: S3Server) -> Bucket:
    """Make a bucket with a name that nobody had before."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    make_bucket(server, name)
    return Bucket(name, server, client(server))
