"""The protocol's structures have the sizes that the kernel's header gives them."""

from __future__ import annotations

import stat

import pytest

from tiercache.fuse.attributes import Attr, EntryOut, FileSystemSpace
from tiercache.fuse.kernel import wire

SIZES = {
    "IN_HEADER": 40,
    "OUT_HEADER": 16,
    "INIT_OUT": 64,
    "ATTR": 88,
    "SETATTR_IN": 88,
    "OPEN_OUT": 16,
    "CREATE_IN": 16,
    "MKNOD_IN": 16,
    "MKDIR_IN": 8,
    "READ_IN": 40,
    "WRITE_IN": 40,
    "WRITE_OUT": 8,
    "RELEASE_IN": 24,
    "FLUSH_IN": 24,
    "FSYNC_IN": 16,
    "RENAME2_IN": 16,
    "SETXATTR_IN": 8,
    "GETXATTR_IN": 8,
    "GETXATTR_OUT": 8,
    "STATFS_OUT": 80,
    "DIRENT": 24,
    "BATCH_FORGET_IN": 8,
    "FORGET_ONE": 16,
    "INVAL_INODE_OUT": 24,
    "INVAL_ENTRY_OUT": 16,
}

ATTR = Attr(
    node=3,
    mode=stat.S_IFREG | 0o640,
    size_bytes=1025,
    link_count=1,
    uid=1,
    gid=2,
    atime_ns=-1,
    mtime_ns=1_500_000_000_000_000_007,
    ctime_ns=0,
    timeout_s=1.5,
)


@pytest.mark.parametrize(("name", "size_bytes"), SIZES.items())
def test_a_structure_has_the_size_of_the_header_file(name: str, size_bytes: int) -> None:
    assert getattr(wire, name).size == size_bytes


def test_entry_and_attributes_have_the_sizes_of_the_header_file() -> None:
    assert len(wire.pack_entry_out(EntryOut(ATTR, 1.0))) == 128
    assert len(wire.pack_negative_entry(5.0)) == 128
    assert len(wire.pack_attr_out(ATTR)) == 104
    assert len(wire.pack_statfs(FileSystemSpace(4096, 10, 5, 10, 5, 255))) == 80


def test_times_before_1970_and_fractions_of_timeouts_survive() -> None:
    packed = wire.pack_attr_out(ATTR)
    assert wire.ATTR_OUT.unpack_from(packed) == (1, 500_000_000, 0)
    fields = wire.ATTR.unpack_from(packed, wire.ATTR_OUT.size)
    assert fields[3] == 2**64 - 1
    assert fields[6] == 999_999_999
    assert fields[7] == 7


@pytest.mark.parametrize("length", range(1, 18))
def test_directory_lines_are_aligned(length: int) -> None:
    record = wire.pack_dirent(b"x" * length, node=1, mode=stat.S_IFDIR, cookie=1)
    assert len(record) % 8 == 0
    assert record[24 : 24 + length] == b"x" * length


def test_strings_are_taken_apart_at_their_ends() -> None:
    assert wire.two_strings(b"....old name\0new\n\0", 4) == (b"old name", b"new\n")
