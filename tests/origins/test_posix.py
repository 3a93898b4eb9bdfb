"""What only a file tree has: temporary files, special files, symlinks in the way, permissions, times."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from tiercache.errors import (
    Absent,
    Broken,
    Busy,
    Changed,
    Denied,
    InvalidArgument,
    InvalidName,
    IsDirectory,
    NameTooLong,
    NoSpace,
    Unsupported,
)
from tiercache.model import SPECIAL_KINDS, Attributes, Kind
from tiercache.origins import ALWAYS, Condition, Source, Upload
from tiercache.origins.base import Part, unfinished
from tiercache.origins.posix import PosixOrigin
from tiercache.origins.posix_calls import classify
from tiercache.origins.temporary import temporary_name

ORIGIN = PosixOrigin()


def key_of(path: Path) -> bytes:
    return os.fsencode(path).lstrip(b"/")


def write(
    path: Path,
    data: bytes,
    *,
    upload_id: str = "mine",
    attributes: Attributes | None = None,
    in_place: bool = False,
    size_bytes: int | None = None,
) -> None:
    source = path.parent.parent / "source"
    source.write_bytes(data)
    ORIGIN.write(
        key_of(path),
        Upload(
            Source(str(source), len(data) if size_bytes is None else size_bytes),
            attributes,
            upload_id=upload_id,
            in_place=in_place,
        ),
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("key", [b"a//b", b"a/../b", b"./a", b"a/", b"nul\0"])
def test_keys_that_no_path_can_spell_are_refused(key: bytes) -> None:
    for call in (ORIGIN.stat, ORIGIN.delete, ORIGIN.make_directory, lambda found: list(ORIGIN.list(found))):
        with pytest.raises(InvalidName):
            call(key)


def test_names_are_bytes(tree: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", b"\n", b"back\\slash"):
        key = key_of(tree) + b"/" + name
        source = tree.parent / "source"
        source.write_bytes(b"1")
        ORIGIN.write(key, Upload(Source(str(source), 1)))
        assert ORIGIN.read_whole(key, 10)[1] == b"1"
        assert key in [entry.key for entry in ORIGIN.list(key_of(tree))]


def test_a_name_too_long_says_so(tree: Path) -> None:
    with pytest.raises(NameTooLong):
        ORIGIN.stat(key_of(tree) + b"/" + b"x" * 256)


def test_an_interrupted_write_is_hidden_and_can_be_removed(tree: Path) -> None:
    (tree / temporary_name(b"file", "mine.1")).write_bytes(b"half")
    assert list(ORIGIN.list(key_of(tree))) == list(ORIGIN.walk(key_of(tree))) == []
    ORIGIN.abort_uploads(key_of(tree / "other"), "mine.1")
    assert len(list(tree.iterdir())) == 1
    for _ in range(2):
        ORIGIN.abort_uploads(key_of(tree / "file"), "mine.2")
    assert list(tree.iterdir()) == []


def test_a_repeated_write_of_one_upload_starts_over(tree: Path) -> None:
    (tree / temporary_name(b"file", "mine")).write_bytes(b"half of an earlier try, which is longer")
    write(tree / "file", b"whole")
    assert [(path.name, path.read_bytes()) for path in tree.iterdir()] == [("file", b"whole")]


def test_a_source_that_is_too_short_changes_nothing(tree: Path) -> None:
    (tree / "file").write_bytes(b"old")
    source = tree.parent / "source"
    source.write_bytes(b"short")
    with pytest.raises(Broken):
        ORIGIN.write(key_of(tree / "file"), Upload(Source(str(source), 100), upload_id="mine"))
    assert [(path.name, path.read_bytes()) for path in tree.iterdir()] == [("file", b"old")]


@pytest.mark.parametrize("in_place", [False, True])
def test_only_a_write_in_place_reaches_the_other_names_of_a_file(tree: Path, in_place: bool) -> None:
    (tree / "one").write_bytes(b"old")
    os.link(tree / "one", tree / "two")
    write(tree / "one", b"new bytes", in_place=in_place)
    assert (tree / "one").read_bytes() == b"new bytes"
    assert (tree / "two").read_bytes() == (b"new bytes" if in_place else b"old")
    assert os.path.samefile(tree / "one", tree / "two") == in_place


def test_a_torn_write_in_place_is_told_as_such(tree: Path) -> None:
    (tree / "one").write_bytes(b"old")
    os.link(tree / "one", tree / "two")
    with pytest.raises(Broken):
        write(tree / "one", b"half", in_place=True, size_bytes=8)
    assert ORIGIN.stat(key_of(tree / "two")).upload_id == unfinished("mine")
    write(tree / "one", b"whole", in_place=True)
    assert ORIGIN.stat(key_of(tree / "two")).upload_id == "mine"
    assert (tree / "two").read_bytes() == b"whole"


def test_a_write_without_attributes_keeps_mode_and_owner(tree: Path) -> None:
    (tree / "file").write_bytes(b"old")
    (tree / "file").chmod(0o604)
    write(tree / "file", b"new")
    assert (tree / "file").stat().st_mode & 0o7777 == 0o604


def test_times_are_exact_to_the_nanosecond(tree: Path) -> None:
    attributes = Attributes(0o4711, os.getuid(), os.getgid(), 1_700_000_000_123_456_789, 1_600_000_000_987_654_321)
    write(tree / "file", b"1", attributes=attributes)
    found = ORIGIN.stat(key_of(tree / "file")).attributes
    assert found is not None
    assert found._replace(ctime_ns=0) == attributes


def test_a_change_in_place_is_another_version(tree: Path) -> None:
    path = tree / "file"
    path.write_bytes(b"one")
    before = ORIGIN.stat(key_of(path))
    os.utime(path, ns=(0, before.modified_ns + 1))
    with pytest.raises(Changed):
        ORIGIN.read(key_of(path), 0, 3, before.etag)


def test_special_files_are_told_and_never_block(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "socket"))
    (tree / "file").write_bytes(b"1")
    kinds = {entry.key: entry.kind for entry in ORIGIN.list(key_of(tree))}
    assert kinds == {
        key_of(tree / "file"): Kind.FILE,
        key_of(tree / "fifo"): Kind.FIFO,
        key_of(tree / "socket"): Kind.SOCKET,
    }
    fifo = ORIGIN.stat(key_of(tree / "fifo"))
    assert ORIGIN.read_whole(fifo.key, 100) == (fifo, None)
    for call in (lambda: ORIGIN.read(fifo.key, 0, 1, fifo.etag), lambda: ORIGIN.copy(fifo.key, fifo.key + b"2")):
        with pytest.raises(Unsupported):
            call()


def test_special_files_are_made_with_their_device(tree: Path) -> None:
    attributes = Attributes(0o640, 12, 34, mtime_ns=10**18)
    for kind in SPECIAL_KINDS:
        key = key_of(tree / kind.name)
        device = os.makedev(1, 300) if "DEVICE" in kind.name else 0
        assert ORIGIN.make_special(key, kind, device, attributes) == ORIGIN.stat(key)
        found = os.stat(tree / kind.name)
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid, found.st_rdev) == (0o640, 12, 34, device)
        assert (ORIGIN.stat(key).kind, ORIGIN.stat(key).device) == (kind, device)


def test_a_tree_may_be_deeper_than_one_path_can_spell(tree: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"12345")
    deep = key_of(tree) + b"".join(b"/" + b"%02d" % level * 120 for level in range(40))
    assert len(deep) > 2 * 4096
    made = ORIGIN.write(
        deep + b"/file",
        Upload(Source(str(source), 5), Attributes(0o640, 1, 2, 10**18), upload_id="u"),
    )
    assert ORIGIN.stat(deep + b"/file") == made
    assert bytes(ORIGIN.read(deep + b"/file", 1, 3, made.etag)) == b"234"
    ORIGIN.abort_uploads(deep + b"/file", "u")
    ORIGIN.make_directory(deep + b"/dir")
    ORIGIN.symlink(deep + b"/link", b"file")
    ORIGIN.rename(deep + b"/file", deep + b"/dir/moved")
    ORIGIN.link(deep + b"/dir/moved", key_of(tree) + b"/near")
    ORIGIN.set_attributes(deep + b"/dir/moved", Attributes(0o600, 1, 2, 10**18, xattrs=((b"user.a", b"b"),)))
    assert ORIGIN.stat(key_of(tree) + b"/near").attributes == ORIGIN.stat(deep + b"/dir/moved").attributes
    assert {entry.key for entry in ORIGIN.list(deep)} == {deep + b"/dir", deep + b"/link"}
    assert ORIGIN.space(deep + b"/absent/below").total_bytes > 0
    with pytest.raises(Absent):
        ORIGIN.stat(deep + b"/absent/" + b"x" * 200)
    for entry in reversed(list(ORIGIN.walk(key_of(tree)))):
        (ORIGIN.remove_directory if entry.kind is Kind.DIRECTORY else ORIGIN.delete)(entry.key)
    assert os.listdir(tree) == []


def test_a_symlink_is_told_not_followed(tree: Path) -> None:
    (tree / "dir").mkdir()
    (tree / "dir" / "file").write_bytes(b"1")
    (tree / "loop").symlink_to(".")
    (tree / "dangling").symlink_to("nowhere")
    kinds = {entry.key: entry.kind for entry in ORIGIN.walk(key_of(tree))}
    assert kinds == {
        key_of(tree / "dir"): Kind.DIRECTORY,
        key_of(tree / "dir" / "file"): Kind.FILE,
        key_of(tree / "loop"): Kind.SYMLINK,
        key_of(tree / "dangling"): Kind.SYMLINK,
    }
    assert ORIGIN.stat(key_of(tree / "dangling")).link_target == b"nowhere"


def test_writing_over_a_directory_is_refused(tree: Path) -> None:
    (tree / "dir").mkdir()
    with pytest.raises(IsDirectory):
        write(tree / "dir", b"1")


def test_moving_a_directory_into_itself_is_refused(tree: Path) -> None:
    (tree / "dir").mkdir()
    for no_replace in (False, True):
        with pytest.raises(InvalidArgument):
            ORIGIN.rename(key_of(tree / "dir"), key_of(tree / "dir" / "sub"), no_replace=no_replace)


def test_another_tools_xattrs_stay_out_of_sight_and_ours_too(tree: Path) -> None:
    write(tree / "file", b"1", attributes=Attributes(0o600, os.getuid(), os.getgid(), 0, xattrs=((b"user.a", b"b"),)))
    found = ORIGIN.stat(key_of(tree / "file"))
    assert found.attributes is not None
    assert (found.attributes.xattrs, found.upload_id) == (((b"user.a", b"b"),), "mine")
    ORIGIN.set_attributes(key_of(tree / "file"), found.attributes._replace(xattrs=()))
    found = ORIGIN.stat(key_of(tree / "file"))
    assert found.attributes is not None
    assert (found.attributes.xattrs, found.upload_id) == ((), "mine")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, Denied),
        (errno.EPERM, Denied),
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EIO, Broken),
        (errno.ESTALE, Changed),
        (errno.ETIMEDOUT, Busy),
        (errno.EMFILE, Busy),
        (errno.ENOENT, Absent),
    ],
)
def test_errors_of_the_system_keep_their_meaning(number: int, kind: type[Exception]) -> None:
    assert type(classify(OSError(number, os.strerror(number)), b"some/file")) is kind


def test_space_of_a_place_that_is_not_there_yet(tree: Path) -> None:
    assert ORIGIN.space(key_of(tree / "a" / "b")).total_bytes > 0
    with pytest.raises(Absent):
        ORIGIN.stat(key_of(tree / "a"))


def test_a_completion_that_is_repeated_has_happened_and_parts_may_come_again(tree: Path) -> None:
    source = tree.parent / "source"
    source.write_bytes(b"0123456789")
    stream = ORIGIN.stream(key_of(tree / "file"), Upload(Source(str(source), 0), upload_id="mine.1"), part_max_bytes=4)
    assert [stream.part_bytes(number) for number in (1, 1_000_000)] == [4, 4]
    for part in (Part(1, 0, 4), Part(2, 4, 4), Part(1, 0, 4), Part(3, 8, 2)):
        stream.send([part])
    assert list(ORIGIN.list(key_of(tree))) == []
    first = stream.complete(10, Condition(absent=True))
    assert stream.complete(10, Condition(absent=True)) == first == ORIGIN.stat(key_of(tree / "file"))
    assert [(path.name, path.read_bytes()) for path in tree.iterdir()] == [("file", b"0123456789")]


def test_a_stream_that_lacks_bytes_takes_no_name(tree: Path) -> None:
    (tree / "file").write_bytes(b"old")
    source = tree.parent / "source"
    source.write_bytes(b"0123")
    stream = ORIGIN.stream(key_of(tree / "file"), Upload(Source(str(source), 0), upload_id="mine.1"), part_max_bytes=4)
    stream.send([Part(1, 0, 4)])
    with pytest.raises(Broken, match="4 of 8 bytes"):
        stream.complete(8, ALWAYS)
    with pytest.raises(Changed):
        stream.complete(4, Condition(absent=True))
    ORIGIN.abort_uploads(key_of(tree / "file"), "", stream.id)
    assert [(path.name, path.read_bytes()) for path in tree.iterdir()] == [("file", b"old")]
