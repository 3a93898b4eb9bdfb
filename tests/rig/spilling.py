"""What tests of files that do not fit in staging share: little staging, small parts, and data in pieces."""

from __future__ import annotations

import os
import signal
from typing import Any

from rig.cache_rig import bytes_of
from tiercache.client import RemoteOrigin

KIB = 1024
MIB = 1024 * KIB
PART = 64 * KIB
CAPACITY = 512 * KIB
SIZE = 2 * MIB + 321
SETTINGS = {
    "staging.capacity": CAPACITY,
    "staging.wait_max_s": 30,
    "upload.part_size": PART,
    "upload.retry_base_s": "10ms",
    "fetch.retry_base_s": "1ms",
}


def write_in_pieces(writer: Any, data: bytes, piece_bytes: int = 50_000) -> None:
    for offset in range(0, len(data), piece_bytes):
        writer.write(data[offset : offset + piece_bytes])


def killed_in_the_middle(origin: RemoteOrigin, key: bytes) -> None:
    """A child that writes more than fits, says so and waits to be killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            writer = origin.create(key)
            write_in_pieces(writer, bytes_of("a", SIZE))
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"x"
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
