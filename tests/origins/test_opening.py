"""From URLs, options and the AWS environment to origins."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rig.seaweedfs import Bucket
from tiercache.config import UploadConfig
from tiercache.errors import Absent, ConfigError, Denied, ReadOnly, TierCacheError
from tiercache.origins import Source, Upload, open_origin, origin_identity
from tiercache.origins.limits import Limits
from tiercache.origins.registry import limits_of

MIB = 1024 * 1024


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_standard_variables_are_enough(s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    server = s3_bucket.server
    for name, value in (server.environment() | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(variable, server.endpoint)
    s3_bucket.put("prefix/key", b"content")
    origin, root = open_origin(f"{s3_bucket.url}/prefix")
    assert origin.read_whole(root + b"/key", 100)[1] == b"content"
    assert origin.stat(root + b"/key").size_bytes == 7
    assert origin.identity == origin_identity(s3_bucket.url) == f"{s3_bucket.url}?endpoint={server.endpoint}"


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_profile_gives_keys_region_and_endpoint(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str
) -> None:
    server = s3_bucket.server
    (tmp_path / "config").write_text(f"[profile lab]\nregion = eu-west-3\nendpoint_url = {server.endpoint}\n")
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id = {server.access_key}\naws_secret_access_key = {server.secret_key}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    options = {"profile": "lab"} if by == "option" else {}
    if by == "variable":
        monkeypatch.setenv("AWS_PROFILE", "lab")
    s3_bucket.put("key", b"content")
    origin, _ = open_origin(s3_bucket.url, options=options)
    assert origin.read_whole(b"key", 100)[1] == b"content"
    assert [entry.key for entry in origin.list(b"")] == [b"key"]
    assert origin.identity == origin_identity(s3_bucket.url, options) == f"{s3_bucket.url}?endpoint={server.endpoint}"


def test_s3fs_spellings_of_options_are_taken(s3_bucket: Bucket) -> None:
    server = s3_bucket.server
    s3_bucket.put("key", b"content")
    options = {
        "key": server.access_key,
        "secret": server.secret_key,
        "client_kwargs": {"endpoint_url": server.endpoint, "region_name": "us-east-1"},
        "use_listings_cache": False,
        "default_block_size": 1,
    }
    for client in ("obstore", "s3fs"):
        origin, _ = open_origin(s3_bucket.url, client=client, options=options)
        assert origin.read_whole(b"key", 100)[1] == b"content"
        assert origin.identity == origin_identity(s3_bucket.url, options, client=client)
        assert "secret" not in origin.identity


def test_an_unknown_profile_is_one_clear_line(s3_bucket: Bucket) -> None:
    origin, _ = open_origin(s3_bucket.url, options={"profile": "no-such-profile"})
    with pytest.raises(Denied, match="no-such-profile"):
        origin.stat(b"key")


@pytest.mark.parametrize(
    ("url", "client", "options", "told"),
    [
        ("s3://", "obstore", {}, "bucket"),
        ("nosuch://host/path", "obstore", {}, "nosuch"),
        ("s3://bucket", "curl", {}, "obstore"),
        ("s3://bucket", "obstore", {"sekret": "x"}, "sekret"),
        ("s3://bucket", "obstore", {"client_kwargs": {"regoin": "x"}}, "regoin"),
        ("gs://bucket", "obstore", {"nonsense": "x"}, "nonsense"),
        ("http://host/", "obstore", {"nonsense": "x"}, "nonsense"),
    ],
)
def test_a_bad_address_or_option_is_one_clear_line(
    url: str, client: str, options: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        open_origin(url, client=client, options=options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "identity", "key"),
    [
        ("s3://bucket/a%20b/c?d#e/", "s3://bucket", b"a%20b/c?d#e"),
        ("s3a://bucket", "s3://bucket", b""),
        ("/data/set", "file:///", b"data/set"),
        ("file:///data/../set/", "file:///", b"set"),
        ("gs://bucket/x", "gs://bucket", b"x"),
        ("abfs://box@account.dfs.core.windows.net/x", "az://box@account", b"x"),
        ("https://host:8080/x/y", "https://host:8080", b"x/y"),
        ("memory://a/b", "memory://", b"a/b"),
    ],
)
def test_identity_and_key_of_a_url(url: str, identity: str, key: bytes) -> None:
    options = {"token": "anon"} if url.startswith("gs") else {}
    if url.startswith("abfs"):
        options = {"account_key": "a2V5"}
    origin, root = open_origin(url, options=options)
    assert (origin.identity, root) == (identity, key)
    assert origin_identity(url, options) == identity


@pytest.fixture
def website(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    directory = tmp_path / "www"
    directory.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(directory))  # type: ignore[arg-type]

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", directory
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_web_server_can_be_read(website: tuple[str, Path], tmp_path: Path) -> None:
    url, directory = website
    (directory / "sub").mkdir()
    (directory / "sub" / "file.bin").write_bytes(b"0123456789")
    origin, root = open_origin(f"{url}/sub")
    found, body = origin.read_whole(root + b"/file.bin", 100)
    assert (found.size_bytes, body) == (10, b"0123456789")
    assert origin.stat(root + b"/file.bin").etag == found.etag
    with pytest.raises(Absent):
        origin.stat(root + b"/nothing")
    with pytest.raises(TierCacheError):  # this server knows no ranges, and no listings
        origin.read(root + b"/file.bin", 2, 3, found.etag)
    with pytest.raises(TierCacheError):
        list(origin.list(root))
    path = tmp_path / "source"
    path.write_bytes(b"1")
    with pytest.raises(ReadOnly):
        origin.write(b"new", Upload(Source(str(path), 1)))
    assert os.listdir(directory / "sub") == ["file.bin"]


def test_an_endpoint_without_a_scheme(s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever it comes from."""
    for client in ("obstore", "s3fs"):
        for options in ({"endpoint_url": "here:1"}, {"client_kwargs": {"endpoint_url": "here:1"}}):
            with pytest.raises(TierCacheError, match=r"endpoint_url=here:1: .* write endpoint_url=http://here:1 "):
                open_origin(s3_bucket.url, client=client, options=options)
    (tmp_path / "config").write_text("[profile lab]\nendpoint_url = here:1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(TierCacheError, match="write endpoint_url=http://here:1 "):
        open_origin(s3_bucket.url, options={"profile": "lab"})[0].identity  # noqa: B018
    monkeypatch.setenv("AWS_ENDPOINT_URL", "here:1")
    with pytest.raises(TierCacheError, match="write AWS_ENDPOINT_URL=http://here:1 "):
        open_origin(s3_bucket.url)[0].identity  # noqa: B018


def test_the_limits_of_a_store_are_an_option_of_its_origin() -> None:
    upload = UploadConfig(part_size=16 * MIB)
    told = {"max_parts": 1000, "min_part": "1MiB", "max_part": "1GiB", "single_put": "4MiB", "list_page": "100"}
    limits = limits_of(upload, told)
    assert limits == Limits(
        part_size_bytes=16 * MIB,
        single_put_bytes=4 * MIB,
        max_parts=1000,
        min_part_bytes=MIB,
        max_part_bytes=1024 * MIB,
        list_page=100,
    )
    assert limits_of(upload) == Limits()
    options = {"anon": True, "limits": told}
    assert origin_identity("s3://bucket", options) == origin_identity("s3://bucket", {"anon": True})
    assert open_origin("s3://bucket", options=options)[0].identity == origin_identity("s3://bucket", {})


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"parts": 1}, "unknown limit 'parts': allowed are list_page"),
        ({"max_parts": 0}, "out of range"),
        ({"min_part": "small"}, r"limits\.min_part: 'small' is not understood; allowed: a size"),
    ],
)
def test_a_limit_that_makes_no_sense_is_told(told: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        open_origin("s3://bucket", options={"limits": told})
