"""Eviction policies: pure objects that the engine, the simulator and the tests share."""

from __future__ import annotations

from tiercache.errors import ConfigError
from tiercache.policies.base import CacheKey, Policy
from tiercache.policies.hold import Hold
from tiercache.policies.lru import Lru
from tiercache.policies.s3fifo import S3Fifo

POLICIES: dict[str, type[Lru] | type[S3Fifo] | type[Hold]] = {kind.name: kind for kind in (Lru, S3Fifo, Hold)}
"""Every policy by its name in the configuration."""


def make_policy(name: str, capacity_bytes: int) -> Policy:
    """A fresh policy for a tier of this capacity. ConfigError for an unknown name."""
    try:
        return POLICIES[name](capacity_bytes)
    except KeyError:
        raise ConfigError(f"policy {name!r}: allowed are {', '.join(sorted(POLICIES))}") from None


__all__ = ["POLICIES", "CacheKey", "Hold", "Lru", "Policy", "S3Fifo", "make_policy"]
