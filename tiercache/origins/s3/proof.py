"""Whether what was written is what the store has, by the etags that it answers.

S3's etag of an object is the MD5 of its bytes, and of one that came in parts the MD5 of the MD5s of the parts and their
number; but not where the bucket encrypts with keys of KMS or of the client, nor with every store that speaks S3. So
another etag alone proves nothing: then the object is read back, once. Either it has other bytes, or this store's etags
say nothing of bytes and are not compared any more.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiercache.errors import Absent, Changed
from tiercache.memory import Memory, Purpose
from tiercache.model import Key
from tiercache.origins import metadata
from tiercache.origins.base import Source, Spoiled, Upload
from tiercache.origins.limits import Part
from tiercache.origins.local_file import read_part
from tiercache.origins.obstore_calls import Found

_log = logging.getLogger(__name__)

_MD5 = re.compile(r"[0-9a-f]{32}(-\d+)?")
_PIECE_BYTES = 4 * 1024 * 1024


def md5_of_parts(md5s: Sequence[str]) -> str:
    """The etag of an object that came in parts with these MD5s; ``""`` if they are none."""
    if not all(_MD5.fullmatch(md5) and "-" not in md5 for md5 in md5s):
        return ""
    joined = b"".join(bytes.fromhex(md5) for md5 in md5s)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(md5s)}"


def tells_md5(answer: Mapping[str, Any]) -> bool:
    """Whether the answer to a write does not say that its etag is no MD5."""
    by_kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
    return not by_kms and not answer.get("SSECustomerAlgorithm")


class Proof:
    """Of one bucket. ``head`` and ``read`` are those of the origin."""

    def __init__(
        self, memory: Memory, head: Callable[[Key], Found], read: Callable[[Key, int, int, str], memoryview]
    ) -> None:
        self._memory = memory
        self._head = head
        self._read = read
        self.by_etag = True
        """False once the etags of this store turned out to be no MD5s."""

    def of(self, key: Key, upload: Upload, etag: str, expected: str) -> str:
        """The etag of what was written, which was answered as ``etag``. Spoiled if the store has other bytes."""
        return self.by(key, upload, etag, expected, lambda found: self._is_same(key, found, upload.source))

    def by(self, key: Key, upload: Upload, etag: str, expected: str, is_same: Callable[[str], bool]) -> str:
        """The same; ``is_same`` reads back what has an etag, and compares it."""
        comparable = _MD5.fullmatch(etag) is not None and ("-" in etag) == ("-" in expected)
        if not self.by_etag or not comparable or etag == expected:
            return etag
        try:
            found = self._head(key)
            if metadata.upload_id_of(found.metadata) != upload.upload_id:
                return etag  # replaced by another since
            same = found.size_bytes == upload.source.size_bytes and is_same(found.etag)
        except (Absent, Changed):
            return etag
        if not same:
            raise Spoiled(f"{key!r}: the store has other bytes than were sent", found.etag)
        if found.etag != expected:
            _log.info("the etags of this store are no MD5s, and are not compared any more")
            self.by_etag = False
        return found.etag

    def has_parts(self, key: Key, etag: str, parts: Sequence[tuple[int, str]]) -> bool:
        """Whether the object consists of parts of these lengths and MD5s."""
        offset = 0
        for length, md5 in parts:
            digest = hashlib.md5(usedforsecurity=False)
            for at in range(offset, offset + length, _PIECE_BYTES):
                piece_bytes = min(_PIECE_BYTES, offset + length - at)
                with self._memory.held_in_thread(Purpose.UPLOAD, piece_bytes):
                    digest.update(self._read(key, at, piece_bytes, etag))
            if digest.hexdigest() != md5:
                return False
            offset += length
        return True

    def _is_same(self, key: Key, etag: str, source: Source) -> bool:
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for offset in range(0, source.size_bytes, _PIECE_BYTES):
                length = min(_PIECE_BYTES, source.size_bytes - offset)
                with self._memory.held_in_thread(Purpose.UPLOAD, 2 * length):
                    theirs = self._read(key, offset, length, etag)
                    if theirs != read_part(fd, source, Part(1, offset, length)):
                        return False
        finally:
            os.close(fd)
        return True
