"""The info dictionaries of fsspec filesystems, of which each has its own names, as ObjectStat."""

from __future__ import annotations

import datetime
import stat as stat_module
from collections.abc import Mapping
from typing import Any

from tiercache.model import Attributes, Key, Kind, ObjectStat
from tiercache.origins import etags
from tiercache.origins.obstore_calls import nanoseconds

_ETAG_FIELDS = ("ETag", "etag", "md5Hash", "content_md5", "checksum", "sha256", "crc32c")
_TIME_FIELDS = (
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "modified",
    "modificationTime",
    "modify",
    "timeModified",
    "created",
)
_MILLISECONDS = frozenset({"modificationTime"})  # webhdfs


def stat_of(key: Key, info: Mapping[str, Any], fallback_etag: str) -> ObjectStat:
    """Describe one info dictionary; ``fallback_etag`` serves where it has neither checksum nor time."""
    kind = _kind(info)
    modified_ns = _modified_ns(info)
    if kind is Kind.DIRECTORY:
        return ObjectStat(key, kind, 0, "", modified_ns, _attributes(info, modified_ns))
    size_bytes = int(info.get("size") or 0)
    target = info.get("destination", b"") if kind is Kind.SYMLINK else b""
    return ObjectStat(
        key,
        kind,
        size_bytes,
        _etag(info, modified_ns, size_bytes, fallback_etag),
        modified_ns,
        _attributes(info, modified_ns),
        target.encode() if isinstance(target, str) else target,
    )


def _kind(info: Mapping[str, Any]) -> Kind:
    if info.get("islink") or info.get("type") == "link":
        return Kind.SYMLINK
    return Kind.DIRECTORY if info.get("type") == "directory" else Kind.FILE


def _etag(info: Mapping[str, Any], modified_ns: int, size_bytes: int, fallback: str) -> str:
    for field in _ETAG_FIELDS:
        if value := info.get(field):
            return etags.plain(str(value))
    if modified_ns:
        return f"{info.get('ino', '')}-{modified_ns}-{size_bytes}"
    return fallback


def _modified_ns(info: Mapping[str, Any]) -> int:
    for field in _TIME_FIELDS:
        if value := info.get(field):
            return _time_ns(value, 1_000_000 if field in _MILLISECONDS else 1_000_000_000)
    return 0


def _time_ns(value: object, unit_ns: int) -> int:
    match value:
        case datetime.datetime():
            return nanoseconds(value if value.tzinfo else value.replace(tzinfo=datetime.UTC))
        case int():
            return value * unit_ns
        case float():
            return round(value * unit_ns / 1000) * 1000  # no finer than a datetime, which others give for the same
        case str():
            try:
                return _time_ns(datetime.datetime.fromisoformat(value), unit_ns)
            except ValueError:
                return 0
        case _:
            return 0


def _attributes(info: Mapping[str, Any], modified_ns: int) -> Attributes | None:
    mode, uid, gid = info.get("mode"), info.get("uid"), info.get("gid")
    if not (isinstance(mode, int) and isinstance(uid, int) and isinstance(gid, int)):
        return None
    return Attributes(stat_module.S_IMODE(mode), uid, gid, modified_ns)
