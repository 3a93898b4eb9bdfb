"""Stored forms give back what went in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiercache.catalog import Copy, VersionRecord
from tiercache.catalog.codec import decode_entry, decode_version, encode_entry, encode_version
from tiercache.model import Entry, Kind, OriginId, Tier, VersionId

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
ETAGS = st.text(max_size=80) | st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape"))

ENTRIES = st.builds(
    Entry,
    kind=st.sampled_from(Kind),
    inode=U64,
    size_bytes=U64,
    mode=U32,
    uid=U32,
    gid=U32,
    mtime_ns=I64,
    atime_ns=I64,
    ctime_ns=I64,
    link_count=U32,
    checked_ns=I64,
    version=st.binary(min_size=16, max_size=16).map(VersionId) | st.just(VersionId(b"")),
    etag=ETAGS.filter(lambda etag: not any(0xD800 <= ord(c) < 0xDC80 or 0xDCFF < ord(c) <= 0xDFFF for c in etag)),
    staged=U64,
    attributes_known=st.booleans(),
    link_target=st.binary(max_size=300),
    xattrs=st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=300)), max_size=4).map(tuple),
    device=U32,
)

RECORDS = st.builds(
    VersionRecord,
    origin=st.binary(min_size=8, max_size=8).map(OriginId),
    key=st.binary(max_size=1024),
    etag=st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    size_bytes=U64,
    complete=st.booleans(),
    copies=st.lists(st.builds(Copy, st.sampled_from(Tier), U64, I64, U64), max_size=2).map(tuple),
    blocks=st.binary(max_size=64),
    checksums=st.binary(max_size=512),
)


@given(ENTRIES)
def test_an_entry_survives_its_stored_form(entry: Entry) -> None:
    decoded = decode_entry(encode_entry(entry))
    assert decoded == entry
    assert isinstance(decoded, Entry)
    assert isinstance(decoded.kind, Kind)
    assert isinstance(decoded.attributes_known, bool)


@given(RECORDS)
def test_a_version_record_survives_its_stored_form(record: VersionRecord) -> None:
    decoded = decode_version(encode_version(record))
    assert decoded == record
    assert isinstance(decoded, VersionRecord)
    assert all(isinstance(copy, Copy) and isinstance(copy.tier, Tier) for copy in decoded.copies)


def test_an_xattr_may_have_the_kernels_largest_size() -> None:
    entry = Entry(Kind.FILE, 1, xattrs=((b"user." + b"n" * 250, b"v" * 65_536),))
    assert decode_entry(encode_entry(entry)) == entry
