"""What Python's own shutil and os do with trees: copied, moved, removed, replaced, listed while they shrink."""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest

from rig.mounts import Mounted, refused


def make_tree(top: Path) -> None:
    for number in range(10):
        path = top / f"a{number % 2}" / f"b{number % 3}" / f"file{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d " % number * number * 100)
    (top / "link").symlink_to("a0")


def same(left: Path, right: Path) -> bool:
    """Whether two trees have equal names and bytes, all the way down."""
    compared = filecmp.dircmp(left, right)
    _, mismatch, errors = filecmp.cmpfiles(left, right, compared.common_files, shallow=False)
    if compared.left_only or compared.right_only or compared.common_funny or mismatch or errors:
        return False
    return all(same(left / name, right / name) for name in compared.common_dirs)


def test_trees_are_copied_moved_and_removed(mounted: Mounted, root: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    shutil.copytree(tmp_path / "tree", root / "in", symlinks=True)
    shutil.copytree(root / "in", root / "merged", symlinks=True)
    shutil.copytree(tmp_path / "tree", root / "merged", symlinks=True, dirs_exist_ok=True, ignore=lambda *_: ["link"])
    shutil.move(root / "in", root / "moved")
    shutil.move(root / "merged", tmp_path / "out")
    shutil.copytree(tmp_path / "tree", tmp_path / "local", symlinks=True)
    shutil.move(tmp_path / "local", root / "from outside")
    for copy in (root / "moved", root / "from outside", tmp_path / "out"):
        assert same(copy, tmp_path / "tree")
    assert sorted(os.listdir(root)) == ["from outside", "moved"]
    mounted.drain()
    mounted.cold()
    assert same(root / "moved", tmp_path / "tree")
    shutil.rmtree(root / "moved")
    shutil.rmtree(root / "from outside")
    assert os.listdir(root) == []
    mounted.drain()
    assert mounted.source.names() == set()


def test_archives_and_temporary_files(root: Path, tmp_path: Path) -> None:
    make_tree(root / "tree")
    archive = shutil.make_archive(str(root / "packed"), "zip", root / "tree")
    with zipfile.ZipFile(archive) as packed:
        assert packed.testzip() is None
    shutil.unpack_archive(archive, root / "unpacked")
    assert same(root / "tree" / "a0", root / "unpacked" / "a0")
    with tempfile.TemporaryDirectory(dir=root) as directory:
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            file.write(b"x" * 10_000)
            file.flush()
            assert Path(file.name).stat().st_size == 10_000
        with tempfile.TemporaryFile(dir=directory) as unnamed:
            unnamed.write(b"y" * 10_000)
            unnamed.seek(0)
            assert unnamed.read() == b"y" * 10_000
        assert os.listdir(directory) == []


def test_replacing_keeps_one_of_both(mounted: Mounted, root: Path) -> None:
    """The save that editors and checkpointers do: write beside, replace."""
    for number in range(5):
        new = root / "state.new"
        new.write_bytes(b"%d" % number * 1000)
        os.replace(new, root / "state")
        assert (root / "state").read_bytes() == b"%d" % number * 1000
    assert os.listdir(root) == ["state"]
    with refused(errno.EISDIR):
        (root / "dir").mkdir()
        os.replace(root / "state", root / "dir")
    with refused(errno.ENOTDIR):
        os.replace(root / "dir", root / "state")
    mounted.drain()
    assert mounted.source.get("state") == b"4" * 1000


def test_scandir_while_everything_is_deleted(root: Path) -> None:
    """rmtree by hand, in one pass over one stream."""
    for number in range(60):
        (root / f"file{number}").touch()
    seen = set()
    with os.scandir(root) as entries:
        for entry in entries:
            seen.add(entry.name)
            os.unlink(entry.path)
    assert seen == {f"file{number}" for number in range(60)}
    assert os.listdir(root) == []


def test_directory_descriptors(root: Path) -> None:
    """Names relative to an open directory, which is renamed and removed while it is open."""
    (root / "dir").mkdir()
    descriptor = os.open(root / "dir", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.mkdir("sub", dir_fd=descriptor)
        os.close(os.open("sub/file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        os.rename(root / "dir", root / "moved")
        assert os.listdir(descriptor) == ["sub"]
        os.rename("sub/file", "file", src_dir_fd=descriptor, dst_dir_fd=descriptor)
        os.symlink("file", "link", dir_fd=descriptor)
        assert os.readlink("link", dir_fd=descriptor) == "file"
        os.fsync(descriptor)
        for name in ("file", "link"):
            os.unlink(name, dir_fd=descriptor)
        os.rmdir("sub", dir_fd=descriptor)
        os.rmdir(root / "moved")
        with refused(errno.ENOENT):
            os.mkdir("late", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def test_hard_links_count_and_share(on_posix: Mounted) -> None:
    path = on_posix.path
    (path / "one").write_bytes(b"1")
    os.link(path / "one", path / "two")
    (path / "sub").mkdir()
    os.link(path / "two", path / "sub" / "three")
    assert {(path / name).stat().st_nlink for name in ("one", "two", "sub/three")} == {3}
    assert os.path.samefile(path / "one", path / "sub" / "three")
    (path / "two").write_bytes(b"22")
    (path / "one").unlink()
    assert (path / "sub" / "three").read_bytes() == b"22"
    assert (path / "two").stat().st_nlink == 2
    with pytest.raises(FileExistsError):
        os.link(path / "two", path / "sub" / "three")
    with refused(errno.EPERM):
        os.link(path / "sub", path / "no directories")


def test_the_beginning_of_1970_is_a_time_like_others(mounted: Mounted, root: Path) -> None:
    """Archives that are to be equal every time give it to all their files."""
    for name in ("dirty", "clean", "changed"):
        (root / name).write_bytes(b"x")
    mounted.drain()
    with open(root / "dirty", "ab", buffering=0) as file:
        file.write(b"y")
        for name in ("dirty", "clean", "changed"):
            os.utime(root / name, ns=(0, 0))
    mounted.drain()
    (root / "changed").chmod(0o600)
    for _ in range(2):
        for name in ("dirty", "clean", "changed"):
            assert ((root / name).stat().st_atime_ns, (root / name).stat().st_mtime_ns) == (0, 0)
        mounted.drain()
        mounted.cold()
    if mounted.source.directory is not None:
        assert {path.stat().st_mtime_ns for path in mounted.source.directory.iterdir()} == {0}


@pytest.mark.parametrize("name", ["file", "sub/file"])
def test_access_and_times(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(exist_ok=True)
    before = path.parent.stat().st_mtime_ns
    path.write_bytes(b"x")
    assert path.parent.stat().st_mtime_ns >= before
    os.utime(path, ns=(-1_000_000_001, 4_000_000_000_000_000_001))
    assert path.stat().st_atime_ns == -1_000_000_001
    assert path.stat().st_mtime_ns == 4_000_000_000_000_000_001
    os.utime(path, ns=(0, 0))
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (0, 0)
    os.utime(path)
    assert path.stat().st_mtime_ns > 1_600_000_000_000_000_000
    assert os.access(path, os.R_OK | os.W_OK)
    path.chmod(0o755)
    assert os.access(path, os.X_OK)
