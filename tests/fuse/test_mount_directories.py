"""C24: directories of every size, read while they change."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.mounts import EngineProcess, Mounted, Source, umount_when_free

libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.c_void_p
for function in (libc.readdir, libc.rewinddir, libc.closedir):
    function.argtypes = [ctypes.c_void_p]

_NAME_OFFSET = 19


class RawDirectory:
    """opendir(3) and friends, which Python hides."""

    def __init__(self, path: Path) -> None:
        self._stream = libc.opendir(os.fsencode(path))
        assert self._stream

    def __iter__(self) -> Iterator[str]:
        while address := libc.readdir(self._stream):
            name = os.fsdecode(ctypes.string_at(address + _NAME_OFFSET))
            if name not in (".", ".."):
                yield name

    def rewind(self) -> None:
        libc.rewinddir(self._stream)

    def close(self) -> None:
        libc.closedir(self._stream)


def fill(mounted: Mounted, number: int) -> set[str]:
    names = {f"file-{index:06d}" for index in range(number)}
    if mounted.source.directory is not None:
        (mounted.source.directory / "dir").mkdir()
        for name in names:
            (mounted.source.directory / "dir" / name).touch()
    else:
        for name in names:
            mounted.source.put(f"dir/{name}", b"")
    return names


@pytest.mark.parametrize("number", [1, 23, 24, 100])
def test_deleting_while_reading_shows_each_survivor_once(mounted: Mounted, root: Path, number: int) -> None:
    names = fill(mounted, number)
    seen = []
    with os.scandir(root / "dir") as entries:
        for position, entry in enumerate(entries):
            seen.append(entry.name)
            if position % 2 == 0:
                os.unlink(entry.path)
    assert sorted(seen) == sorted(names)
    survivors = set(os.listdir(root / "dir"))
    assert len(survivors) == number // 2
    for name in names - survivors:
        assert not (root / "dir" / name).exists(), "a line of the old snapshot must not bring a deleted name back"


def test_an_empty_directory_ends_at_once(root: Path) -> None:
    (root / "empty").mkdir()
    assert os.listdir(root / "empty") == []


def test_what_is_deleted_ahead_of_the_reader_is_not_told(
    engine: EngineProcess, posix: Source, driver: str, mountpoint: Path
) -> None:
    assert posix.directory is not None
    for number in range(3000):
        (posix.directory / f"file-{number:06d}").touch()
    engine.mount(posix, mountpoint, profile="weights", mount_options={"driver": driver})  # one listing lasts a minute
    assert len(os.listdir(mountpoint)) == 3000
    names = os.listdir(mountpoint)  # the first listing has the origin's order, later ones the catalog's
    doomed = names[-40:]  # further ahead than kernel and libc read
    stream = RawDirectory(mountpoint)
    lines = iter(stream)
    seen = [next(lines)]
    for name in doomed:
        os.unlink(mountpoint / name)
    seen += lines
    stream.close()
    assert sorted(seen) == sorted(names[:-40])
    umount_when_free(engine, mountpoint)


def test_two_streams_and_rewinding(on_posix: Mounted) -> None:
    names = fill(on_posix, 500)
    directory = on_posix.path / "dir"
    one, two = RawDirectory(directory), RawDirectory(directory)
    lines = iter(one)
    first = {next(lines) for _ in range(100)}
    assert set(two) == names
    assert first | set(lines) == names
    (directory / "later").touch()
    one.rewind()
    assert set(one) == names | {"later"}
    one.close()
    two.close()


def test_a_file_written_during_the_listing_keeps_its_size(on_posix: Mounted) -> None:
    names = sorted(fill(on_posix, 400))
    written = names[::10]
    directory = on_posix.path / "dir"
    with os.scandir(directory) as entries:
        next(entries)
        for name in written:
            (directory / name).write_bytes(b"12345")
        for _ in entries:
            pass
    assert {(directory / name).stat().st_size for name in written} == {5}


def test_a_big_directory_is_listed_whole(on_posix: Mounted) -> None:
    names = fill(on_posix, 10_000)
    with os.scandir(on_posix.path / "dir") as entries:
        assert {entry.name for entry in entries if entry.is_file()} == names
