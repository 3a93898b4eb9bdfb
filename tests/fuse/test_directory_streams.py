"""Directory streams: cookies, rewinding, and names that change under a reader."""

from __future__ import annotations

import pytest

from tiercache.errors import Absent, InvalidArgument
from tiercache.fuse.directories import Child, Line, Streams
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


def names(lines: list[Line]) -> set[bytes]:
    return {line.name for line in lines}


def changed(lines: list[Line]) -> set[bytes]:
    return {line.name for line in lines if line.changed}


def test_pages_continue_at_their_cookies(streams: Streams) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    stream.start(children(b"a", b"b", b"c"))
    first = stream.lines(0, 2)
    rest = stream.lines(first[-1].cookie, 2)
    assert (len(first), len(rest)) == (2, 1)
    assert names(first + rest) == {b"a", b"b", b"c"}
    assert stream.lines(rest[-1].cookie, 2) == []


def test_a_reader_goes_on_in_another_snapshot_where_it_was(streams: Streams) -> None:
    """Each name that is there all along is told once, whatever comes and goes, and whoever takes the snapshots."""
    stayed = [b"%d" % number for number in range(200)]
    told: list[bytes] = []
    offset, handle = 0, streams.open(DIRECTORY_INODE)
    for turn in range(100):
        stream = Streams(lambda inode: b"some/dir").get(handle, DIRECTORY_INODE)
        stream.start(children(*stayed, *(b"%d in turn %d" % (number, turn) for number in range(turn % 7))))
        lines = stream.lines(offset, 3)
        if not lines:
            break
        told += [line.name for line in lines if line.name in stayed]
        offset = lines[-1].cookie
    assert sorted(told) == sorted(stayed)


def test_a_directory_itself_and_the_one_above_come_first(streams: Streams) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    stream.start(children(*(b"%d" % number for number in range(100)), b"..", b"."))
    assert [line.name for line in stream.lines(0, 2)] == [b".", b".."]


def test_two_streams_do_not_disturb_each_other(streams: Streams) -> None:
    one, two = (streams.get(streams.open(DIRECTORY_INODE)) for _ in range(2))
    one.start(children(b"a", b"b"))
    two.start(children(b"b"))
    assert names(one.lines(0, 9)) == {b"a", b"b"}
    assert names(two.lines(0, 9)) == {b"b"}


def test_a_changed_name_is_marked_until_the_stream_starts_over(streams: Streams) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    stream.start(children(b"a", b"b"))
    streams.note_change(b"some/dir/b", 0)
    streams.note_change(b"elsewhere/a", 0)
    assert changed(stream.lines(0, 9)) == {b"b"}
    stream.start(children(b"a", b"b"))
    assert not changed(stream.lines(0, 9))


def test_a_written_file_is_marked_under_each_of_its_names(streams: Streams) -> None:
    stream = streams.get(streams.open(DIRECTORY_INODE))
    entry = Entry(Kind.FILE, 9)
    stream.start([(b"a", entry), (b"b", entry), (b"c", Entry(Kind.FILE, 10))])
    streams.note_write(9)
    assert changed(stream.lines(0, 9)) == {b"a", b"b"}


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
