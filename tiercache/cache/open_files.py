"""Descriptors of recently read cache files, so that a hit need not open its file."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from typing import NamedTuple

from tiercache.model import Tier, VersionId
from tiercache.tier.files import FileIdentity

OPEN_FILES = 4096
"""With a descriptor at hand a cold read is one read of the disk; else it has to find directory and inode as well."""

OPEN_FILES_SHARE = 4
"""At most one of so many descriptors that this process may have."""


def open_files_limit() -> int:
    """How many descriptors are kept open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES if soft == resource.RLIM_INFINITY else min(OPEN_FILES, max(16, soft // OPEN_FILES_SHARE))


class OpenFile(NamedTuple):
    fd: int
    identity: FileIdentity
    tier: Tier
    complete: bool
    """False for a file that is being filled: then only its resident blocks are bytes of the object."""


class OpenFiles:
    """At most ``limit`` descriptors, the least recently used closed first. A victim's is closed when it is evicted,
    else the disk would not give its room back."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = open_files_limit() if limit is None else limit
        self._files: OrderedDict[VersionId, OpenFile] = OrderedDict()

    def get(self, version: VersionId) -> OpenFile | None:
        file = self._files.get(version)
        if file is not None:
            self._files.move_to_end(version)
        return file

    def put(self, version: VersionId, file: OpenFile) -> None:
        self.close(version)
        self._files[version] = file
        if len(self._files) > self._limit:
            _, oldest = self._files.popitem(last=False)
            os.close(oldest.fd)

    def close(self, version: VersionId) -> None:
        file = self._files.pop(version, None)
        if file is not None:
            os.close(file.fd)

    def close_all(self) -> None:
        while self._files:
            _, file = self._files.popitem()
            os.close(file.fd)
