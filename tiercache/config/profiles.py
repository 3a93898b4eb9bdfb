"""Profiles: settings bundled under the name of what the data is."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tiercache.config.fields import Duration

ProfileName = Literal["dataset", "checkpoint", "weights", "scratch", "general"]
NO_REPLICAS = "replica comes with the shared cluster, which is not there yet; allowed: memory, local, origin"


def _possible(level: object) -> object:
    if level == "replica":
        raise ValueError(NO_REPLICAS)
    return level


Ack = Annotated[Literal["memory", "local", "origin"], BeforeValidator(_possible)]
"""A level of ``model.Durability`` that fsync can wait for today."""


class Profile(BaseModel):
    """How one origin or mount is read, kept and written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ProfileName
    ttl_s: Duration = 1.0
    """How long a name is believed without asking the origin again."""
    negative_ttl_s: Duration = Field(default=1.0, le=5)
    """The same for a name that was absent."""
    read_only: bool = False
    upload: bool = True
    """False: written files stay on this node and never reach the origin."""
    posix_metadata: bool = True
    """Whether mode, owner and times are read from (a HEAD each) and stored with the objects of a store."""
    ack: Ack = "local"
    """What fsync, and close with ``sync_on_close``, wait for."""
    sync_on_close: bool = False


PROFILES: dict[ProfileName, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="dataset", ttl_s=math.inf, negative_ttl_s=5, read_only=True, posix_metadata=False),
        Profile(name="checkpoint", sync_on_close=True),
        Profile(name="weights", ttl_s=60, negative_ttl_s=5, posix_metadata=False),
        Profile(name="scratch", upload=False, ack="memory"),
        Profile(name="general"),
    )
}
