"""A tier: a directory of sparse files, one per version, with an exact account of its bytes."""

from tiercache.tier.files import FileIdentity, read_extent, write_extent
from tiercache.tier.tier import FileTier, Reservation

__all__ = ["FileIdentity", "FileTier", "Reservation", "read_extent", "write_extent"]
