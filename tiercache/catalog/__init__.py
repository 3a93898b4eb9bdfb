"""The catalog: names, inodes, listings and versions in LMDB, written by the engine, read by every client.

Nothing here is the only copy of anything, so commits are not synced and a doubtful file is set aside.
"""

from tiercache.catalog.reader import CatalogReader
from tiercache.catalog.records import Copy, Hit, VersionRecord
from tiercache.catalog.writer import Catalog
from tiercache.model import Tier

__all__ = ["Catalog", "CatalogReader", "Copy", "Hit", "Tier", "VersionRecord"]
