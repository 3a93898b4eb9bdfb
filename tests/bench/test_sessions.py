"""Every kind of target does the same things, and what it gives is checked."""

from __future__ import annotations

import os
import random
from array import array
from pathlib import Path

import pytest

from tiercache.bench import measure, targets
from tiercache.bench.dataset import Piece, digest_of
from tiercache.bench.peers.choice import KINDS
from tiercache.bench.sessions import PlainSession, Session
from tiercache.bench.targets import Call, Setup
from tiercache.errors import TierCacheError

ALL = [
    targets.S3FS_OPEN,
    targets.S3FS_CAT,
    targets.OBSTORE,
    targets.MOUNT,
    targets.OURS_OPEN,
    targets.OURS_CAT,
    targets.LOCAL_OPEN,
    targets.LOCAL_CAT,
    targets.PLAIN_OPEN,
    *(f"{name} mount, open()" for name in KINDS),
]
WRITING = [name for name in ALL if not name.endswith("cat_file()")]


def session_of(laid, name: str) -> Session:  # type: ignore[no-untyped-def]
    if name not in laid.sessions:
        pytest.skip(f"{name.split()[0]} is not installed")
    session: Session = laid.sessions[name]
    return session


@pytest.mark.parametrize("name", ALL)
def test_whole_files_and_parts_have_the_bytes_that_were_stored(laid, name: str) -> None:  # type: ignore[no-untyped-def]
    session = session_of(laid, name)
    session.prepare()
    timed = measure.read_pieces(session, laid.dataset.pieces)
    assert timed.moved_bytes == laid.dataset.total_bytes
    assert len(array("q", timed.latencies_ns)) == len(laid.dataset.pieces)
    file = next(iter(laid.dataset.files))
    data = (laid.dataset.directory / file).read_bytes()
    for offset, length in ((0, 100), (100, 200), (50, 10)):
        piece = Piece(file, offset, length, digest_of(data[offset : offset + length]), whole=False)
        measure.read_pieces(session, [piece])
    session.settle()


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("fsync", [False, True])
def test_a_saved_file_is_loaded_again_and_reaches_the_origin(laid, name: str, fsync: bool) -> None:  # type: ignore[no-untyped-def]
    session = session_of(laid, name)
    data = random.Random(name).randbytes(70_001)
    parts = [memoryview(data)[at : at + 30_000] for at in range(0, len(data), 30_000)]
    file = f"000/saved-{ALL.index(name)}-{fsync}"
    measure.save_parts(session, file, parts, fsync=fsync)
    loaded = measure.load_file(session, file, len(data), digest_of(data), request_bytes=20_000)
    assert len(array("q", loaded.latencies_ns)) == 1
    if laid.targets[name].role is targets.Role.CACHED:
        laid.node.drain()
    # Not those of peers, who upload when they like, and one of them in a format of its own.
    if laid.targets[name].role in (targets.Role.CACHED, targets.Role.ORIGIN):
        assert laid.place.read(file) == data
    session.remove(file)
    session.forget()
    assert os.path.basename(file) not in session.children("000")


@pytest.mark.parametrize("name", WRITING)
def test_names_and_sizes_are_told_as_they_are(laid, name: str) -> None:  # type: ignore[no-untyped-def]
    session = session_of(laid, name)
    session.forget()
    measure.stat_files(session, list(laid.dataset.files.items()))
    children = frozenset(file.partition("/")[2] for file in laid.dataset.files)
    measure.list_directories(session, [("000", children)])
    sizes = {file.partition("/")[2]: size_bytes for file, size_bytes in laid.dataset.files.items()}
    walked = measure.walk_tree(session, [("000", sizes)])
    assert len(array("q", walked.latencies_ns)) == 1 + len(sizes)


def plain(directory: Path) -> PlainSession:
    return PlainSession(Setup("plain", Call.OPEN, str(directory)), None)


def test_whole_files_are_read_without_a_buffer_too(tmp_path: Path) -> None:
    data = random.Random(5).randbytes(300_000)
    (tmp_path / "file").write_bytes(data)
    session = PlainSession(Setup("plain", Call.OPEN, str(tmp_path), buffered=False), None)
    assert session.read(Piece("file", 0, len(data), b"", whole=True)) == data


def test_a_wrong_byte_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"right")
    with pytest.raises(TierCacheError, match="file: 5 bytes at 0 are not those that were stored"):
        measure.read_pieces(plain(tmp_path), [Piece("file", 0, 5, digest_of(b"wrong"), whole=True)])
    with pytest.raises(TierCacheError, match="not what was saved"):
        measure.load_file(plain(tmp_path), "file", 5, digest_of(b"wrong"), request_bytes=3)


def test_a_wrong_size_or_name_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").write_bytes(b"12345")
    with pytest.raises(TierCacheError, match="size 5 instead of 6"):
        measure.stat_files(plain(tmp_path), [("d/file", 6)])
    with pytest.raises(TierCacheError, match="1 names instead of 2"):
        measure.list_directories(plain(tmp_path), [("d", frozenset({"file", "other"}))])
    with pytest.raises(TierCacheError, match="1 names instead of 0"):
        measure.walk_tree(plain(tmp_path), [("d", {})])
    with pytest.raises(TierCacheError, match="size 5 instead of 6"):
        measure.walk_tree(plain(tmp_path), [("d", {"file": 6})])
