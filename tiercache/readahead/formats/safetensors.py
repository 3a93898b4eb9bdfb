"""safetensors: eight bytes of length, a header of JSON, then the tensors without gaps (the format of that library)."""

from __future__ import annotations

import json
import struct
from typing import Any

from tiercache.readahead.formats.format import EXTENTS_MAX, End, Format, Malformed, Parser, require, wanted
from tiercache.readahead.layout import Layout

_LENGTH = struct.Struct("<Q")


def parse(size_bytes: int) -> Parser:
    """The tensors in the order of their offsets, in which the library's loaders read them."""
    (length,) = _LENGTH.unpack((yield wanted(0, _LENGTH.size, size_bytes)))
    header = yield wanted(_LENGTH.size, length, size_bytes)
    require(header.startswith(b"{"), "no header of safetensors")
    data = _LENGTH.size + length
    return Layout(sorted(data + begin for begin in _begins(header, size_bytes - data)), size_bytes)


def _begins(header: bytes, data_bytes: int) -> list[int]:
    try:
        table = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"its header is no JSON: {error}") from error
    require(isinstance(table, dict) and len(table) <= EXTENTS_MAX, "no table of tensors, or one of too many")
    return [_begin(entry, data_bytes) for name, entry in table.items() if name != "__metadata__"]


def _begin(entry: Any, data_bytes: int) -> int:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    match offsets:
        case [int(begin), int(end)] if 0 <= begin <= end <= data_bytes:
            return begin
    raise Malformed("a tensor without offsets, or outside the file")


FORMAT = Format("safetensors", (b".safetensors",), End.HEAD, parse)
