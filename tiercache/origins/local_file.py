"""Reading a stretch of the local file that is being uploaded."""

from __future__ import annotations

import os

from tiercache.errors import Broken
from tiercache.origins.base import Source
from tiercache.origins.limits import Part


def read_part(fd: int, source: Source, part: Part) -> bytes:
    """The bytes of one part. Broken if the local file is shorter than it was said to be."""
    data = os.pread(fd, part.length, part.offset)
    while len(data) < part.length:  # rare: an interrupted read, or a part over 2 GiB
        more = os.pread(fd, part.length - len(data), part.offset + len(data))
        if not more:
            raise Broken(f"{source.path} ended at {part.offset + len(data)} of {source.size_bytes} bytes")
        data += more
    return data
