"""The engine's services that files and names are made of; one set per engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiercache.cache import Cache
from tiercache.config import CheckpointsConfig
from tiercache.engine.orphans import Orphans
from tiercache.journal import Journal
from tiercache.model import Key, OriginId, VersionId
from tiercache.readahead import ReadAhead
from tiercache.staging import Staging
from tiercache.writeback import WriteBack


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
    opened: Callable[[OriginId, Key], None]
    """To be called when a program opens a file to read it: plans follow their readers by it."""
    traced: Callable[[VersionId, int], None]
    """And this with the version and its size, once they are known."""
