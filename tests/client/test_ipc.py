"""Frames: what goes in comes out, whatever the pieces it arrives in, and nothing over the limits is let in."""

from __future__ import annotations

import inspect
import os
import stat
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache import errors, ipc
from tiercache.model import Entry, Kind, VersionId

ODD_TEXT = st.binary(max_size=20).map(os.fsdecode)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=50) | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
MESSAGES = st.dictionaries(st.text(max_size=8), VALUES, max_size=4).map(lambda fields: {**fields, "id": 7})


@given(messages=st.lists(MESSAGES, max_size=5), cuts=st.lists(st.integers(1, 40), min_size=1))
def test_messages_survive_any_cutting_of_the_stream(messages: list[dict[str, Any]], cuts: list[int]) -> None:
    stream = b"".join(map(ipc.pack, messages))
    reader = ipc.FrameReader()
    received = []
    position = turn = 0
    while position < len(stream):
        step = cuts[turn % len(cuts)]
        reader.feed(stream[position : position + step])
        while (message := reader.next()) is not None:
            received.append(message)
        position, turn = position + step, turn + 1
    assert received == messages


@given(noise=st.binary(min_size=5, max_size=200))
def test_noise_is_a_protocol_error_or_incomplete_and_nothing_else(noise: bytes) -> None:
    reader = ipc.FrameReader()
    reader.feed(noise)
    try:
        while (message := reader.next()) is not None:
            assert isinstance(message["id"], int)
    except ipc.ProtocolError:
        pass


def test_an_announced_length_over_the_limit_is_refused_before_it_is_received() -> None:
    reader = ipc.FrameReader()
    reader.feed(struct.pack("<I", ipc.MAX_FRAME_BYTES + 1))
    with pytest.raises(ipc.ProtocolError, match="over the limit"):
        reader.next()


def test_a_message_over_the_limit_is_not_packed() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        ipc.pack({"id": 1, "data": bytes(ipc.MAX_FRAME_BYTES)})


def test_the_largest_answer_with_data_fits_a_frame() -> None:
    assert len(ipc.pack({"id": 2**32, "ok": bytes(ipc.DATA_CHUNK_BYTES)})) < ipc.MAX_FRAME_BYTES


@pytest.mark.parametrize("body", [b"\x01", b"\x81\xa2id\xa1x", b"\x80", b"\xc1", b"\x81\xa2id"])
def test_a_frame_that_is_no_request_is_a_protocol_error(body: bytes) -> None:
    reader = ipc.FrameReader()
    reader.feed(struct.pack("<I", len(body)) + body)
    with pytest.raises(ipc.ProtocolError):
        reader.next()


ALL_ERRORS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TierCacheError)
]


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_every_error_arrives_as_itself(kind: type[errors.TierCacheError]) -> None:
    error = ipc.error_of(ipc.error_frame(3, kind("what happened to /a/b")))
    assert type(error) is kind
    assert str(error) == "what happened to /a/b"


def test_an_error_of_another_release_arrives_as_broken_with_its_words() -> None:
    error = ipc.error_of({"id": 1, "error": "Exploded", "message": "the disk"})
    assert type(error) is errors.Broken
    assert str(error) == "Exploded: the disk"


def test_a_name_from_the_errors_module_that_is_no_error_is_not_raised() -> None:
    assert type(ipc.error_of({"id": 1, "error": "errno_of", "message": ""})) is errors.Broken


def test_an_entry_arrives_as_it_was() -> None:
    entry = Entry(
        kind=Kind.SYMLINK,
        inode=2**63,
        size_bytes=12,
        mode=0o644,
        version=VersionId(b"\xff" * 16),
        etag="a\udcff",
        link_target=b"\xfe/x",
        xattrs=((b"user.a", b"\0\xff"), (b"user.b", b"")),
    )
    reader = ipc.FrameReader()
    reader.feed(ipc.pack({"id": 1, "ok": entry}))
    message = reader.next()
    assert message is not None
    arrived = ipc.entry_of(message["ok"])
    assert arrived == entry
    assert arrived.kind is Kind.SYMLINK


@pytest.mark.parametrize("depth", [0, 1, 4], ids=["short", "long", "very long"])
def test_the_socket_works_however_long_the_path_and_only_its_owner_may_connect(tmp_path: Path, depth: int) -> None:
    cache_dir = tmp_path.joinpath(*["d" * 100] * depth)
    cache_dir.mkdir(parents=True, exist_ok=True)
    with ipc.listening_socket(cache_dir, 1) as listener:
        assert stat.S_IMODE((cache_dir / ipc.SOCKET_NAME).stat().st_mode) == 0o600
        client = ipc.connect(cache_dir, 5.0)
        assert client is not None
        server, _ = listener.accept()
        with client, server:
            client.sendall(b"x")
            assert server.recv(1) == b"x"


def test_a_dead_engines_socket_counts_as_no_engine_and_is_replaced(tmp_path: Path) -> None:
    ipc.listening_socket(tmp_path, 1).close()
    assert ipc.connect(tmp_path, 1.0) is None
    ipc.listening_socket(tmp_path, 1).close()


def test_no_directory_is_no_engine(tmp_path: Path) -> None:
    assert ipc.connect(tmp_path / "absent", 1.0) is None


def test_an_engine_that_does_not_accept_is_told_from_none(tmp_path: Path) -> None:
    with ipc.listening_socket(tmp_path, 0), ExitStack() as waiting:

        def fill_the_backlog() -> None:
            for _ in range(10):
                sock = ipc.connect(tmp_path, 0.05)
                assert sock is not None
                waiting.enter_context(sock)

        with pytest.raises(TimeoutError):
            fill_the_backlog()
