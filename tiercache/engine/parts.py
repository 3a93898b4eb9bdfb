"""The engine's services that files and names are made of; one set per engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tiercache.cache import Cache
from tiercache.config import CheckpointsConfig
from tiercache.engine.orphans import Orphans
from tiercache.journal import Journal
from tiercache.model import Key, VersionId
from tiercache.readahead import ReadAhead
from tiercache.staging import Staging
from tiercache.writeback import WriteBack


class Watch(Protocol):
    """Plans and guesses follow their readers by it."""

    def opened(self, key: Key, *, missed: bool) -> None:
        """A program opens a file to read it; ``missed``: its bytes are not here."""


@dataclass(frozen=True)
class Parts:
    """Handed down instead of five parameters."""

    cache: Cache
    readahead: ReadAhead
    staging: Staging
    journal: Journal
    writeback: WriteBack
    orphans: Orphans
    checkpoints: CheckpointsConfig
    watch: Watch
    """To be told when a program opens a file to read it."""
    traced: Callable[[VersionId, int], None]
    """And this with the version and its size, once they are known."""
