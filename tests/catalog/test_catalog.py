"""The engine's catalog by itself: entries, inodes, trees, versions, batches."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rig.small_disk import free_bytes, small_disk
from tiercache.catalog import Catalog, CatalogReader, Copy, VersionRecord
from tiercache.errors import InvalidArgument, InvalidName, NoSpace
from tiercache.model import Entry, Kind, OriginId, Tier, VersionId, version_id

FILE = Entry(Kind.FILE, 5, size_bytes=3, etag='"e"')


def record(origin: OriginId, key: bytes) -> VersionRecord:
    return VersionRecord(origin, key, '"e"', 3, True, (Copy(Tier.NVME, 1, 2, 3),), b"", b"checksum")


def test_resolve_gives_entry_and_version_together(catalog: Catalog, origin: OriginId) -> None:
    version = version_id(origin, b"a/f", '"e"')
    entry = FILE._replace(version=version)
    assert catalog.resolve(origin, b"a/f") is None
    catalog.put_entry(origin, b"a/f", entry)
    assert catalog.resolve(origin, b"a/f") == (entry, None)
    catalog.put_version(version, record(origin, b"a/f"))
    assert catalog.resolve(origin, b"a/f") == (entry, record(origin, b"a/f"))
    catalog.drop_version(version)
    assert catalog.resolve(origin, b"a/f") == (entry, None)


def test_a_remembered_absence_is_an_entry_but_not_a_child(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"a/gone", Entry(Kind.ABSENT, 0, checked_ns=7))
    assert catalog.resolve(origin, b"a/gone") == (Entry(Kind.ABSENT, 0, checked_ns=7), None)
    assert catalog.children(origin, b"a") == []


def test_an_inode_follows_its_name_and_is_unknown_after_the_last(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"one", FILE)
    catalog.put_entry(origin, b"two", FILE)  # a hard link
    catalog.drop_entry(origin, b"one")
    assert catalog.name_of_inode(5) == (origin, b"two")
    catalog.put_entry(origin, b"two", FILE._replace(inode=6))
    assert catalog.name_of_inode(5) is None
    assert catalog.name_of_inode(6) == (origin, b"two")
    catalog.put_entry(origin, b"two", Entry(Kind.ABSENT, 0))
    assert catalog.name_of_inode(6) is None


def test_inode_numbers_are_never_given_out_twice(directory: Path) -> None:
    seen: set[int] = set()
    for clean in (True, False, True):
        catalog = Catalog(directory)
        numbers = [catalog.new_inode() for _ in range(1_500)]
        assert seen.isdisjoint(numbers)
        assert len(set(numbers)) == 1_500
        seen.update(numbers)
        catalog.close(clean=clean)


def test_inode_numbers_of_an_aborted_batch_are_not_given_out_again(directory: Path) -> None:
    catalog = Catalog(directory)
    given: list[int] = []

    def interrupted() -> None:
        with catalog.batch():
            given.extend(catalog.new_inode() for _ in range(3_000))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert catalog.new_inode() not in given
    catalog.close(clean=False)
    catalog = Catalog(directory)
    assert catalog.new_inode() not in given
    catalog.close()


def test_move_tree_takes_children_inodes_and_listings_along(catalog: Catalog, origin: OriginId) -> None:
    long = b"n" * 255 + b"/" + b"m" * 255
    catalog.put_entry(origin, b"old", Entry(Kind.DIRECTORY, 1))
    catalog.put_listing(origin, b"old", [(b"f", Entry(Kind.FILE, 2)), (b"s", Entry(Kind.DIRECTORY, 3))], 77)
    catalog.put_entry(origin, b"old/s/g", Entry(Kind.FILE, 4))
    catalog.put_entry(origin, b"old/" + long, Entry(Kind.FILE, 6))
    catalog.put_entry(origin, b"older", Entry(Kind.FILE, 7))
    catalog.put_entry(origin, b"new/replaced", Entry(Kind.FILE, 8))
    moved = catalog.move_tree(origin, b"old", b"new")
    assert {(old, new, entry.inode) for old, new, entry in moved} == {
        (b"old", b"new", 1),
        (b"old/f", b"new/f", 2),
        (b"old/s", b"new/s", 3),
        (b"old/s/g", b"new/s/g", 4),
        (b"old/" + long, b"new/" + long, 6),
    }
    for _, new, entry in moved:
        assert catalog.entry(origin, new) == entry
        assert catalog.name_of_inode(entry.inode) == (origin, new)
    assert catalog.children(origin, b"old") == []
    assert catalog.entry(origin, b"new/replaced") is None
    assert catalog.name_of_inode(8) is None
    assert catalog.entry(origin, b"older") == Entry(Kind.FILE, 7)
    assert (catalog.listed_ns(origin, b"old"), catalog.listed_ns(origin, b"new")) == (0, 77)


def test_a_tree_that_moves_onto_another_leaves_what_only_that_has(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"old", Entry(Kind.DIRECTORY, 1))
    catalog.put_entry(origin, b"old/f", Entry(Kind.FILE, 2))
    catalog.put_entry(origin, b"old/arrived", Entry(Kind.ABSENT, 0))
    catalog.put_entry(origin, b"new", Entry(Kind.DIRECTORY, 3))
    catalog.put_entry(origin, b"new/arrived", Entry(Kind.FILE, 4))
    catalog.put_entry(origin, b"new/f", Entry(Kind.ABSENT, 0))
    moved = catalog.move_tree(origin, b"old", b"new", onto=True)
    assert {(old, entry.inode) for old, _, entry in moved} == {(b"old", 1), (b"old/f", 2)}
    names = {1: b"new", 2: b"new/f", 4: b"new/arrived"}
    assert {inode: catalog.name_of_inode(inode) for inode in names} == {i: (origin, name) for i, name in names.items()}
    assert catalog.name_of_inode(3) is None
    assert catalog.entry(origin, b"old/arrived") is None


def test_a_directory_cannot_move_into_itself(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"a/b", FILE)
    with pytest.raises(InvalidArgument):
        catalog.move_tree(origin, b"a", b"a/c")
    assert catalog.move_tree(origin, b"a", b"a") == []
    assert catalog.entry(origin, b"a/b") == FILE


def test_drop_tree_forgets_all_below_and_nothing_beside(catalog: Catalog, origin: OriginId) -> None:
    below = [b"d", b"d/a", b"d/b/c", b"d//x", b"d/" + b"y" * 600]
    beside = [b"d!", b"d0", b"d.x/a", b"e"]
    for number, key in enumerate(below + beside, 1):
        catalog.put_entry(origin, key, Entry(Kind.FILE, number))
        catalog.put_listing(origin, key + b"/l", [], number)
    catalog.drop_tree(origin, b"d")
    assert [key for key in below if catalog.entry(origin, key)] == []
    assert [key for key in below if catalog.listed_ns(origin, key + b"/l")] == []
    assert [key for key in beside if not catalog.entry(origin, key)] == []
    assert [key for key in beside if not catalog.listed_ns(origin, key + b"/l")] == []


def test_drop_tree_of_the_root_forgets_the_origin(catalog: Catalog, origin: OriginId) -> None:
    for number, key in enumerate([b"", b"a", b"a/b", b"/odd", b"z" * 600], 1):
        catalog.put_entry(origin, key, Entry(Kind.FILE, number))
        catalog.put_listing(origin, b"x" + key, [], 1)
    catalog.drop_tree(origin, b"")
    assert catalog.children(origin, b"") == []
    assert catalog.entry(origin, b"") is None
    assert catalog.listed_ns(origin, b"xa/b") == 0


def test_a_batch_is_kept_whole_or_not_at_all(catalog: Catalog, origin: OriginId, directory: Path) -> None:
    reader = CatalogReader(directory)
    with catalog.batch():
        catalog.put_entry(origin, b"a", FILE)
        with catalog.batch():
            catalog.put_entry(origin, b"b", FILE)
        assert catalog.resolve(origin, b"a") == (FILE, None)
        assert catalog.entry(origin, b"b") == FILE
        assert reader.entry(origin, b"a") is None
    assert reader.entry(origin, b"a") == FILE

    def failing() -> None:
        with catalog.batch():
            catalog.drop_entry(origin, b"a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert reader.entry(origin, b"a") == FILE
    reader.close()


def test_versions_are_told_in_order_while_they_change(catalog: Catalog, origin: OriginId) -> None:
    ids = [VersionId(number.to_bytes(16, "big")) for number in range(3_000)]
    with catalog.batch():
        for each in ids:
            catalog.put_version(each, record(origin, each))
    seen = []
    for version, found in catalog.versions():
        assert found.key == version
        catalog.drop_version(version)
        seen.append(version)
    assert seen == ids
    assert list(catalog.versions()) == []


def test_a_full_map_is_told_as_no_space_and_keeps_what_was(directory: Path, origin: OriginId) -> None:
    catalog = Catalog(directory, map_size_bytes=1 << 20)
    catalog.put_entry(origin, b"kept", FILE)
    huge = FILE._replace(xattrs=((b"user.x", b"v" * 60_000),))

    def fill() -> None:
        with catalog.batch():
            for number in range(40):
                catalog.put_entry(origin, b"%d" % number, huge)

    with pytest.raises(NoSpace, match="catalog is full"):
        fill()
    assert catalog.entry(origin, b"0") is None
    assert catalog.entry(origin, b"kept") == FILE
    catalog.drop_entry(origin, b"kept")
    catalog.close()


def test_a_change_that_failed_spoils_its_batch_whoever_takes_the_error(directory: Path, origin: OriginId) -> None:
    """LMDB would call the next change of the same transaction damage, and the next start would begin with nothing."""
    catalog = Catalog(directory, map_size_bytes=1 << 20)
    catalog.put_entry(origin, b"kept", FILE)
    huge = FILE._replace(xattrs=((b"user.x", b"v" * 60_000),))
    refused = 0

    def fill() -> None:
        nonlocal refused
        with catalog.batch():
            for number in range(40):
                try:
                    catalog.put_entry(origin, b"%d" % number, huge)
                except NoSpace:
                    refused += 1

    with pytest.raises(NoSpace, match="catalog is full"):
        fill()
    assert refused > 1
    assert catalog.entry(origin, b"0") is None, "none of it is kept"
    catalog.put_entry(origin, b"small", FILE._replace(inode=6))
    catalog.close()
    again = Catalog(directory, map_size_bytes=1 << 20)
    assert again.entry(origin, b"kept") == FILE, "nothing was taken for damage"
    again.close()


def test_versions_are_remembered_as_they_are(catalog: Catalog, origin: OriginId) -> None:
    """What the writer has in memory is what it wrote, forgot, or gave up."""
    version = VersionId(b"v" * 16)
    assert catalog.version(version) is None
    catalog.put_version(version, record(origin, b"a"))
    assert catalog.version(version) == record(origin, b"a")

    def give_up() -> None:
        with catalog.batch():
            catalog.put_version(version, record(origin, b"b"))
            assert catalog.version(version) == record(origin, b"b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        give_up()
    assert catalog.version(version) == record(origin, b"a")
    catalog.drop_version(version)
    assert catalog.version(version) is None


def test_a_full_disk_is_told_as_no_space_also_where_it_took_a_part(tmp_path: Path, origin: OriginId) -> None:
    """LMDB calls a write that was cut short an input/output error."""
    with small_disk(tmp_path / "disk", 4) as disk:
        catalog = Catalog(disk / "catalog")
        catalog.put_entry(origin, b"kept", FILE)
        huge = FILE._replace(xattrs=((b"user.x", b"v" * 60_000),))
        (disk / "others").write_bytes(b"\0" * (free_bytes(disk) - 64 * 1024))

        def fill() -> None:
            with catalog.batch():
                for number in range(10):
                    catalog.put_entry(origin, b"%d" % number, huge)

        with pytest.raises(NoSpace, match="disk of the catalog is full"):
            fill()
        assert catalog.entry(origin, b"0") is None
        assert catalog.entry(origin, b"kept") == FILE
        (disk / "others").unlink()
        fill()
        assert catalog.entry(origin, b"0") == huge
        catalog.close()


def test_the_run_id_changes_with_each_start(directory: Path) -> None:
    runs = set()
    for _ in range(3):
        catalog = Catalog(directory)
        runs.add(catalog.run_id())
        catalog.close()
    assert len(runs) == 3
    assert 0 not in runs


def test_a_batch_that_is_given_up_leaves_nothing_in_memory(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"a", FILE)
    catalog.put_listing(origin, b"", [(b"a", FILE)], 1)

    def give_up() -> None:
        with catalog.batch():
            catalog.put_entry(origin, b"a", FILE._replace(inode=6))
            catalog.forget_listing(origin, b"")
            assert catalog.entry(origin, b"a") == FILE._replace(inode=6)
            assert catalog.listed_ns(origin, b"") == 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        give_up()
    assert catalog.entry(origin, b"a") == FILE
    assert catalog.listed_ns(origin, b"") == 1


def test_a_refused_change_leaves_nothing_in_memory(directory: Path, origin: OriginId) -> None:
    catalog = Catalog(directory, map_size_bytes=1 << 20)
    catalog.put_entry(origin, b"a", FILE)

    def fill() -> None:
        with catalog.batch():
            for number in range(100_000):
                catalog.put_entry(origin, b"%d" % number, FILE._replace(link_target=b"x" * 1000))

    with pytest.raises(NoSpace):
        fill()
    with pytest.raises(InvalidName):
        catalog.put_entry(origin, b"a\0", FILE)
    assert catalog.entry(origin, b"0") is None
    assert catalog.entry(origin, b"a") == FILE
    catalog.close()


def test_other_threads_and_forked_processes_see_what_the_engine_changes(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"a", FILE)
    assert catalog.entry(origin, b"a") == FILE
    changed, answer = threading.Event(), os.pipe()
    child = os.fork()
    if not child:  # in the child
        os.read(answer[0], 1)
        os._exit(int(catalog.entry(origin, b"a") != FILE._replace(inode=6)))
    found: list[Entry | None] = [None, None]

    def ask() -> None:
        found[0] = catalog.entry(origin, b"a")
        changed.wait()
        found[1] = catalog.entry(origin, b"a")

    other = threading.Thread(target=ask)
    other.start()
    catalog.put_entry(origin, b"a", FILE._replace(inode=6))
    changed.set()
    other.join()
    os.write(answer[1], b"!")
    assert os.waitpid(child, 0)[1] == 0
    assert found[1] == FILE._replace(inode=6)
    os.close(answer[0])
    os.close(answer[1])
