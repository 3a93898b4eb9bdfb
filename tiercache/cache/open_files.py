"""Descriptors of recently read cache files, so that a hit need not open its file."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import NamedTuple

from tiercache.model import Tier, VersionId
from tiercache.tier.files import FileIdentity

OPEN_FILES = 256


class OpenFile(NamedTuple):
    fd: int
    identity: FileIdentity
    tier: Tier
    complete: bool
    """False for a file that is being filled: then only its resident blocks are bytes of the object."""


class OpenFiles:
    """At most ``limit`` descriptors, the least recently used closed first. A victim's is closed when it is evicted,
    else the disk would not give its room back."""

    def __init__(self, limit: int = OPEN_FILES) -> None:
        self._limit = limit
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
