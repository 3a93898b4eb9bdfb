"""Whether a failure means that the disk is full."""

from __future__ import annotations

import os
from pathlib import Path

ROOM_FOR_A_WRITE_BYTES = 1024 * 1024
"""With less than this free, a write that failed for no reason told was too long for what is left."""


def means_full_disk(error: Exception, directory: Path | str) -> bool:
    """For errors of LMDB, which has no code for a full disk: it hands on what the system says, and a write that the
    disk took only a part of is "Input/output error" to it."""
    text = str(error)
    if "No space left" in text or "quota" in text.lower():
        return True
    return "Input/output error" in text and free_bytes(directory) < ROOM_FOR_A_WRITE_BYTES


def free_bytes(directory: Path | str) -> int:
    """What programs may still write; 0 where that cannot be told."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize
