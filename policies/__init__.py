"""Eviction policies: pure objects that the engine, the simulator and the tests share."""

from __future__ import annotations

from collections.abc import Callable

from tiercache.errors import ConfigError
from tiercache.policies.arc import Arc
from tiercache.policies.auto import Auto
from tiercache.policies.base import CacheKey, Policy
from tiercache.policies.fifo import Fifo
from tiercache.policies.gdsf import Gdsf
from tiercache.policies.hold import Hold
from tiercache.policies.lfu import Lfu
from tiercache.policies.lru import Lru
from tiercache.policies.planned import Planned
from tiercache.policies.s3fifo import S3Fifo
from tiercache.policies.sieve import Sieve
from tiercache.policies.wtinylfu import WTinyLfu

POLICIES: dict[str, Callable[[int], Policy]] = {
    Fifo.name: Fifo,
    Lru.name: Lru,
    Lfu.name: Lfu,
    S3Fifo.name: S3Fifo,
    Sieve.name: Sieve,
    Arc.name: Arc,
    WTinyLfu.name: WTinyLfu,
    Gdsf.name: Gdsf,
    Hold.name: Hold,
    Planned.name: Planned,
    Auto.name: Auto,
}
"""Every policy by its name; each is made with the capacity in bytes. The configuration has all but ``planned``, which
needs somebody who tells it the plan."""


def make_policy(name: str, capacity_bytes: int) -> Policy:
    """A fresh policy for a tier of this capacity. ConfigError for an unknown name."""
    if name not in POLICIES:
        raise ConfigError(f"policy {name!r}: allowed are {', '.join(sorted(POLICIES))}")
    return POLICIES[name](capacity_bytes)


__all__ = ["POLICIES", "CacheKey", "Planned", "Policy", "make_policy"]
