"""From a URL to an origin and a key in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiercache.config import FetchConfig, UploadConfig
from tiercache.errors import ConfigError
from tiercache.memory import Memory, Purpose
from tiercache.model import Key
from tiercache.origins.base import Origin
from tiercache.origins.limits import Limits
from tiercache.units import parse_size

_S3 = frozenset({"s3", "s3a"})
_GCS = frozenset({"gs", "gcs"})
_AZURE = frozenset({"az", "abfs", "abfss", "azure"})
_HTTP = frozenset({"http", "https"})
_FILE = frozenset({"", "file", "local"})

CLIENTS = ("obstore", "s3fs", "fsspec")
"""Who speaks to a store: obstore where it can, or the fsspec filesystem of the URL's scheme (s3fs for S3)."""


LIMITS = "limits"
"""An option for every kind of store: what it does otherwise than S3."""

OF_STORE = {
    "list_page": "list_page",
    "max_part": "max_part_bytes",
    "max_parts": "max_parts",
    "min_part": "min_part_bytes",
    "single_copy": "single_copy_bytes",
    "single_put": "single_put_bytes",
}


class Address(NamedTuple):
    """A URL taken apart, without any decoding: ``%``, ``?`` and ``#`` are letters of a key."""

    scheme: str
    host: str
    """Bucket, container or host; empty for file."""
    key: Key


def parse_url(url: str) -> Address:
    """ConfigError if the URL names no bucket or host."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    scheme = scheme.lower()
    if scheme in _FILE:
        return Address("file", "", os.fsencode(os.path.abspath(rest)).strip(b"/"))
    host, _, path = rest.partition("/")
    if not host and scheme in _S3 | _GCS | _AZURE | _HTTP:
        raise ConfigError(f"{url}: a bucket or host must follow {scheme}://")
    return Address(scheme, host, os.fsencode(path.rstrip("/")))


def open_origin(
    url: str,
    *,
    client: str = "obstore",
    options: Mapping[str, Any] | None = None,
    fetch: FetchConfig | None = None,
    upload: UploadConfig | None = None,
    limits: Limits | None = None,
    memory: Memory | None = None,
) -> tuple[Origin, Key]:
    """The origin of a URL and the key that the URL names in it. No request is made yet.

    ``memory`` is the account that uploads hold their bytes on; without it the origin has one of its own.
    ``options`` are those of the scheme's fsspec filesystem. ConfigError for an unknown scheme, client or option.
    """
    address, options = parse_url(url), dict(options or {})
    fetch = fetch or FetchConfig()
    of_store = options.pop(LIMITS, None)
    limits = limits or limits_of(upload or UploadConfig(), of_store)
    memory = memory or Memory(8 * limits.buffer_bytes, limits={Purpose.UPLOAD: limits.buffer_bytes})
    _check_client(client)
    if address.scheme == "file" and client != "fsspec":
        from tiercache.origins.posix import PosixOrigin

        return PosixOrigin(part_bytes=limits.part_size_bytes), address.key
    if address.scheme in _S3 and client == "obstore":
        from tiercache.origins.s3 import S3Options, S3Origin

        return S3Origin(address.host, S3Options.parse(options), fetch=fetch, limits=limits, memory=memory), address.key
    if address.scheme in _GCS | _AZURE | _HTTP and client == "obstore":
        from tiercache.origins.objectstore_open import open_store

        return open_store(address.scheme, address.host, options, fetch=fetch, limits=limits, memory=memory), address.key
    from tiercache.origins.fsspec_origin import open_filesystem

    return open_filesystem(url, options, fetch=fetch, memory=memory)


def origin_identity(url: str, options: Mapping[str, Any] | None = None, *, client: str = "obstore") -> str:
    """What ``open_origin(...)[0].identity`` will be, without opening anything."""
    address = parse_url(url)
    options = {name: value for name, value in (options or {}).items() if name != LIMITS}
    _check_client(client)
    if address.scheme == "file":
        return "file:///"
    if address.scheme in _S3:
        from tiercache.origins.s3.options import S3Options

        return S3Options.parse(options or {}).identity(address.host)
    if address.scheme in _GCS:
        return f"gs://{address.host}"
    if address.scheme in _AZURE:
        from tiercache.origins.objectstore_open import azure_identity

        return azure_identity(address.host, options or {})
    if address.scheme in _HTTP:
        return f"{address.scheme}://{address.host}"
    from tiercache.origins.fsspec_origin import filesystem_identity

    return filesystem_identity(url, options)


def limits_of(upload: UploadConfig, of_store: Mapping[str, Any] | None = None) -> Limits:
    """The user's part size and concurrency within the store's own limits, which are S3's unless ``of_store`` tells
    others. ConfigError for an unknown one, or a bad value."""
    limits = Limits()._replace(**_told(of_store or {}))
    return limits._replace(
        part_size_bytes=upload.part_size,
        single_put_bytes=min(upload.part_size, limits.single_put_bytes) if of_store else upload.part_size,
        part_concurrency=upload.part_concurrency,
        buffer_bytes=upload.buffer_bytes,
    )


def _told(of_store: Mapping[str, Any]) -> dict[str, int]:
    told: dict[str, int] = {}
    for name, value in of_store.items():
        if name not in OF_STORE:
            raise ConfigError(f"unknown limit {name!r}: allowed are {', '.join(sorted(OF_STORE))}")
        try:
            told[OF_STORE[name]] = parse_size(value)
        except ValueError as error:
            raise ConfigError(f"limits.{name}: {error}") from None
        if told[OF_STORE[name]] < 1:
            raise ConfigError(f"limits.{name}: {value!r} is out of range; allowed: at least 1")
    return told


def _check_client(client: str) -> None:
    if client not in CLIENTS:
        raise ConfigError(f"unknown client {client!r}: allowed are {', '.join(CLIENTS)}")
