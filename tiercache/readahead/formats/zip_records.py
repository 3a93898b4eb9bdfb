"""Zip files of uncompressed arrays: torch.save (``.pt``) and numpy.savez (``.npz``). Structures as in PKWARE's APPNOTE.

torch stores the records of its tensors sorted as text (0, 1, 10, 11, 2, …) and loads them by number.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from tiercache.readahead.formats.format import EXTENTS_MAX, End, Format, Malformed, Parser, require, wanted
from tiercache.readahead.layout import Layout

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_EXTRA = struct.Struct("<2H")
_MOST_COMMENT: Final = 0xFFFF
_TAIL_BYTES: Final = _END.size + _MOST_COMMENT + _LOCATOR.size
_NONE16: Final = 0xFFFF
_NONE32: Final = 0xFFFFFFFF
_ZIP64: Final = 1
_TENSOR = re.compile(rb"(?:.*/)?data/(\d{1,9})")


class Directory(NamedTuple):
    """Where the central directory lies."""

    offset: int
    length: int
    records: int


def parse(size_bytes: int) -> Parser:
    """The records in the order in which they are loaded."""
    require((yield wanted(0, 4, size_bytes)) == b"PK\3\4", "no zip file")
    tail_bytes = min(_TAIL_BYTES, size_bytes)
    tail = yield wanted(size_bytes - tail_bytes, tail_bytes, size_bytes)
    at = tail.rfind(b"PK\5\6")
    require(0 <= at <= len(tail) - _END.size, "no end of a central directory")
    _, _, _, _, records, length, offset, _ = _END.unpack_from(tail, at)
    if records == _NONE16 or _NONE32 in (length, offset):
        require(at >= _LOCATOR.size, "no locator of zip64")
        mark, _, end64, _ = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        require(mark == b"PK\6\7", "no locator of zip64")
        record = _END64.unpack((yield wanted(end64, _END64.size, size_bytes)))
        require(record[0] == b"PK\6\6", "no end of a zip64 directory")
        records, length, offset = record[7:10]
    require(records <= EXTENTS_MAX, "too many records")
    directory = yield wanted(offset, length, size_bytes)
    return Layout(_in_reading_order(directory, records), size_bytes)


def _in_reading_order(directory: bytes, records: int) -> list[int]:
    """The offsets of the records: what is no tensor first, then the tensors by their numbers."""
    found = []
    for name, offset in _entries(directory, records):
        tensor = _TENSOR.fullmatch(name)
        found.append((int(tensor.group(1)) if tensor else -1, offset))
    found.sort(key=lambda record: record[0])  # stable: as in the directory where no number tells
    return [offset for _, offset in found]


def _entries(directory: bytes, records: int) -> Iterator[tuple[bytes, int]]:
    at = 0
    for _ in range(records):
        require(at + _ENTRY.size <= len(directory), "a cut directory")
        fields = _ENTRY.unpack_from(directory, at)
        require(fields[0] == b"PK\1\2", "no entry of a directory")
        stored, plain, name_bytes, extra_bytes, comment_bytes, offset = *fields[8:13], fields[16]
        at += _ENTRY.size
        name = directory[at : at + name_bytes]
        extra = directory[at + name_bytes : at + name_bytes + extra_bytes]
        if offset == _NONE32:
            # Only the values that the entry itself has no room for are there, in this order.
            offset = _offset64(extra, before=(plain == _NONE32) + (stored == _NONE32))
        yield name, offset
        at += name_bytes + extra_bytes + comment_bytes


def _offset64(extra: bytes, *, before: int) -> int:
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        value = extra[at + 8 * before : at + 8 * before + 8]
        if kind == _ZIP64 and len(value) == 8 and 8 * before + 8 <= length:
            return int.from_bytes(value, "little")
        at += length
    raise Malformed("an entry without its offset")


FORMAT = Format("zip", (b".pt", b".pth", b".ckpt", b".npz"), End.HEAD | End.TAIL, parse)
