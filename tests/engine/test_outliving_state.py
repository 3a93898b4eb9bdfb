"""What an engine keeps for the next one beside the catalog and the journal: removed files, empty directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rig.writing_desk import in_trio
from tiercache.engine.orphans import Orphan, Orphans
from tiercache.engine.remembered_keys import REWRITE_LINES, RememberedKeys
from tiercache.model import Entry, Kind

ENTRY = Entry(Kind.FILE, 7, 5, 0o640, mtime_ns=3, etag="e", xattrs=((b"user.x", b"y"),))


def read(found: Orphan) -> bytes:
    return Path(found.path).read_bytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    return path


@in_trio
async def test_a_removed_file_is_found_by_the_next_engine(tmp_path: Path, file: Path) -> None:
    orphans = Orphans(tmp_path)
    await orphans.keep(7, str(file), ENTRY, staged=True)
    os.unlink(file)
    orphans.update(7, ENTRY._replace(mode=0o600))
    found = Orphans(tmp_path).find(7)
    assert found is not None
    assert read(found) == b"bytes"
    assert (found.entry, found.staged) == (ENTRY._replace(mode=0o600), True)
    assert Orphans(tmp_path).find(8) is None


@in_trio
async def test_a_file_without_any_name_left_is_kept_by_its_descriptor(tmp_path: Path, file: Path) -> None:
    """Kept twice, too: what it was kept as before may be the only name that it has."""
    orphans = Orphans(tmp_path)
    descriptor = os.open(file, os.O_RDONLY)
    await orphans.keep(7, f"/proc/self/fd/{descriptor}", ENTRY, staged=False)
    os.unlink(file)
    await orphans.keep(7, f"/proc/self/fd/{descriptor}", ENTRY, staged=False)
    os.close(descriptor)
    found = orphans.find(7)
    assert found is not None
    assert read(found) == b"bytes"
    assert sorted(os.listdir(tmp_path / "open")) == ["7", "7.entry"]


@in_trio
async def test_a_file_of_another_disk_is_copied(tmp_path: Path) -> None:
    memory = os.memfd_create("ram", os.MFD_CLOEXEC)
    os.write(memory, b"in memory")
    orphans = Orphans(tmp_path)
    await orphans.keep(7, f"/proc/self/fd/{memory}", ENTRY, staged=False)
    os.close(memory)
    found = orphans.find(7)
    assert found is not None
    assert read(found) == b"in memory"


@in_trio
async def test_what_nobody_has_open_goes(tmp_path: Path, file: Path) -> None:
    orphans = Orphans(tmp_path)
    for inode in (7, 8, 9):
        await orphans.keep(inode, str(file), ENTRY, staged=False)
    orphans.drop(8)
    Orphans(tmp_path).sweep({9})
    assert sorted(os.listdir(tmp_path / "open")) == ["9", "9.entry"]


def test_empty_directories_are_remembered_by_the_next_engine_if_it_inherits(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "origin"
    kept = RememberedKeys(path)
    kept.add(b"a/\xff\n")
    kept.add(b"b")
    kept.discard(b"b")
    kept.replace({b"a/\xff\n", b"c"})
    with open(path, "ab") as file:
        file.write(b"+64")  # killed before the line's end
    again = RememberedKeys(path, inherit=True)
    assert set(again) == {b"a/\xff\n", b"c"}
    assert b"c" in again
    assert set(RememberedKeys(path)) == set()
    assert set(RememberedKeys(path, inherit=True)) == set()


def test_the_list_of_empty_directories_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "origin"
    kept = RememberedKeys(path)
    kept.add(b"stays")
    for _ in range(REWRITE_LINES):
        kept.add(b"comes")
        kept.discard(b"comes")
    assert path.read_bytes().count(b"\n") <= REWRITE_LINES + 2
    assert set(RememberedKeys(path, inherit=True)) == {b"stays"}
