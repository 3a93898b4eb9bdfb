"""Listings of a bucket: pages of LIST turned into directory children, one entry a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tiercache.errors import Broken
from tiercache.model import Key, Kind, ObjectStat
from tiercache.origins import etags
from tiercache.origins.obstore_calls import nanoseconds, text_of
from tiercache.origins.s3.control import Control

Caller = Callable[[Callable[[], "Page"]], "Page"]
"""Runs the request for one page; the hook by which a retry repeats one page, not the whole listing."""


class Page(NamedTuple):
    """Objects and common prefixes of one LIST answer, and the token of the next (``""``: there is none)."""

    objects: list[ObjectStat]
    prefixes: list[Key]
    next_token: str


def directly(request: Callable[[], Page]) -> Page:
    """Run the request once."""
    return request()


def children(control: Control, directory: Key, page_size: int, call: Caller) -> Iterator[ObjectStat]:
    """The direct children of a directory; where an object and a prefix share a name, the directory wins."""
    prefix = directory + b"/" if directory else b""
    waiting: list[ObjectStat] = []
    for page in pages(control, prefix, page_size, call, delimiter="/"):
        for entry in _merged(page, prefix):
            if entry.kind is Kind.DIRECTORY:
                waiting = [held for held in waiting if held.key != entry.key]
            # `foo/` sorts after `foo-x`, so `foo` is held back until no later name can start with it
            passed = [held for held in waiting if not entry.key.startswith(held.key)]
            waiting = [held for held in waiting if entry.key.startswith(held.key)]
            yield from passed
            if entry.kind is Kind.DIRECTORY:
                yield entry
            else:
                waiting.append(entry)
    yield from waiting


def below(control: Control, directory: Key, page_size: int, call: Caller) -> Iterator[ObjectStat]:
    """Every object below a directory; a key with a trailing slash is the marker of a directory."""
    prefix = directory + b"/" if directory else b""
    for page in pages(control, prefix, page_size, call):
        for found in page.objects:
            if found.key == prefix:
                continue
            yield _marker(found) if found.key.endswith(b"/") else found


def pages(
    control: Control, prefix: Key, page_size: int, call: Caller = directly, *, delimiter: str = ""
) -> Iterator[Page]:
    """All pages under a prefix. Raises rather than end early."""
    token = ""
    while True:
        page = call(lambda token=token: _page(control, prefix, page_size, delimiter, token))  # type: ignore[misc]
        yield page
        token = page.next_token
        if not token:
            return


def _page(control: Control, prefix: Key, page_size: int, delimiter: str, token: str) -> Page:
    arguments: dict[str, Any] = {"Prefix": text_of(prefix), "MaxKeys": page_size}
    if delimiter:
        arguments["Delimiter"] = delimiter
    if token:
        arguments["ContinuationToken"] = token
    answer = control.call("list_objects_v2", prefix, **arguments)
    next_token = str(answer.get("NextContinuationToken") or "") if answer.get("IsTruncated") else ""
    if answer.get("IsTruncated") and not next_token:
        raise Broken(f"{control.name(prefix)}: the listing was cut short and cannot be continued")
    return Page(
        [_object(entry) for entry in answer.get("Contents", ()) if not _is_leftover(entry)],
        [entry["Prefix"].encode("utf-8", "surrogateescape") for entry in answer.get("CommonPrefixes", ())],
        next_token,
    )


def _is_leftover(entry: dict[str, Any]) -> bool:
    """SeaweedFS goes on listing a directory that lost its last object as ``key/``. Nobody put that there: unlike a real
    marker it has no etag."""
    return bool(entry["Key"].endswith("/")) and not str(entry.get("ETag") or "").strip('"')


def _object(entry: dict[str, Any]) -> ObjectStat:
    modified_ns = nanoseconds(entry["LastModified"])
    size_bytes = int(entry["Size"])
    etag = etags.plain_or_made_up(entry.get("ETag"), modified_ns, size_bytes)
    return ObjectStat(entry["Key"].encode("utf-8", "surrogateescape"), Kind.FILE, size_bytes, etag, modified_ns)


def _marker(found: ObjectStat) -> ObjectStat:
    return ObjectStat(found.key[:-1], Kind.DIRECTORY, 0, "", found.modified_ns)


def _merged(page: Page, prefix: Key) -> list[ObjectStat]:
    """The entries of a page in key order; without the marker of the directory itself.

    An empty name directly under the root has no key of its own (it would be the root's), so it is left out.
    """
    directories = [ObjectStat(found[:-1], Kind.DIRECTORY, 0, "", 0) for found in page.prefixes if found != b"/"]
    files = [found for found in page.objects if found.key != prefix]
    return sorted(directories + files, key=lambda entry: entry.key + (b"/" if entry.kind is Kind.DIRECTORY else b""))
