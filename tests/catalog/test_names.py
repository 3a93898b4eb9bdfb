"""Every key that an origin can have is kept apart from every other and found again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.catalog import Catalog
from tiercache.catalog.names import KEY_LIMIT_BYTES, key_of_short, long_name, short_name, split
from tiercache.errors import InvalidName, NameTooLong
from tiercache.model import Entry, Key, Kind, OriginId, join, origin_id

ORIGIN = origin_id("s3://bucket")
KEYS = st.binary(max_size=1024).map(lambda data: data.replace(b"\0", b"/")) | st.lists(
    st.sampled_from([b"a", b"b", b"", b".", b"..", b"\xff", b"\n", b"x" * 255]), max_size=6
).map(b"/".join)

ODD_KEYS = [
    b"a//b",
    b"a/",
    b"/a",
    b"a",
    b"//a",
    b"/",
    b"//",
    b"./a",
    b"..",
    b"\n",
    b"\xff\xfe/\x80",
    b"a\x01b/c",
    b"p" * 1024,
    b"p/" * 512,
    b"q" * 300 + b"/" + b"r" * 300,
]


def stored(key: Key) -> bytes:
    return short_name(ORIGIN, key) or long_name(ORIGIN, key)


@given(KEYS)
def test_a_key_is_its_parent_joined_with_its_name(key: Key) -> None:
    assert join(*split(key)) == key


@given(KEYS)
def test_no_stored_name_is_too_long_for_lmdb(key: Key) -> None:
    assert 0 < len(stored(key)) <= KEY_LIMIT_BYTES


@given(KEYS, KEYS)
def test_different_keys_are_stored_apart(one: Key, other: Key) -> None:
    assert (stored(one) == stored(other)) == (one == other)


@given(KEYS.filter(lambda key: len(key) < 500))
def test_a_short_stored_name_tells_its_key(key: Key) -> None:
    assert key_of_short(short_name(ORIGIN, key)) == key


@pytest.mark.parametrize("key", ODD_KEYS, ids=repr)
def test_an_odd_key_is_found_listed_and_dropped_by_itself(catalog: Catalog, origin: OriginId, key: Key) -> None:
    for number, each in enumerate(ODD_KEYS, 1):
        catalog.put_entry(origin, each, Entry(Kind.FILE, number))
    inode = ODD_KEYS.index(key) + 1
    parent, name = split(key)
    assert catalog.entry(origin, key) == Entry(Kind.FILE, inode)
    assert (name, Entry(Kind.FILE, inode)) in catalog.children(origin, parent)
    assert catalog.name_of_inode(inode) == (origin, key)
    catalog.drop_entry(origin, key)
    assert [each for each in ODD_KEYS if catalog.entry(origin, each) is None] == [key]
    assert catalog.name_of_inode(inode) is None


def test_a_nul_is_refused_by_every_method_with_a_key(catalog: Catalog, origin: OriginId) -> None:
    with pytest.raises(InvalidName):
        catalog.put_entry(origin, b"a\0b", Entry(Kind.FILE, 1))
    with pytest.raises(InvalidName):
        catalog.resolve(origin, b"a\0b")
    with pytest.raises(InvalidName):
        catalog.children(origin, b"a\0b")
    with pytest.raises(InvalidName):
        catalog.put_listing(origin, b"a", [(b"x\0", Entry(Kind.FILE, 1))], 1)


def test_an_absurdly_long_key_is_refused(catalog: Catalog, origin: OriginId) -> None:
    with pytest.raises(NameTooLong):
        catalog.put_entry(origin, b"k" * 70_000, Entry(Kind.FILE, 1))


def test_long_and_short_children_are_listed_together_and_no_grandchildren(catalog: Catalog, origin: OriginId) -> None:
    directory = b"d" * 400
    names = [b"short", b"long" * 60]
    for number, name in enumerate(names, 1):
        catalog.put_entry(origin, join(directory, name), Entry(Kind.FILE, number))
        catalog.put_entry(origin, join(join(directory, name), b"below"), Entry(Kind.FILE, number + 10))
    catalog.put_entry(origin, directory + b"!/x", Entry(Kind.FILE, 99))
    assert [name for name, _ in catalog.children(origin, directory)] == names


def test_the_root_is_not_its_own_child(catalog: Catalog, origin: OriginId) -> None:
    catalog.put_entry(origin, b"", Entry(Kind.DIRECTORY, 1))
    catalog.put_entry(origin, b"a", Entry(Kind.FILE, 2))
    assert catalog.children(origin, b"") == [(b"a", Entry(Kind.FILE, 2))]
    assert catalog.entry(origin, b"") == Entry(Kind.DIRECTORY, 1)


def test_origins_do_not_see_each_other(catalog: Catalog, origin: OriginId) -> None:
    other = origin_id("s3://other")
    catalog.put_entry(origin, b"a/b", Entry(Kind.FILE, 2))
    assert catalog.entry(other, b"a/b") is None
    assert catalog.children(other, b"a") == []
    catalog.drop_tree(other, b"")
    assert catalog.entry(origin, b"a/b") == Entry(Kind.FILE, 2)
