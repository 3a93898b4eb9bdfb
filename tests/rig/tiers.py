"""A tier of a few units, filled without a cache."""

from __future__ import annotations

from pathlib import Path

from tiercache.globs import path_pattern
from tiercache.metrics import Metrics
from tiercache.model import Tier, VersionId
from tiercache.policies import make_policy
from tiercache.tier import FileTier, Quota, write_extent
from tiercache.units import KIB

UNIT = 4 * KIB


def version(number: int) -> VersionId:
    return VersionId(number.to_bytes(16, "big"))


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_tier(
    directory: Path,
    *,
    units: int = 10,
    policy: str = "lru",
    clock: Clock | None = None,
    quotas: dict[str, int] | None = None,
    share: float = 1.0,
) -> FileTier:
    """``quotas``: units by path."""
    parts = [
        Quota(path, path_pattern(path), part * UNIT, make_policy(policy, part * UNIT))
        for path, part in (quotas or {}).items()
    ]
    left = units - sum((quotas or {}).values())
    return FileTier(
        Tier.NVME,
        directory,
        capacity_bytes=units * UNIT,
        free_space_floor_bytes=0,
        policy=make_policy(policy, left * UNIT),
        quotas=parts,
        metrics=Metrics(),
        max_object_share=share,
        clock=clock or Clock(),
    )


def fill(tier: FileTier, number: int, size_bytes: int, *, name: bytes = b"") -> bool:
    reservation = tier.reserve(version(number), size_bytes, object_bytes=size_bytes, name=name)
    if reservation is None:
        return False
    write_extent(tier.path(version(number)), 0, bytes(size_bytes), size_bytes=size_bytes)
    reservation.settle()
    return True
