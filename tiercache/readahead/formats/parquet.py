"""Parquet: a footer at the end, whose last eight bytes are its length and a magic word.

The footer itself (thrift) is left to those who read the file: it is brought near. Columns are read as they come.
"""

from __future__ import annotations

import struct

from tiercache.readahead.formats.format import End, Format, Parser, require, wanted

_END = struct.Struct("<L4s")


def parse(size_bytes: int) -> Parser:
    """No layout: but the footer was looked at, and so it is here."""
    length, magic = _END.unpack((yield wanted(size_bytes - _END.size, _END.size, size_bytes)))
    require(magic == b"PAR1", "no parquet file")
    yield wanted(size_bytes - _END.size - length, length, size_bytes)
    return None


FORMAT = Format("parquet", (b".parquet",), End.TAIL, parse)
