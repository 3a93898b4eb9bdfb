"""What an earlier run left in the catalog's directory decides whether it is used; nothing stops a start."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rig.refusing_disk import refusing_disk
from tiercache.catalog import Catalog, CatalogReader, state
from tiercache.errors import Broken, EngineUnreachable, NoSpace
from tiercache.model import Entry, Kind, OriginId

FILE = Entry(Kind.FILE, 5, etag='"e"')


def fill(directory: Path, origin: OriginId, *, clean: bool, boot_id: str = "boot-1", names: int = 2_000) -> None:
    catalog = Catalog(directory, boot_id=boot_id)
    with catalog.batch():
        for number in range(names):
            catalog.put_entry(origin, b"d/%06d" % number, FILE._replace(inode=number + 2))
    catalog.close(clean=clean)


def grow(catalog: Catalog, origin: OriginId) -> None:
    with catalog.batch():
        for number in range(2_000):
            catalog.put_entry(origin, b"e/%06d" % number, FILE)


def kept(directory: Path, origin: OriginId, *, boot_id: str = "boot-1") -> bool:
    """Whether a start finds the names of ``fill``; either way the catalog must work."""
    catalog = Catalog(directory, boot_id=boot_id)
    found = catalog.entry(origin, b"d/000001") is not None
    catalog.put_entry(origin, b"new", FILE)
    assert catalog.entry(origin, b"new") == FILE
    catalog.close()
    return found


def change_state(directory: Path, **changes: Any) -> None:
    path = directory / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("clean", "boot_id", "expected"),
    [(True, "boot-1", True), (True, "boot-2", True), (False, "boot-1", True), (False, "boot-2", False)],
    ids=["clean stop", "clean stop and reboot", "crash of the engine", "crash of the machine"],
)
def test_only_a_crash_of_the_machine_empties_the_catalog(
    directory: Path, origin: OriginId, clean: bool, boot_id: str, expected: bool
) -> None:
    fill(directory, origin, clean=clean)
    assert kept(directory, origin, boot_id=boot_id) is expected


def test_an_unknown_boot_counts_as_another(directory: Path, origin: OriginId) -> None:
    fill(directory, origin, clean=False, boot_id="")
    assert not kept(directory, origin, boot_id="")


def test_another_format_is_set_aside_and_kept(directory: Path, origin: OriginId) -> None:
    fill(directory, origin, clean=True)
    change_state(directory, format=state.FORMAT + 1)
    assert not kept(directory, origin)
    assert (directory.with_name("catalog.aside") / "data.mdb").exists()


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b'{"format": 1}', b"\xff\xfe"])
def test_a_state_that_makes_no_sense_is_set_aside(directory: Path, origin: OriginId, content: bytes) -> None:
    fill(directory, origin, clean=True)
    (directory / "state.json").write_bytes(content)
    assert not kept(directory, origin)


def test_files_of_somebody_else_are_set_aside(directory: Path, origin: OriginId) -> None:
    directory.mkdir()
    (directory / "data.mdb").write_bytes(b"hello" * 1_000)
    assert not kept(directory, origin)
    directory.with_name("catalog.aside").rename(directory.with_name("earlier"))


def test_a_plain_file_in_the_catalogs_place_is_set_aside(directory: Path, origin: OriginId) -> None:
    directory.write_text("hello")
    assert not kept(directory, origin)


@pytest.mark.parametrize("clean", [True, False])
def test_a_truncated_file_is_set_aside(directory: Path, origin: OriginId, clean: bool) -> None:
    fill(directory, origin, clean=clean)
    os.truncate(directory / "data.mdb", (directory / "data.mdb").stat().st_size // 3)
    assert not kept(directory, origin)


@pytest.mark.parametrize("seed", range(4))
def test_a_file_with_garbage_in_it_never_stops_a_start(directory: Path, origin: OriginId, seed: int) -> None:
    fill(directory, origin, clean=False)
    size = (directory / "data.mdb").stat().st_size
    with open(directory / "data.mdb", "r+b") as file:
        for page in range(2 + seed, size // 4096, 4):
            file.seek(page * 4096)
            file.write(bytes([0xA5 ^ seed]) * 4096)
    assert not kept(directory, origin)


def test_an_empty_data_file_is_set_aside(directory: Path, origin: OriginId) -> None:
    fill(directory, origin, clean=False)
    os.truncate(directory / "data.mdb", 0)
    assert not kept(directory, origin)


def test_damage_that_was_met_empties_the_next_start(directory: Path, origin: OriginId) -> None:
    fill(directory, origin, clean=False)
    state.mark_damaged(directory)
    assert not kept(directory, origin)


def read_a_name(catalog: Catalog, origin: OriginId) -> None:
    catalog.entry(origin, b"d/000001")


def list_a_directory(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_listing(origin, b"e", [(b"name", FILE)], 1)


def drop_a_name(catalog: Catalog, origin: OriginId) -> None:
    catalog.drop_entry(origin, b"d/000001")


@pytest.mark.parametrize("meet", [read_a_name, list_a_directory, drop_a_name])
def test_damage_that_was_met_empties_the_next_start_although_the_catalog_was_closed_in_order(
    directory: Path, origin: OriginId, meet: Callable[[Catalog, OriginId], None]
) -> None:
    fill(directory, origin, clean=True)
    catalog = Catalog(directory, boot_id="boot-1")
    with open(directory / "data.mdb", "r+b") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        file.seek(2 * 4096)  # what is before tells where the roots are
        file.write(bytes(size_bytes - 2 * 4096))
    with pytest.raises((Broken, EngineUnreachable)):
        meet(catalog, origin)
    catalog.close()
    assert not kept(directory, origin)


def test_a_catalog_that_its_disk_did_not_take_serves_on_and_starts_empty(tmp_path: Path, origin: OriginId) -> None:
    with refusing_disk(tmp_path / "disk") as disk:
        directory = disk.path / "catalog"
        fill(directory, origin, clean=True)
        catalog = Catalog(directory, boot_id="boot-1")
        disk.refuse()
        grow(catalog, origin)
        with pytest.raises(NoSpace):
            catalog.sync()
        catalog.put_entry(origin, b"new", FILE)
        assert catalog.entry(origin, b"new") == catalog.entry(origin, b"e/000001") == FILE
        disk.heal()
        catalog.close()
        assert not kept(directory, origin)


def test_a_catalog_is_closed_although_its_disk_fails(tmp_path: Path, origin: OriginId) -> None:
    with refusing_disk(tmp_path / "disk") as disk:
        directory = disk.path / "catalog"
        fill(directory, origin, clean=True)
        catalog = Catalog(directory, boot_id="boot-1")
        disk.refuse()
        grow(catalog, origin)
        catalog.close()
        disk.heal()
        assert not kept(directory, origin, boot_id="boot-2")


def test_an_interrupted_start_leaves_nothing_that_stops_the_next(directory: Path, origin: OriginId) -> None:
    building = directory.with_name("catalog.new")
    building.mkdir()
    (building / "data.mdb").write_bytes(b"half")
    assert not kept(directory, origin)
    assert not building.exists()


def test_inode_numbers_are_not_reused_by_a_catalog_that_starts_anew(directory: Path) -> None:
    catalog = Catalog(directory, boot_id="boot-1")
    earlier = [catalog.new_inode() for _ in range(3)]
    catalog.close(clean=False)
    state.set_unusable_aside(directory, "boot-2")
    os.utime(directory.with_name("catalog.aside"))
    catalog = Catalog(directory, boot_id="boot-2")
    assert catalog.new_inode() not in earlier
    catalog.close()


def test_a_reader_without_a_catalog_says_that_there_is_none(directory: Path) -> None:
    with pytest.raises(EngineUnreachable, match="no catalog yet"):
        CatalogReader(directory)
    directory.mkdir()
    with pytest.raises(EngineUnreachable, match="no catalog yet"):
        CatalogReader(directory)


def test_a_reader_of_another_format_is_refused(directory: Path, origin: OriginId, monkeypatch: Any) -> None:
    fill(directory, origin, clean=True)
    monkeypatch.setattr("tiercache.catalog.reader.FORMAT", state.FORMAT + 1)
    with pytest.raises(EngineUnreachable, match="format"):
        CatalogReader(directory)


def test_a_closed_catalog_refuses_to_be_used(directory: Path, origin: OriginId) -> None:
    catalog = Catalog(directory)
    catalog.put_entry(origin, b"k", FILE)
    catalog.close()
    catalog.close()
    with pytest.raises(EngineUnreachable):
        catalog.entry(origin, b"k")
    with pytest.raises(EngineUnreachable):
        catalog.put_entry(origin, b"k", FILE)


def test_a_full_reader_table_is_told_and_recovers(
    directory: Path, origin: OriginId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.catalog.environment.READERS_LIMIT", 4)
    catalog = Catalog(directory)
    catalog.put_entry(origin, b"k", FILE)
    held = [catalog._environment.lmdb.begin() for _ in range(4)]
    with pytest.raises(NoSpace, match="all 4 reader slots"):
        catalog.resolve(origin, b"k")
    held.pop().abort()
    assert catalog.resolve(origin, b"k") == (FILE, None)
    for transaction in held:
        transaction.abort()
    catalog.close()
