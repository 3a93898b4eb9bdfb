"""The cache: where bytes lie, how they get there, and that they are right."""

from tiercache.cache.cache import Cache
from tiercache.cache.opening import Opened
from tiercache.cache.reader import Ahead
from tiercache.cache.recovery import Recovered
from tiercache.cache.words import Location, VersionRef, version_ref

__all__ = ["Ahead", "Cache", "Location", "Opened", "Recovered", "VersionRef", "version_ref"]
