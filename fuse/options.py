"""How one mount behaves: what a profile and the command line decide for it."""

from __future__ import annotations

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
    """The kernel's own read-ahead on the mount; it stays at 128 whatever the protocol says, so it is set afterwards."""
    driver: DriverName = "auto"
    """auto: pyfuse3 where it is installed and free in this process (it hosts one mount), else our own session."""

    @property
    def timeout_s(self) -> float:
        return min(self.ttl_s, LONGEST_TIMEOUT_S)

    @property
    def negative_timeout_s(self) -> float:
        return min(self.negative_ttl_s, LONGEST_NEGATIVE_TIMEOUT_S)
