"""How a target filesystem spells its paths, and which origin and key a path stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

import fsspec
from fsspec.utils import stringify_path

from tiercache.errors import InvalidArgument
from tiercache.model import Key

BUCKET_PROTOCOLS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2", "wasb"})
"""Protocols whose paths begin with the name of a bucket or container."""

URL_PROTOCOLS = frozenset({"http", "https"})
"""Protocols whose filesystems spell a path as the whole URL."""

OWN_PREFIXES = ("tiercache://", "tiercache::")


class Place(Protocol):
    """Turns a caller's path into the filesystem's spelling, and that into an origin and the rest of the path."""

    root: str
    """The path of the root directory."""

    def strip(self, path: str) -> str:
        """The path without any protocol, as the target filesystem would spell it."""
        ...

    def split(self, path: str) -> tuple[str, str]:
        """The part that selects the origin, and the name inside it."""
        ...

    def join(self, head: str, rest: str) -> str:
        """The inverse of ``split``."""
        ...

    def url(self, head: str) -> str:
        """The URL of the origin that ``head`` selects."""
        ...


class BucketPlace:
    """``bucket/key``: one origin per bucket, or per name of an origin in the configuration."""

    root = ""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol

    def strip(self, path: str) -> str:
        if ":" in path:
            path = _without_own_prefix(path)
            if "://" in path and path.partition("://")[0] in _spellings(self._protocol):
                path = _by_target(self._protocol, path)
        return path.rstrip("/") if path[:1] != "/" else path.strip("/")

    def split(self, path: str) -> tuple[str, str]:
        head, _, rest = path.partition("/")
        return head, rest

    def join(self, head: str, rest: str) -> str:
        return f"{head}/{rest}" if rest else head

    def url(self, head: str) -> str:
        if not head:
            raise InvalidArgument(f"a {self._protocol} path begins with the name of a bucket")
        return f"{self._protocol}://{head}"


class TreePlace:
    """``/path``: one origin, absolute paths."""

    root = "/"

    def __init__(self, protocol: str, options: Mapping[str, Any]) -> None:
        self._protocol = protocol
        self._host = "" if protocol in ("file", "local") else str(options.get("host", ""))

    def strip(self, path: str) -> str:
        if ":" in path:
            path = _without_own_prefix(path)
        if path[:1] != "/":
            path = _by_target(self._protocol, path)
            if path[:1] != "/":
                path = "/" + path
        return path.rstrip("/") or "/"

    def split(self, path: str) -> tuple[str, str]:
        return "", path.lstrip("/")

    def join(self, head: str, rest: str) -> str:
        return "/" + rest

    def url(self, head: str) -> str:
        protocol = "file" if self._protocol == "local" else self._protocol
        return f"{protocol}://{self._host}/"


class UrlPlace:
    """``https://host/path``: one origin per host, whole URLs."""

    root = ""

    def strip(self, path: str) -> str:
        return _without_own_prefix(path).rstrip("/")

    def split(self, path: str) -> tuple[str, str]:
        protocol, separator, rest = path.partition("://")
        host, _, rest = rest.partition("/")
        return protocol + separator + host, rest

    def join(self, head: str, rest: str) -> str:
        return f"{head}/{rest}" if rest else head

    def url(self, head: str) -> str:
        if "://" not in head:
            raise InvalidArgument(f"{head!r} is no http URL")
        return head


def place_of(protocol: str, options: Mapping[str, Any]) -> Place:
    """The spelling that the target filesystem of this protocol uses."""
    if protocol in BUCKET_PROTOCOLS:
        return BucketPlace(protocol)
    if protocol in URL_PROTOCOLS:
        return UrlPlace()
    return TreePlace(protocol, options)


def to_key(root: Key, rest: str) -> Key:
    """The key of a name below an origin's root key."""
    key = rest.encode("utf-8", "surrogateescape")
    if not root:
        return key
    return root + b"/" + key if key else root


def to_name(root: Key, key: Key) -> str:
    """The inverse of ``to_key``."""
    if root:
        key = key[len(root) + 1 :]
    return key.decode("utf-8", "surrogateescape")


def as_text(path: str | os.PathLike[str]) -> str:
    """The text of a path-like object; TypeError for anything else."""
    text = stringify_path(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is text, not {type(path).__name__}")
    return text


def _without_own_prefix(path: str) -> str:
    for prefix in OWN_PREFIXES:
        path = path.removeprefix(prefix)
    return path


def _spellings(protocol: str) -> tuple[str, ...]:
    """Every protocol name of the target filesystem's class, which ``s3://`` and ``s3a://`` share."""
    try:
        names = fsspec.get_filesystem_class(protocol).protocol
    except (ImportError, ValueError):
        return (protocol,)
    return (names,) if isinstance(names, str) else tuple(names)


def _by_target(protocol: str, path: str) -> str:
    try:
        return str(fsspec.get_filesystem_class(protocol)._strip_protocol(path))
    except (ImportError, ValueError):
        return path.partition("://")[2] or path
