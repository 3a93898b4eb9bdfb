"""One file on its way in parts: which of them the store has, and who remembers that."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tiercache.checksum import CHECKSUM_BYTES
from tiercache.model import BLOCK_SIZE_BYTES, BaseVersion, Key, PartedUpload
from tiercache.origins import etags
from tiercache.origins.base import Upload
from tiercache.origins.limits import Part

_TOLD_AT_A_TIME = 16
"""Parts that are remembered together, at least: those that were forgotten are recognised by their MD5."""

_TOLD_IN_ALL = 50
"""What is remembered grows with the number of parts, so a large file tells it no more often than this."""


class Listed(NamedTuple):
    """What the store says of a part that it has."""

    etag: str
    size_bytes: int


class Sending:
    """Used by the threads that send its parts."""

    def __init__(
        self, key: Key, upload: Upload, parted: PartedUpload, parts: list[Part], listed: Mapping[int, Listed]
    ) -> None:
        self.key = key
        self.upload = upload
        self.parts = parts
        self._parted = parted
        self._listed = listed
        self._lock = threading.Lock()
        self._etags = dict(parted.etags)
        self._told = len(self._etags)
        self._sends_all = False
        self._md5s: dict[int, str] = {}
        self.etags_are_md5s = True
        """Whether the etags of the parts can tell of their bytes, as far as the store says."""

    @property
    def id(self) -> str:
        """The store's."""
        return self._parted.id

    def known(self, part: Part) -> str:
        """The etag of a part that the store has as it confirmed it to us; else ``""``."""
        etag = self._parted.etags.get(part.number, "")
        return etag if self._listed.get(part.number) == Listed(etag, part.length) else ""

    def has(self, part: Part, md5: bytes) -> bool:
        """Whether the store has these bytes, although nobody remembers that it confirmed them."""
        return self._listed.get(part.number) == Listed(md5.hex(), part.length)

    def was_sent(self, part: Part, md5: bytes, tells_md5: bool) -> None:
        """The store has answered to these bytes."""
        with self._lock:
            self._md5s[part.number] = md5.hex()
            self.etags_are_md5s &= tells_md5

    def md5s(self, etags: Sequence[str]) -> list[str]:
        """Of all parts, as they were sent; of those that the store had, as it told."""
        with self._lock:
            return [self._md5s.get(number, etag) for number, etag in enumerate(etags, 1)]

    def unchanged_in(self, part: Part) -> BaseVersion | None:
        """The base version, if it has just these bytes at the same place."""
        source, base = self.upload.source, self.upload.base
        end = part.offset + part.length
        if base is None or self._sends_all or etags.header(base.etag) is None or end > base.size_bytes:
            return None
        if part.offset % BLOCK_SIZE_BYTES or (end % BLOCK_SIZE_BYTES and end != base.size_bytes):
            return None
        blocks = slice(part.offset // BLOCK_SIZE_BYTES * CHECKSUM_BYTES, -(-end // BLOCK_SIZE_BYTES) * CHECKSUM_BYTES)
        ours, theirs = source.checksums[blocks], base.checksums[blocks]
        return base if ours and ours == theirs else None

    def send_all(self) -> None:
        """Nothing is copied (any more)."""
        self._sends_all = True

    def check(self) -> None:
        """Raise what ends the upload, if it is to end."""
        if self.upload.progress is not None:
            with self._lock:
                self.upload.progress(0)

    def confirm(self, part: Part, etag: str) -> None:
        """The store has the part."""
        with self._lock:
            self._etags[part.number] = etag
            untold = len(self._etags) - self._told
        if untold >= max(_TOLD_AT_A_TIME, len(self.parts) // _TOLD_IN_ALL):
            self.tell()
        if self.upload.progress is not None:
            with self._lock:
                self.upload.progress(part.length)

    def etag_of(self, number: int) -> str:
        """Of a part that was confirmed, else ``""``."""
        with self._lock:
            return self._etags.get(number, "")

    def tell(self) -> None:
        """Have everything remembered that is confirmed."""
        if self.upload.resume is None:
            return
        with self._lock:
            self._told = len(self._etags)
            self.upload.resume.confirmed(self._parted._replace(etags=dict(self._etags)))
