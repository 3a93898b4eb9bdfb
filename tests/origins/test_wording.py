"""What is told of a store that cannot be asked: one line, in our words, the same by every client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from rig.seaweedfs import Bucket
from tiercache.config import FetchConfig
from tiercache.errors import TierCacheError
from tiercache.origins import Origin, open_origin

CALLS = [
    pytest.param(lambda origin: origin.stat(b"key"), id="stat"),
    pytest.param(lambda origin: list(origin.list(b"")), id="list"),
    pytest.param(lambda origin: origin.read(b"key", 0, 10, "etag"), id="read"),
]
CLIENTS = ["obstore", "s3fs"]


def opened(bucket: Bucket, client: str, **options: Any) -> Origin:
    server = bucket.server
    given = {"key": server.access_key, "secret": server.secret_key, "endpoint_url": server.endpoint}
    fetch = FetchConfig(timeout_s=0.5, connect_timeout_s=5)
    return open_origin(bucket.url, client=client, options=given | options, fetch=fetch)[0]


def told(origin: Origin, call: Any) -> str:
    with pytest.raises(TierCacheError) as caught:
        call(origin)
    where, _, words = str(caught.value).partition(": ")
    assert where.startswith("s3://")
    return words


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_not_there(s3_bucket: Bucket, client: str, call: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        closed = f"http://127.0.0.1:{sock.getsockname()[1]}"
    assert told(opened(s3_bucket, client, endpoint_url=closed), call) == f"cannot connect to {closed}"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_silent(s3_bucket: Bucket, silent: str, client: str, call: Any) -> None:
    assert told(opened(s3_bucket, client, endpoint_url=silent), call) == f"{silent} did not answer in time"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_key(s3_bucket: Bucket, client: str, call: Any) -> None:
    assert told(opened(s3_bucket, client, secret="wrong"), call).startswith("access denied (403")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_profile_that_does_not_exist(s3_bucket: Bucket, client: str) -> None:
    origin = open_origin(s3_bucket.url, client=client, options={"profile": "lab"})[0]
    for call in (lambda asked: asked.stat(b"key"), lambda asked: list(asked.list(b""))):
        assert told(origin, call) == "the AWS configuration files have no profile 'lab'"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("name", "words"),
    [("no-such-bucket-here", "the bucket does not exist"), ("no name!", "a bucket cannot have this name")],
)
def test_a_bucket_that_does_not_exist(s3_bucket: Bucket, client: str, name: str, words: str) -> None:
    bucket = s3_bucket._replace(name=name)
    assert told(opened(bucket, client), lambda origin: list(origin.list(b"prefix"))) == words


def test_a_name_that_does_not_exist_is_told_once(s3_bucket: Bucket) -> None:
    for client in CLIENTS:
        with pytest.raises(TierCacheError) as caught:
            opened(s3_bucket, client).stat(b"key")
        assert str(caught.value) == f"{s3_bucket.url}/key does not exist"
