"""Entity tags: opaque and unquoted inside, quoted on the wire."""

from __future__ import annotations

_MADE_UP = "unversioned-"


def plain(etag: str | None) -> str:
    """An ETag header without its quotes; a weak one keeps its spelling."""
    if etag and len(etag) > 1 and etag[0] == etag[-1] == '"':
        return etag[1:-1]
    return etag or ""


def plain_or_made_up(etag: str | None, modified_ns: int, size_bytes: int) -> str:
    """The etag, or where the store gives none one made of time and size, which cannot be sent as If-Match."""
    return plain(etag) or f"{_MADE_UP}{modified_ns}-{size_bytes}"


def header(etag: str) -> str | None:
    """The If-Match header for an etag; None if the store cannot know it."""
    if not etag or etag.startswith(_MADE_UP):
        return None
    return etag if '"' in etag else f'"{etag}"'
