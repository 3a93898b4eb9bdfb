"""Tar shards: members one after the other, read from beginning to end (webdataset)."""

from __future__ import annotations

from typing import Final

from tiercache.readahead.formats.format import End, Format, Parser, require, wanted
from tiercache.readahead.layout import Layout

_BLOCK_BYTES: Final = 512
_MAGIC_AT: Final = 257


def parse(size_bytes: int) -> Parser:
    """One extent, of which a reader at its beginning wants all."""
    head = yield wanted(0, _BLOCK_BYTES, size_bytes)
    require(head[_MAGIC_AT : _MAGIC_AT + 5] == b"ustar", "no tar file")
    return Layout((), size_bytes, first_bytes=size_bytes)


FORMAT = Format("tar", (b".tar",), End.HEAD, parse)
