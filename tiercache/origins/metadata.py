"""POSIX attributes as object metadata, under the names and in the forms that s3fs-fuse uses."""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat as stat_module
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from tiercache.errors import NoSpace
from tiercache.model import Attributes, Kind

UPLOAD = "tiercache-upload"

_LIMIT_BYTES = 2048  # S3's bound on the sum of all names and values
_OTHERS_MAX_BYTES = 256  # of that: mode, owner, times, the upload id, and the names of all
XATTRS_MAX_BYTES = _LIMIT_BYTES - _OTHERS_MAX_BYTES
"""What the extended attributes of one file may take, on every origin, by the measure of ``stored_bytes``."""

_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
_OURS = ("mode", "uid", "gid", "mtime", "atime", "ctime", "xattr")
_NS = 1_000_000_000

_TYPE_BITS = {Kind.FILE: stat_module.S_IFREG, Kind.DIRECTORY: stat_module.S_IFDIR, Kind.SYMLINK: stat_module.S_IFLNK}


def encode(attributes: Attributes | None, kind: Kind, *, upload_id: str = "") -> dict[str, str]:
    """The metadata to store. NoSpace if the extended attributes do not fit in an object's metadata."""
    metadata = {UPLOAD: upload_id} if upload_id else {}
    if attributes is not None:
        metadata["mode"] = str(_TYPE_BITS[kind] | attributes.mode & 0o7777)
        metadata["uid"] = str(attributes.uid)
        metadata["gid"] = str(attributes.gid)
        times = (("mtime", attributes.mtime_ns), ("atime", attributes.atime_ns), ("ctime", attributes.ctime_ns))
        metadata.update((name, _time(at_ns)) for name, at_ns in times if at_ns)
        if attributes.xattrs:
            metadata["xattr"] = _encode_xattrs(attributes.xattrs)
    elif kind is not Kind.FILE:
        metadata["mode"] = str(_TYPE_BITS[kind] | (0o777 if kind is Kind.SYMLINK else _DIRECTORY_MODE))
    size = sum(len(name) + len(value) for name, value in metadata.items())
    if size > _LIMIT_BYTES:
        raise NoSpace(f"the extended attributes need {size} bytes of metadata, an object has room for {_LIMIT_BYTES}")
    return metadata


def stored_bytes(xattrs: Iterable[tuple[bytes, bytes]]) -> int:
    """What these extended attributes take in an object's metadata: each has a price besides its name and value."""
    return len(_encode_xattrs(xattrs))


def replace(current: Mapping[str, str], attributes: Attributes, kind: Kind) -> dict[str, str]:
    """``current`` with other attributes; what is not ours (other tools' metadata, the upload id) stays."""
    foreign = {name: value for name, value in current.items() if name.lower() not in _OURS}
    return foreign | encode(attributes, kind)


def decode(metadata: Mapping[str, str], kind: Kind, modified_ns: int) -> tuple[Kind, Attributes]:
    """Kind and attributes of an object; what the metadata does not tell has plain defaults (ours, 644 or 755)."""
    stored = {name.lower(): value for name, value in metadata.items()}
    mode = _number(stored.get("mode", ""))
    if kind is Kind.FILE and mode is not None and stat_module.S_ISLNK(mode):
        kind = Kind.SYMLINK
    if mode is None:
        mode = _DIRECTORY_MODE if kind is Kind.DIRECTORY else _FILE_MODE
    uid, gid = _number(stored.get("uid", "")), _number(stored.get("gid", ""))
    return kind, Attributes(
        mode & 0o7777,
        os.getuid() if uid is None else uid,
        os.getgid() if gid is None else gid,
        _time_ns(stored.get("mtime", "")) or modified_ns,
        _time_ns(stored.get("atime", "")),
        _time_ns(stored.get("ctime", "")),
        _decode_xattrs(stored.get("xattr", "")),
    )


def tells_mode(metadata: Mapping[str, str]) -> bool:
    """Whether attributes were stored with the object at all."""
    return any(name.lower() == "mode" for name in metadata)


def upload_id_of(metadata: Mapping[str, str]) -> str:
    """The id of the upload that wrote the object, if it was one of ours."""
    return next((value for name, value in metadata.items() if name.lower() == UPLOAD), "")


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _time(at_ns: int) -> str:
    return f"{at_ns // _NS}.{at_ns % _NS:09d}"


def _time_ns(text: str) -> int:
    """Seconds with any number of decimals, exactly (a float has no room for nanoseconds); 0 if it is no time."""
    whole, _, fraction = text.partition(".")
    try:
        return int(whole) * _NS + int(fraction[:9].ljust(9, "0") or 0)
    except ValueError:
        return 0


def _encode_xattrs(xattrs: Iterable[tuple[bytes, bytes]]) -> str:
    pairs = {os.fsdecode(name): base64.b64encode(value).decode() for name, value in xattrs}
    return quote(json.dumps(pairs, separators=(",", ":")), safe="")


def _decode_xattrs(text: str) -> tuple[tuple[bytes, bytes], ...]:
    if not text:
        return ()
    try:
        pairs = json.loads(unquote(text))
        return tuple(sorted((os.fsencode(name), base64.b64decode(value)) for name, value in pairs.items()))
    except (ValueError, TypeError, AttributeError, binascii.Error):  # another tool's field of this name
        return ()
