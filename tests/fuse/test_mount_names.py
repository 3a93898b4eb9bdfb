"""Names of a mount: directories, renames, links, odd spellings, and what others change."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from rig.mounts import RENAME_EXCHANGE, RENAME_NOREPLACE, Mounted, refused, renameat2, wait_for

ODD_NAMES = [
    "with blank",
    "tab\there",
    "line\nbreak",
    "percent%2Fslash",
    "back\\slash",
    "quote'\"`$",
    "star*[?]",
    "ünïcödé-ﬀ-名",
    "e\u0301 not normalised",
    "-dash",
    "..dots",
    "trailing.",
    "a" * 255,
    "#hash?query&x=1+2",
]


def test_odd_names_are_kept_byte_for_byte(mounted: Mounted, root: Path) -> None:
    # SeaweedFS, not S3, takes a backslash for a slash.
    names = [name for name in ODD_NAMES if mounted.source.kind == "posix" or "\\" not in name]
    for name in names:
        (root / name).write_bytes(name.encode())
    assert sorted(os.listdir(root)) == sorted(names)
    mounted.drain()
    assert mounted.source.names() == set(names)
    mounted.cold()
    assert sorted(os.listdir(root)) == sorted(names)
    for name in names:
        assert (root / name).read_bytes() == name.encode()
        (root / name).unlink()
    assert os.listdir(root) == []


def test_names_that_are_no_text_are_kept_on_a_file_tree(on_posix: Mounted) -> None:
    path = os.fsencode(on_posix.path) + b"/\xff\xfe"
    with open(path, "wb") as file:
        file.write(b"x")
    assert os.listdir(os.fsencode(on_posix.path)) == [b"\xff\xfe"]
    assert on_posix.source.directory is not None
    on_posix.drain()
    assert os.listdir(os.fsencode(on_posix.source.directory)) == [b"\xff\xfe"]


def test_names_that_are_no_text_are_refused_on_an_object_store(on_s3: Mounted) -> None:
    """At once, also where the directory is known to have no such name: what was staged could never go up."""
    root = on_s3.path
    (root / "file").write_bytes(b"x")
    path = os.fsencode(root) + b"/\xff\xfe"
    for change in (
        lambda: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)),
        lambda: os.mkdir(path),
        lambda: os.symlink("file", path),
        lambda: os.rename(root / "file", path),
        lambda: os.stat(path),
    ):
        assert os.listdir(root) == ["file"]
        with refused(errno.EILSEQ):
            change()
    on_s3.drain()
    assert on_s3.source.names() == {"file"}


def test_a_name_over_255_bytes_is_refused(root: Path) -> None:
    for operation in (Path.touch, Path.mkdir, Path.stat):
        with refused(errno.ENAMETOOLONG):
            operation(root / ("x" * 256))


def test_directories(mounted: Mounted, root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    with pytest.raises(FileExistsError):
        (root / "a").mkdir()
    (root / "a" / "b" / "file").write_bytes(b"x")
    for wrong in (root / "a" / "b", root / "a"):
        with refused(errno.ENOTEMPTY):
            wrong.rmdir()
    with pytest.raises(NotADirectoryError):
        (root / "a" / "b" / "file" / "below").touch()
    with pytest.raises(NotADirectoryError):
        (root / "a" / "b" / "file").rmdir()
    with pytest.raises(IsADirectoryError):
        (root / "a").unlink()
    (root / "a" / "b" / "file").unlink()
    assert os.listdir(root / "a" / "b") == [], "an emptied directory stands"
    (root / "a" / "b").rmdir()
    (root / "a").rmdir()
    assert os.listdir(root) == []
    mounted.drain()
    assert mounted.source.names() == set()


def test_directories_count_the_directories_in_them(on_posix: Mounted) -> None:
    """Each is linked to by its own ``..``; tools that walk trees go by it."""
    path = on_posix.path
    for name in ("a", "b", "a/one", "a/two", "b/empty"):
        (path / name).mkdir()

    def links() -> dict[str, int]:
        return {name: (path / name).stat().st_nlink for name in (".", "a", "b")}

    assert links() == {".": 4, "a": 4, "b": 3}
    (path / "a" / "one").rename(path / "b" / "one")
    assert links() == {".": 4, "a": 3, "b": 4}
    (path / "a" / "two").rename(path / "b" / "empty")
    assert links() == {".": 4, "a": 2, "b": 4}
    (path / "a" / "file").touch()
    renameat2(path / "a" / "file", path / "b" / "one", RENAME_EXCHANGE)
    assert links() == {".": 4, "a": 3, "b": 3}
    (path / "b" / "empty").rmdir()
    assert links() == {".": 4, "a": 3, "b": 2}
    on_posix.cold()
    assert links() == {".": 4, "a": 3, "b": 2}


def test_a_directory_of_an_object_store_has_one_link(on_s3: Mounted) -> None:
    """Which tells those who walk trees that it is not counted."""
    (on_s3.path / "dir" / "sub").mkdir(parents=True)
    (on_s3.path / "dir" / "file").touch()
    assert {path.stat().st_nlink for path in (on_s3.path, on_s3.path / "dir", on_s3.path / "dir" / "sub")} == {1}


def test_who_stands_in_a_removed_directory_is_told_so(root: Path) -> None:
    for number, remove in enumerate((lambda path: path.rmdir(), lambda path: (root / "other").rename(path))):
        path = root / f"dir{number}"
        path.mkdir()
        (root / "other").mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            remove(path)
            assert os.fstat(descriptor).st_nlink == 0
            with refused(errno.ENOENT):
                os.mkdir("late", dir_fd=descriptor)
            with refused(errno.ENOENT):
                os.stat("missing", dir_fd=descriptor)
        finally:
            os.close(descriptor)


def test_paths_longer_than_the_kernel_takes_at_once(on_posix: Mounted) -> None:
    """Programs that change into directories make trees deeper than one path can spell; the origin's path is longer
    still."""
    top = os.open(on_posix.path, os.O_RDONLY | os.O_DIRECTORY)
    directory = os.dup(top)
    levels = [f"{level:03}" * 60 for level in range(25)]
    try:
        for name in levels:
            os.mkdir(name, dir_fd=directory)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
        file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=directory)
        os.write(file, b"deep")
        os.close(file)
        on_posix.drain()
        os.rename("file", "moved", src_dir_fd=directory, dst_dir_fd=directory)
        file = os.open("moved", os.O_RDONLY, dir_fd=directory)
        assert os.read(file, 100) == b"deep"
        os.close(file)
        assert os.listdir(directory) == ["moved"]
    finally:
        os.close(directory)
        os.close(top)
    shutil.rmtree(on_posix.path / levels[0])
    assert os.listdir(on_posix.path) == []


def test_a_path_longer_than_a_key_of_s3_is_refused(on_s3: Mounted) -> None:
    """At once, before anything is staged that could never go up."""
    directory = on_s3.path
    for level in range(4):
        directory = directory / (f"{level}" * 230)
        directory.mkdir()
    (directory / "short").write_bytes(b"fits")
    assert os.listdir(directory) == ["short"]
    too_long = directory / ("x" * 200)
    for change in (
        too_long.touch,
        too_long.mkdir,
        lambda: too_long.symlink_to("short"),
        lambda: (directory / "short").rename(too_long),
        too_long.stat,
    ):
        with refused(errno.ENAMETOOLONG):
            change()
    on_s3.drain()
    assert len(on_s3.source.names()) == 1


@pytest.mark.parametrize("dirty", [True, False], ids=["dirty", "clean"])
def test_a_directory_is_not_moved_to_where_a_key_of_s3_would_be_too_long(on_s3: Mounted, dirty: bool) -> None:
    top = on_s3.path / "top"
    levels = ["y" * 200] * 4
    directory = top.joinpath(*levels)
    directory.mkdir(parents=True)
    name = "x" * 100
    (directory / name).write_bytes(b"fits")
    if not dirty:
        on_s3.drain()
    with refused(errno.ENAMETOOLONG):
        top.rename(on_s3.path / ("t" * 200))
    assert (directory / name).read_bytes() == b"fits"
    top.rename(on_s3.path / "moved")
    on_s3.drain()
    assert on_s3.source.names() == {"/".join(["moved", *levels, name])}


def test_dot_and_dot_dot_are_listed_with_their_inodes(root: Path) -> None:
    (root / "dir").mkdir()
    inodes = {}
    reader = os.popen(f"ls -1ai '{root}/dir'")
    for line in reader.read().split("\n")[:-1]:
        inode, name = line.split()
        inodes[name] = int(inode)
    reader.close()
    assert inodes == {".": (root / "dir").stat().st_ino, "..": root.stat().st_ino}


def test_files_and_directories_are_renamed(mounted: Mounted, root: Path) -> None:
    (root / "dir" / "sub").mkdir(parents=True)
    (root / "dir" / "one").write_bytes(b"1")
    (root / "dir" / "sub" / "two").write_bytes(b"2")
    mounted.drain()
    (root / "dir" / "sub" / "dirty").write_bytes(b"3")
    inode = (root / "dir" / "one").stat().st_ino
    (root / "dir").rename(root / "moved")
    assert (root / "moved" / "one").stat().st_ino == inode
    assert (root / "moved" / "sub" / "two").read_bytes() == b"2"
    assert (root / "moved" / "sub" / "dirty").read_bytes() == b"3"
    assert not (root / "dir").exists()
    with refused(errno.EINVAL):
        (root / "moved").rename(root / "moved" / "sub" / "inside")
    mounted.drain()
    assert mounted.source.names() == {"moved/one", "moved/sub/two", "moved/sub/dirty"}


def test_rename_without_replacing(root: Path) -> None:
    (root / "a").write_bytes(b"a")
    (root / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        renameat2(root / "a", root / "b", RENAME_NOREPLACE)
    renameat2(root / "a", root / "c", RENAME_NOREPLACE)
    assert {name: (root / name).read_bytes() for name in os.listdir(root)} == {"b": b"b", "c": b"a"}


def test_names_are_exchanged_where_the_origin_can(mounted: Mounted, root: Path) -> None:
    (root / "a").write_bytes(b"a")
    (root / "b").write_bytes(b"bb")
    mounted.drain()
    if mounted.source.kind == "s3":
        with refused(errno.EINVAL):
            renameat2(root / "a", root / "b", RENAME_EXCHANGE)
        assert (root / "a").read_bytes() == b"a"
        return
    renameat2(root / "a", root / "b", RENAME_EXCHANGE)
    assert ((root / "a").read_bytes(), (root / "b").read_bytes()) == (b"bb", b"a")
    assert mounted.source.get("a") == b"bb"


def test_symbolic_links(mounted: Mounted, root: Path) -> None:
    (root / "target").write_bytes(b"x")
    (root / "link").symlink_to("target")
    (root / "dangling").symlink_to("/nowhere/" + "y" * 200)
    assert (root / "link").read_bytes() == b"x"
    assert os.readlink(root / "dangling") == "/nowhere/" + "y" * 200
    assert (root / "dangling").lstat().st_size == 209
    mounted.cold()
    assert os.readlink(root / "link") == "target"
    with refused(errno.EINVAL):
        os.readlink(root / "target")
    (root / "link").unlink()
    assert (root / "target").read_bytes() == b"x"


def test_hard_links_where_the_origin_has_them(mounted: Mounted, root: Path) -> None:
    (root / "one").write_bytes(b"x")
    mounted.drain()
    if mounted.source.kind == "s3":
        with refused(errno.ENOTSUP):
            os.link(root / "one", root / "two")
        return
    os.link(root / "one", root / "two")
    assert (root / "one").stat().st_ino == (root / "two").stat().st_ino
    assert (root / "one").stat().st_nlink == 2
    with open(root / "two", "ab") as file:
        file.write(b"y")
    assert (root / "one").read_bytes() == b"xy"
    mounted.drain()
    assert mounted.source.get("one") == mounted.source.get("two") == b"xy"
    (root / "one").unlink()
    assert (root / "two").read_bytes() == b"xy"
    assert (root / "two").stat().st_nlink == 1


def test_a_deleted_and_a_renamed_directory_leave_nothing_at_the_origin(mounted: Mounted, root: Path) -> None:
    """C03."""
    (root / "old").mkdir()
    (root / "old" / "f").write_bytes(b"x" * 100_000)
    (root / "old").rename(root / "new")
    shutil.rmtree(root / "new")
    mounted.drain()
    assert mounted.source.names() == set()
    assert os.listdir(root) == []


def test_warm_answers_follow_every_change(mounted: Mounted, root: Path) -> None:
    """C20, through the mount."""
    (root / "d").mkdir()

    def warm() -> None:
        os.listdir(root / "d")
        for name in ("a", "b", "c"):
            (root / "d" / name).exists()

    warm()
    (root / "d" / "a").write_bytes(b"1")
    assert os.listdir(root / "d") == ["a"]
    warm()
    (root / "d" / "a").rename(root / "d" / "b")
    assert os.listdir(root / "d") == ["b"]
    assert not (root / "d" / "a").exists()
    warm()
    (root / "d" / "b").write_bytes(b"22")
    assert (root / "d" / "b").stat().st_size == 2
    (root / "d" / "c").mkdir()
    assert (root / "d" / "c").is_dir()
    assert sorted(os.listdir(root / "d")) == ["b", "c"]
    (root / "d" / "b").unlink()
    assert not (root / "d" / "b").exists()
    (root / "d" / "c").rmdir()
    assert os.listdir(root / "d") == []


def test_what_others_change_is_seen_within_the_time_to_live(mounted: Mounted, root: Path) -> None:
    """The reader's part of C04: whole old or whole new, and new in the end."""
    mounted.source.put("object", b"first version")
    assert (root / "object").read_bytes() == b"first version"
    mounted.source.put("object", b"second")
    seen = until(root / "object", b"first version")
    assert seen == b"second"
    assert (root / "object").stat().st_size == 6
    mounted.source.put("new", b"x")
    wait_for(lambda: "new" in os.listdir(root))
    mounted.source.delete("object")
    wait_for(lambda: not (root / "object").exists())


def until(path: Path, old: bytes) -> bytes:
    """Read until it changes; each answer on the way must be the whole old one."""
    found = old

    def changed() -> bool:
        nonlocal found
        found = path.read_bytes()
        return found != old

    wait_for(changed)
    return found


def test_a_linked_file_that_is_being_written_can_lose_and_change_names(on_posix: Mounted) -> None:
    root = on_posix.path
    (root / "a").write_bytes(b"old")
    os.link(root / "a", root / "b")
    os.link(root / "a", root / "c")
    with (root / "a").open("r+b", buffering=0) as file:
        file.write(b"new bytes")
        (root / "a").rename(root / "d")
        file.write(b", and more")
        (root / "c").unlink()
        (root / "e").write_bytes(b"another")
        (root / "e").rename(root / "d")
        file.write(b" of them")
        assert (root / "b").read_bytes() == b"new bytes, and more of them"
    assert {path.name: path.read_bytes() for path in root.iterdir()} == {
        "b": b"new bytes, and more of them",
        "d": b"another",
    }
    on_posix.drain()
    assert on_posix.source.get("b") == b"new bytes, and more of them"
