"""Directory streams: cookies, rewinding, and names that change under a reader."""

from __future__ import annotations

import pytest

from tiercache.errors import Absent, InvalidArgument
from tiercache.fuse.directories import Child, Streams
from tiercache.model import Entry, Key, Kind

DIRECTORY_INODE = 5


def children(*names: bytes) -> list[Child]:
    return [(name, Entry(Kind.FILE, 100 + number)) for number, name in enumerate(names)]


@pytest.fixture
def keys() -> dict[int, Key]:
    return {DIRECTORY_INODE: b"some/dir"}


@pytest.fixture
def streams(keys: dict[int, Key]) -> Streams:
    def key_of(inode: int) -> Key:
        if inode not in keys:
            raise Absent("gone")
        return keys[inode]

    return Streams(key_of)


def test_pages_continue_at_their_cookies(streams: Streams) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    stream.start(children(b"a", b"b", b"c"))
    first = stream.lines(0, 2)
    assert [line.name for line in first] == [b"a", b"b"]
    assert [line.name for line in stream.lines(first[-1].cookie, 2)] == [b"c"]
    assert stream.lines(3, 2) == []


def test_two_streams_do_not_disturb_each_other(streams: Streams) -> None:
    one, two = (streams.get(streams.open(DIRECTORY_INODE)) for _ in range(2))
    one.start(children(b"a", b"b"))
    two.start(children(b"b"))
    assert [line.name for line in one.lines(0, 9)] == [b"a", b"b"]
    assert [line.name for line in two.lines(0, 9)] == [b"b"]


def test_a_changed_name_is_marked_until_the_stream_starts_over(streams: Streams) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    stream.start(children(b"a", b"b"))
    streams.note_change(b"some/dir/b", 0)
    streams.note_change(b"elsewhere/a", 0)
    assert [line.changed for line in stream.lines(0, 9)] == [False, True]
    stream.start(children(b"a", b"b"))
    assert [line.changed for line in stream.lines(0, 9)] == [False, False]


def test_a_written_file_is_marked_under_each_of_its_names(streams: Streams) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    entry = Entry(Kind.FILE, 9)
    stream.start([(b"a", entry), (b"b", entry), (b"c", Entry(Kind.FILE, 10))])
    streams.note_write(9)
    assert [line.changed for line in stream.lines(0, 9)] == [True, True, False]


def test_a_moved_directory_is_followed(streams: Streams, keys: dict[int, Key]) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    stream.start(children(b"a"))
    keys[DIRECTORY_INODE] = b"moved"
    streams.note_change(b"moved/a", 0)
    assert stream.lines(0, 1)[0].changed
    assert streams.key_of_line(stream, b"a") == b"moved/a"


def test_a_removed_directory_marks_nothing(streams: Streams, keys: dict[int, Key]) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    stream.start(children(b"a"))
    del keys[DIRECTORY_INODE]
    streams.note_change(b"some/dir/a", 0)
    assert not stream.lines(0, 1)[0].changed


def test_a_closed_handle_is_an_error_and_never_another_stream(streams: Streams) -> None:
    handle = streams.open(DIRECTORY_INODE)
    streams.close(handle)
    assert streams.open(DIRECTORY_INODE) != handle
    with pytest.raises(InvalidArgument):
        streams.get(handle)
