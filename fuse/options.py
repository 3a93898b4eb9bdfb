"""How one mount behaves: what a profile and the command line decide for it."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

DriverName = Literal["auto", "kernel", "pyfuse3"]

LONGEST_TIMEOUT_S = 365 * 86_400.0
"""Stands for "for ever": the kernel counts in jiffies and would overflow on infinity."""

LONGEST_NEGATIVE_TIMEOUT_S = 5.0


class MountOptions(NamedTuple):
    """Settings of one mount."""

    ttl_s: float = 1.0
    """For how long the kernel may keep names and attributes."""
    negative_ttl_s: float = 1.0
    """For how long it may remember that a name does not exist; at most 5 s."""
    read_only: bool = False
    posix_metadata: bool = True
    """Whether mode, owner and times may differ from the defaults, so that a listing alone cannot tell them."""
    allow_other: bool = False
    """Let other users in; file permissions still hold."""
    read_ahead_kb: int = 4096
    """The kernel's own read-ahead on the mount. It takes the lesser of what root has set for the mount and what the
    session tells it; libfuse's tells it no more than 128."""
    no_open: bool = False
    """The kernel opens and closes files without a word to us: no round trip for a file in its page cache. Right for
    many small files that nobody writes through this mount; large ones are read faster when they are opened, because
    then the kernel reads the cached copy by itself (passthrough)."""
    driver: DriverName = "auto"
    """auto: our own session, which can do more. pyfuse3 needs libfuse and hosts one mount per process."""
    source: str = "tiercache"
    """What is shown as mounted."""

    @property
    def no_opendir(self) -> bool:
        """The same for directories: the kernel keeps listings, which nothing but a notice of ours makes it drop."""
        return self.no_open and self.ttl_s == math.inf

    @property
    def timeout_s(self) -> float:
        return min(self.ttl_s, LONGEST_TIMEOUT_S)

    @property
    def attributes_timeout_s(self) -> float:
        """The same for attributes alone. Without open nothing tells us that a file is in use, so those of a name that
        was just believed must outlast it: else fstat right after open may ask for a replaced file (ESTALE)."""
        return min(2 * self.timeout_s, LONGEST_TIMEOUT_S) if self.no_open else self.timeout_s

    @property
    def negative_timeout_s(self) -> float:
        return min(self.negative_ttl_s, LONGEST_NEGATIVE_TIMEOUT_S)
