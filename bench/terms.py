"""On what terms a workload's mounts are made: ours and those of the peers alike."""

from __future__ import annotations

from typing import NamedTuple

from tiercache.config import PROFILES, ProfileName

PUT_OFF_S = 3600
"""Uploads that are put off by so much begin in no run."""

LONGEST_TTL_S = 86_400
"""Stands for "for ever" where a program wants a number."""


class Terms(NamedTuple):
    """What a mount is for."""

    profile: ProfileName
    read_only: bool = False
    put_off_uploads: bool = False
    """What is written is removed before it is sent, so that no upload disturbs a clock."""

    @property
    def ttl_s(self) -> int:
        """For how long names and attributes are believed: whole seconds, as each program understands them."""
        return int(min(PROFILES[self.profile].ttl_s, LONGEST_TTL_S))
