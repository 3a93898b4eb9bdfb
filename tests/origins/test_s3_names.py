"""Keys of S3 that no path can spell, and names that stand for two things; moto where SeaweedFS departs from S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from rig.seaweedfs import Bucket, S3Server, client
from tiercache.errors import Absent, Changed, InvalidName, NotEmpty
from tiercache.model import Attributes, Kind
from tiercache.origins import Condition, Limits, Origin, Source, Upload, open_origin

LIMITS = Limits(list_page=3)


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield S3Server(f"http://{host}:{port}", "moto", "moto", "us-east-1", Path(), 0)
    server.stop()


@pytest.fixture
def bucket(moto: S3Server, request: pytest.FixtureRequest) -> Bucket:
    name = f"names-{abs(hash(request.node.name)):x}"
    s3: Any = client(moto)
    s3.create_bucket(Bucket=name)
    return Bucket(name, moto, s3)


@pytest.fixture
def origin(bucket: Bucket) -> Iterator[Origin]:
    made, _ = open_origin(bucket.url, options=bucket.server.options(), limits=LIMITS)
    yield made
    made.close()


ODD = [b"a//b", b"a/./b", b"a/../b", b"./a", b"/lead", b"tab\there", b"a//", b"back\\slash", b"\x7f"]
WITH_LINE_ENDS = [b"new\nline", b"\n", b"dir/new\nline"]
"""For the real server: moto's router takes none."""


@pytest.mark.parametrize("key", ODD)
def test_odd_keys_are_literal(origin: Origin, bucket: Bucket, tmp_path: Path, key: bytes) -> None:
    check_life_of(key, origin, bucket, tmp_path)


@pytest.mark.parametrize("key", WITH_LINE_ENDS)
def test_keys_with_line_ends_are_literal(s3_bucket: Bucket, tmp_path: Path, key: bytes) -> None:
    origin, _ = open_origin(s3_bucket.url, options=s3_bucket.server.options())
    check_life_of(key, origin, s3_bucket, tmp_path)


def check_life_of(key: bytes, origin: Origin, bucket: Bucket, tmp_path: Path) -> None:
    """Write, find, read, copy and delete one object."""
    path = tmp_path / "source"
    path.write_bytes(b"0123456789")
    written = origin.write(key, Upload(Source(str(path), 10), Attributes(0o600, 1, 2, 3), upload_id="mine"))
    assert bucket.keys() == [key.decode()]
    assert [entry.key for entry in origin.walk(b"")] == [key if not key.endswith(b"/") else key[:-1]]
    assert origin.stat(key) == written
    assert (written.kind, written.upload_id) == (Kind.FILE, "mine")
    assert origin.read(key, 2, 3, written.etag) == b"234"
    assert origin.read_whole(key, 100)[1] == b"0123456789"
    assert origin.read_whole(key, 5)[1] is None
    with pytest.raises(Changed):
        origin.read(key, 2, 3, "another")
    assert origin.copy(key, key + b"-copy").size_bytes == 10
    origin.delete(key + b"-copy")
    origin.delete(key)
    with pytest.raises(Absent):
        origin.stat(key)


def test_a_page_with_odd_keys_is_listed_whole(origin: Origin, bucket: Bucket) -> None:
    for key in ("plain", "a//b", "a/./c", "a/ü", "%41", "d/", "//root"):
        bucket.put(key, b"1")
    walked = {(entry.key, entry.kind) for entry in origin.walk(b"")}
    files = {b"plain", b"a//b", b"a/./c", "a/ü".encode(), b"%41", b"//root"}
    assert walked == {(key, Kind.FILE) for key in files} | {(b"d", Kind.DIRECTORY)}
    top = {entry.key: entry.kind for entry in origin.list(b"")}
    assert top == {
        b"plain": Kind.FILE,
        b"%41": Kind.FILE,
        b"a": Kind.DIRECTORY,
        b"d": Kind.DIRECTORY,
    }
    assert {entry.key for entry in origin.list(b"a")} == {b"a/", b"a/.", "a/ü".encode()}
    assert [entry.key for entry in origin.list(b"a/")] == [b"a//b"]


def test_a_key_that_is_not_utf8_cannot_be_spelled(origin: Origin) -> None:
    for call in (origin.stat, origin.require_key):
        with pytest.raises(InvalidName):
            call(b"\xff\xfe")


def test_the_directory_wins_over_a_file_of_the_same_name(origin: Origin, bucket: Bucket) -> None:
    for key in ("foo", "foo/bar", "foo-1", "foo-2", "foo!", "foo.txt", "foo/", "foobar", "zoo"):
        bucket.put(key, b"1")
    assert origin.stat(b"foo").kind is Kind.DIRECTORY
    listed = [(entry.key, entry.kind) for entry in origin.list(b"")]
    assert sorted(listed) == sorted(
        [(b"foo", Kind.DIRECTORY)]
        + [(key, Kind.FILE) for key in (b"foo!", b"foo-1", b"foo-2", b"foo.txt", b"foobar", b"zoo")]
    )
    assert [entry.key for entry in origin.list(b"foo")] == [b"foo/bar"]
    assert origin.read_whole(b"foo", 10)[1] == b"1"  # the object itself is still there for those who name it


def test_the_real_server_agrees(s3_bucket: Bucket) -> None:
    origin, _ = open_origin(s3_bucket.url, options=s3_bucket.server.options(), limits=LIMITS)
    for key in ("foo", "foo/bar", "foo-1", "foo-2", "foo-3", "foo.txt"):
        s3_bucket.put(key, b"1")
    assert origin.stat(b"foo").kind is Kind.DIRECTORY
    kinds = {entry.key: entry.kind for entry in origin.list(b"")}
    assert kinds.pop(b"foo") is Kind.DIRECTORY
    assert set(kinds) == {b"foo-1", b"foo-2", b"foo-3", b"foo.txt"}


def test_a_marker_is_a_directory_that_keeps_attributes(origin: Origin, bucket: Bucket) -> None:
    attributes = Attributes(0o750, 7, 8, 1_234_000_000_000)
    origin.make_directory(b"dir", attributes)
    assert bucket.keys() == ["dir/"]
    assert origin.stat(b"dir").attributes == attributes
    changed = origin.set_attributes(b"dir", attributes._replace(mode=0o700))
    assert changed.attributes == origin.stat(b"dir").attributes == attributes._replace(mode=0o700)
    assert list(origin.list(b"dir")) == []
    bucket.put("dir/inside", b"1")
    with pytest.raises(NotEmpty):
        origin.remove_directory(b"dir")
    origin.delete(b"dir/inside")
    origin.remove_directory(b"dir")
    assert bucket.keys() == []


def test_metadata_of_others_and_headers_survive_a_change_of_attributes(origin: Origin, bucket: Bucket) -> None:
    bucket.put("key", b"1", Metadata={"colour": "blue"}, ContentType="text/x", CacheControl="no-store")
    origin.set_attributes(b"key", Attributes(0o600, 1, 2, 3))
    found = bucket.head("key")
    assert (found["ContentType"], found["CacheControl"], found["Metadata"]["colour"]) == ("text/x", "no-store", "blue")
    assert found["Metadata"]["mode"] == str(0o100600)


def test_attributes_written_by_s3fs_fuse_are_read(origin: Origin, bucket: Bucket) -> None:
    metadata = {
        "mode": "33188",
        "uid": "1000",
        "gid": "100",
        "mtime": "1700000000",
        "xattr": "%7B%22user.a%22%3A%22Yg%3D%3D%22%7D",
    }
    bucket.put("key", b"1", Metadata=metadata)
    assert origin.stat(b"key").attributes == Attributes(
        0o644, 1000, 100, 1_700_000_000_000_000_000, xattrs=((b"user.a", b"b"),)
    )
    bucket.put("link", b"key", Metadata={"mode": "41471"})
    assert (origin.stat(b"link").kind, origin.stat(b"link").link_target) == (Kind.SYMLINK, b"key")


def test_metadata_that_makes_no_sense_is_ignored(origin: Origin, bucket: Bucket) -> None:
    bucket.put("key", b"1", Metadata={"mode": "rw-r--r--", "uid": "root", "mtime": "yesterday", "xattr": "%7B"})
    found = origin.stat(b"key")
    assert found.attributes is not None
    assert (found.attributes.mode, found.attributes.mtime_ns, found.attributes.xattrs) == (0o644, found.modified_ns, ())


def test_a_conditional_write_of_an_odd_key(origin: Origin, bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"1")
    bucket.put("a//b", b"theirs")
    with pytest.raises(Changed):
        origin.write(b"a//b", Upload(Source(str(path), 1), condition=Condition(absent=True)))
    assert bucket.get("a//b") == b"theirs"
