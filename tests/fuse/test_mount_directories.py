"""C24: directories of every size, read while they change."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.mounts import EngineProcess, Mounted, Source, umount_when_free
from tiercache.origins.retry import ENTRIES_AT_ONCE

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


def fill(mounted: Mounted, number: int, directory: str = "dir") -> set[str]:
    names = {f"file-{index:06d}" for index in range(number)}
    if mounted.source.directory is not None:
        (mounted.source.directory / directory).mkdir()
        for name in names:
            os.mknod(mounted.source.directory / directory / name)
    else:
        for name in names:
            mounted.source.put(f"{directory}/{name}", b"")
    return names


def delete_every_other(directory: Path) -> list[str]:
    """Delete while the directory is read; returns what was seen."""
    seen = []
    with os.scandir(directory) as entries:
        for position, entry in enumerate(entries):
            seen.append(entry.name)
            if position % 2 == 0:
                os.unlink(entry.path)
    return seen


@pytest.mark.parametrize("number", [0, 1, 23, 24, 100])
def test_deleting_while_reading_shows_each_survivor_once(mounted: Mounted, root: Path, number: int) -> None:
    names = fill(mounted, number)
    if not names:
        (root / "dir").mkdir(exist_ok=True)
    assert sorted(delete_every_other(root / "dir")) == sorted(names)
    survivors = set(os.listdir(root / "dir"))
    assert len(survivors) == number // 2
    for name in names - survivors:
        assert not (root / "dir" / name).exists(), "a line of the old snapshot must not bring a deleted name back"


def test_the_work_of_a_listing_grows_with_its_length_only(
    engine: EngineProcess, posix: Source, driver: str, mountpoint: Path
) -> None:
    """One listing, in steps of some names, one call for each name that is deleted, and none besides."""
    mounted = Mounted(engine, posix, mountpoint, {"profile": "weights", "mount_options": {"driver": driver}})
    names = {number: fill(mounted, number, f"of{number}") for number in (100, 1000)}
    mounted.mount()  # this profile believes a listing for a minute, so that the count does not hang on the time taken
    for number, wanted in names.items():
        directory = mountpoint / f"of{number}"
        directory.stat()
        before = calls_to_origins(engine)
        assert sorted(delete_every_other(directory)) == sorted(wanted)
        assert len(os.listdir(directory)) == number // 2
        assert calls_to_origins(engine) - before == Counter(list=1 + number // ENTRIES_AT_ONCE, delete=number // 2)
    umount_when_free(engine, mountpoint)


def calls_to_origins(engine: EngineProcess) -> Counter[str]:
    """How often each of the origins' operations was called so far, by name."""
    calls: Counter[str] = Counter()
    for labels, number in engine.client.status()["metrics"].get("origin_requests_total", {}).items():
        calls[labels.partition("/")[0]] += int(number)
    return calls


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_hundred_thousand_names_are_told_once_each_while_some_go(
    engine: EngineProcess, posix: Source, mountpoint: Path
) -> None:
    mounted = Mounted(engine, posix, mountpoint, {"profile": "weights", "mount_options": {"driver": "kernel"}})
    names = fill(mounted, 100_000)
    mounted.mount()
    directory = mountpoint / "dir"
    stream = RawDirectory(directory)
    lines = iter(stream)
    seen = [next(lines)]
    doomed = sorted(names - set(seen))[::1000]
    for name in doomed:
        (directory / name).unlink()
    seen += lines
    stream.close()
    assert len(seen) == len(set(seen))
    assert names - set(doomed) <= set(seen) <= names
    umount_when_free(engine, mountpoint)


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
