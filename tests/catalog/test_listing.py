"""A listing from the origin meets what the node knows better."""

from __future__ import annotations

import pytest

from tiercache.catalog import Catalog
from tiercache.model import Entry, Kind, OriginId

LISTED = Entry(Kind.FILE, 0, size_bytes=10, mode=0o644, mtime_ns=1, checked_ns=100, etag='"1"')


def children(catalog: Catalog, origin: OriginId, directory: bytes = b"d") -> dict[bytes, Entry]:
    return dict(catalog.children(origin, directory))


def test_new_children_get_inode_numbers_and_the_listing_is_dated(catalog: Catalog, origin: OriginId) -> None:
    assert catalog.listed_ns(origin, b"d") == 0
    result = catalog.put_listing(origin, b"d", [(b"b", LISTED), (b"a", LISTED)], 100)
    assert [name for name, _ in result] == [b"b", b"a"]
    assert dict(result) == children(catalog, origin)
    inodes = {entry.inode for _, entry in result}
    assert len(inodes) == 2
    assert 0 not in inodes
    assert catalog.listed_ns(origin, b"d") == 100
    catalog.forget_listing(origin, b"d")
    assert catalog.listed_ns(origin, b"d") == 0
    assert len(children(catalog, origin)) == 2


def test_an_unchanged_child_keeps_its_inode_and_known_attributes(catalog: Catalog, origin: OriginId) -> None:
    known = LISTED._replace(inode=9, mode=0o600, uid=5, mtime_ns=3, attributes_known=True, xattrs=((b"user.a", b"b"),))
    catalog.put_entry(origin, b"d/f", known)
    catalog.put_listing(origin, b"d", [(b"f", LISTED._replace(checked_ns=200))], 200)
    assert children(catalog, origin) == {b"f": known._replace(checked_ns=200)}
    assert catalog.name_of_inode(9) == (origin, b"d/f")


def test_a_changed_child_keeps_its_inode_and_loses_its_attributes(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"d/f", LISTED._replace(inode=9, mode=0o600, attributes_known=True))
    changed = LISTED._replace(etag='"2"', size_bytes=11)
    catalog.put_listing(origin, b"d", [(b"f", changed)], 200)
    assert children(catalog, origin) == {b"f": changed._replace(inode=9)}


def test_attributes_that_the_listing_tells_win(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"d/f", LISTED._replace(inode=9, mode=0o600, attributes_known=True))
    listed = LISTED._replace(mode=0o755, attributes_known=True)
    catalog.put_listing(origin, b"d", [(b"f", listed)], 200)
    assert children(catalog, origin) == {b"f": listed._replace(inode=9)}


def test_an_unchanged_symlink_stays_one_though_the_listing_shows_a_file(catalog: Catalog, origin: OriginId) -> None:
    link = LISTED._replace(kind=Kind.SYMLINK, inode=9, attributes_known=True, link_target=b"x")
    catalog.put_entry(origin, b"d/l", link)
    catalog.put_listing(origin, b"d", [(b"l", LISTED)], 200)
    assert children(catalog, origin) == {b"l": link}
    catalog.put_listing(origin, b"d", [(b"l", LISTED._replace(etag='"2"'))], 200)
    replaced = children(catalog, origin)[b"l"]
    assert replaced.kind is Kind.FILE
    assert replaced.inode != 9


def test_a_child_that_the_listing_lacks_is_forgotten_with_all_below(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"d/f", LISTED._replace(inode=1))
    catalog.put_entry(origin, b"d/s", Entry(Kind.DIRECTORY, 2))
    catalog.put_entry(origin, b"d/s/g", LISTED._replace(inode=3))
    catalog.put_entry(origin, b"d/gone", Entry(Kind.ABSENT, 0, checked_ns=100))
    assert catalog.put_listing(origin, b"d", [], 200) == []
    assert [catalog.name_of_inode(inode) for inode in (1, 2, 3)] == [None, None, None]
    assert catalog.entry(origin, b"d/s/g") is None
    assert catalog.entry(origin, b"d/gone") is None


def test_a_directory_that_became_a_file_takes_its_children_along(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"d/s", Entry(Kind.DIRECTORY, 2))
    catalog.put_entry(origin, b"d/s/g", LISTED._replace(inode=3))
    [(_, entry)] = catalog.put_listing(origin, b"d", [(b"s", LISTED)], 200)
    assert entry.inode != 2
    assert catalog.name_of_inode(3) is None
    assert catalog.name_of_inode(2) is None
    assert catalog.name_of_inode(entry.inode) == (origin, b"d/s")


@pytest.mark.parametrize("listed", [[], [(b"f", LISTED)]], ids=["lacking", "listed"])
def test_a_staged_child_stays_as_it_is(catalog: Catalog, origin: OriginId, listed: list[tuple[bytes, Entry]]) -> None:
    staged = LISTED._replace(inode=4, staged=7, size_bytes=99)
    catalog.put_entry(origin, b"d/f", staged)
    assert catalog.put_listing(origin, b"d", listed, 200) == [(b"f", staged)]
    assert children(catalog, origin) == {b"f": staged}


def test_a_file_does_not_replace_a_directory_with_staged_files_below(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"d/s", Entry(Kind.DIRECTORY, 2))
    catalog.put_entry(origin, b"d/s/f", LISTED._replace(inode=4, staged=7))
    assert catalog.put_listing(origin, b"d", [(b"s", LISTED)], 200) == [(b"s", Entry(Kind.DIRECTORY, 2))]
    assert catalog.name_of_inode(4) == (origin, b"d/s/f")


def test_a_lacking_directory_with_staged_files_below_stays(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"d/s", Entry(Kind.DIRECTORY, 2))
    catalog.put_entry(origin, b"d/s/t", Entry(Kind.DIRECTORY, 3))
    catalog.put_entry(origin, b"d/s/t/f", LISTED._replace(inode=4, staged=7))
    assert catalog.put_listing(origin, b"d", [], 200) == [(b"s", Entry(Kind.DIRECTORY, 2))]
    assert catalog.entry(origin, b"d/s/t/f") is not None


def test_what_was_created_or_deleted_while_the_listing_ran_wins(catalog: Catalog, origin: OriginId) -> None:
    created = LISTED._replace(inode=4, checked_ns=201)
    catalog.put_entry(origin, b"d/created", created)
    catalog.put_entry(origin, b"d/deleted", Entry(Kind.ABSENT, 0, checked_ns=201))
    assert catalog.put_listing(origin, b"d", [(b"deleted", LISTED)], 200) == [(b"created", created)]
    assert children(catalog, origin) == {b"created": created}


def test_hard_links_in_one_listing_share_their_given_inode(catalog: Catalog, origin: OriginId) -> None:
    link = LISTED._replace(inode=8, link_count=2)
    catalog.put_listing(origin, b"d", [(b"a", link), (b"b", link)], 100)
    catalog.drop_entry(origin, b"d/a")
    assert catalog.name_of_inode(8) == (origin, b"d/b")


def test_the_directory_wins_where_a_listing_has_a_name_twice(catalog: Catalog, origin: OriginId) -> None:
    for listed in ([Kind.FILE, Kind.DIRECTORY], [Kind.DIRECTORY, Kind.FILE]):
        [(_, entry)] = catalog.put_listing(origin, b"d", [(b"x", Entry(kind, 0)) for kind in listed], 100)
        assert entry.kind is Kind.DIRECTORY
        assert children(catalog, origin) == {b"x": entry}


def test_a_failing_listing_changes_nothing(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_listing(origin, b"d", [(b"old", LISTED)], 100)

    def broken() -> object:
        yield b"new", LISTED
        raise ConnectionError

    with pytest.raises(ConnectionError):
        catalog.put_listing(origin, b"d", broken(), 200)  # type: ignore[arg-type]
    assert list(children(catalog, origin)) == [b"old"]
    assert catalog.listed_ns(origin, b"d") == 100


def test_a_hundred_thousand_children_are_one_change(catalog: Catalog, origin: OriginId) -> None:
    names = [b"image%06d.jpg" % number for number in range(100_000)]
    result = catalog.put_listing(origin, b"d", [(name, LISTED) for name in names], 100)
    assert [name for name, _ in catalog.children(origin, b"d")] == names
    assert len({entry.inode for _, entry in result}) == 100_000
