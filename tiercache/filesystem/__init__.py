"""The fsspec filesystem, registered as ``tiercache``."""

from tiercache.filesystem.filesystem import TierCacheFileSystem

__all__ = ["TierCacheFileSystem"]
