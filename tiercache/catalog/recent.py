"""What the engine read or wrote lately: it asks for the same few names several times in each request."""

from __future__ import annotations

import os
import threading
from typing import Final

from tiercache.catalog.records import VersionRecord
from tiercache.model import Entry, Key, OriginId, VersionId

MAX_NAMES = 4096
"""Names that are remembered, and versions; about a kilobyte each."""

UNKNOWN: Final = object()
"""The answer for what is not remembered; None is the answer for a name of which the catalog knows nothing."""


class Recent:
    """The catalog's only writer keeps it, so nothing in it is ever older than the catalog. Other threads and forked
    processes are told nothing: what they would leave here might be."""

    def __init__(self) -> None:
        self._owner = (os.getpid(), threading.get_ident())
        self._entries: dict[tuple[OriginId, Key], Entry | None] = {}
        self._listings: dict[tuple[OriginId, Key], int] = {}
        self._versions: dict[VersionId, VersionRecord | None] = {}

    def is_mine(self) -> bool:
        """Whether the caller is the writer."""
        return self._owner == (os.getpid(), threading.get_ident())

    def entry(self, origin: OriginId, key: Key) -> Entry | object | None:
        return self._entries.get((origin, key), UNKNOWN)

    def keep_entry(self, origin: OriginId, key: Key, entry: Entry | None) -> None:
        if len(self._entries) >= MAX_NAMES:
            self._entries.clear()
        self._entries[origin, key] = entry

    def forget_entry(self, origin: OriginId, key: Key) -> None:
        self._entries.pop((origin, key), None)

    def version(self, version: VersionId) -> VersionRecord | object | None:
        return self._versions.get(version, UNKNOWN)

    def keep_version(self, version: VersionId, record: VersionRecord | None) -> None:
        if len(self._versions) >= MAX_NAMES:
            self._versions.clear()
        self._versions[version] = record

    def forget_version(self, version: VersionId) -> None:
        self._versions.pop(version, None)

    def listed_ns(self, origin: OriginId, directory: Key) -> int | None:
        return self._listings.get((origin, directory))

    def keep_listed_ns(self, origin: OriginId, directory: Key, listed_ns: int) -> None:
        if len(self._listings) >= MAX_NAMES:
            self._listings.clear()
        self._listings[origin, directory] = listed_ns

    def forget_listing(self, origin: OriginId, directory: Key) -> None:
        self._listings.pop((origin, directory), None)

    def clear(self) -> None:
        """Many names changed, or a transaction was given up."""
        self._entries.clear()
        self._listings.clear()
        self._versions.clear()
