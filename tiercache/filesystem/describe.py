"""An entry as the dictionary that fsspec calls ``info``."""

from __future__ import annotations

import hashlib
from typing import Any

from tiercache.model import SPECIAL_KINDS, Entry, Kind

TYPES = {Kind.FILE: "file", Kind.DIRECTORY: "directory", Kind.SYMLINK: "link", **dict.fromkeys(SPECIAL_KINDS, "other")}


def describe(name: str, entry: Entry, reached: dict[str, Any]) -> dict[str, Any]:
    """The entry under fsspec's names; times are seconds since the epoch, ``tiercache`` tells what the file's bytes have
    ``reached``."""
    if entry.kind is Kind.DIRECTORY:
        return {"name": name, "size": 0, "type": "directory", "mode": entry.mode, "mtime": entry.mtime_ns / 1e9}
    return {
        "name": name,
        "size": entry.size_bytes,
        "type": TYPES[entry.kind],
        "etag": entry.etag,
        "mtime": entry.mtime_ns / 1e9,
        "created": (entry.ctime_ns or entry.mtime_ns) / 1e9,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "ino": entry.inode,
        "nlink": entry.link_count,
        "islink": entry.kind is Kind.SYMLINK,
        "tiercache": reached,
    }


def implied(name: str) -> dict[str, Any]:
    """A directory that exists only because something lies below it."""
    return {"name": name, "size": 0, "type": "directory"}


def fingerprint(entry: Entry) -> str:
    """A digest that differs between any two contents of a name."""
    version = f"staged {entry.staged} {entry.mtime_ns} {entry.size_bytes}" if entry.staged else f"etag {entry.etag}"
    return hashlib.sha256(f"{entry.kind} {version}".encode()).hexdigest()
