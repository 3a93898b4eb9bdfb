"""A share of the objects instead of all of them, with all of their reads.

Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015: at that share of the capacity they hit as all
of them do. A few objects that make up many of the reads may be in the sample or not; that there are more or fewer reads
than the share says tells which, and such reads are taken for hits (SHARDS-adj).
"""

from __future__ import annotations

import zlib

from tiercache.bench.simulator.replay import Counts, Read


def thin(reads: list[Read], most: int) -> tuple[list[Read], float]:
    """The reads of a share of the objects, about ``most`` of them, and the share."""
    if len(reads) <= most:
        return reads, 1.0
    share = most / len(reads)
    last = int(share * 2**32)
    return [read for read in reads if zlib.crc32(read[0]) <= last], share


def adjusted(counts: Counts, *, reads: float, read_bytes: float) -> Counts:
    """For so many reads as a sample of this share should have."""
    more, more_bytes = round(reads) - counts.reads, round(read_bytes) - counts.read_bytes
    return counts._replace(
        reads=counts.reads + more,
        hits=max(0, counts.hits + more),
        read_bytes=counts.read_bytes + more_bytes,
        hit_bytes=max(0, counts.hit_bytes + more_bytes),
    )
