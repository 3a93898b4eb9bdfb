"""A tier: a directory of sparse files, one per version, with an exact account of its bytes."""

from tiercache.tier.files import FileIdentity, read_extent, write_extent
from tiercache.tier.health import DiskState
from tiercache.tier.rooms import Quota, Room
from tiercache.tier.tier import FileTier, Reservation

__all__ = ["DiskState", "FileIdentity", "FileTier", "Quota", "Reservation", "Room", "read_extent", "write_extent"]
