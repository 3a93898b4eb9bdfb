"""Files that are read in pieces: what their headers tell of the order. Pure: bytes in, extents out."""

from tiercache.readahead.formats.format import EXTENTS_MAX, HEADER_MAX_BYTES, Format, Malformed, Parser
from tiercache.readahead.formats.known import FORMATS, format_of

__all__ = ["EXTENTS_MAX", "FORMATS", "HEADER_MAX_BYTES", "Format", "Malformed", "Parser", "format_of"]
