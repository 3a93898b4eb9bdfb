"""Parts of the NVMe tier for files with certain names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from tiercache.config.fields import Share
from tiercache.config.section import Section
from tiercache.units import Size, format_size

QUOTAS_MAX = 64


class QuotaConfig(Section):
    """A part of the NVMe tier for files with these names, which hold no more and lose nothing to others."""

    path: str = Field(min_length=1)
    """A glob as that of a rule."""
    capacity: Share
    """A share counts against ``nvme.capacity``."""

    @field_validator("capacity")
    @classmethod
    def _is_something(cls, value: Size) -> Size:
        if not any(value):
            raise ValueError("0 would keep nothing; allowed: more, or the path in nvme.exclude")
        return value


def _few_that_differ(quotas: tuple[QuotaConfig, ...]) -> tuple[QuotaConfig, ...]:
    if len(quotas) > QUOTAS_MAX:
        raise ValueError(f"{len(quotas)} are too many; allowed: {QUOTAS_MAX}")
    paths = [quota.path for quota in quotas]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"{path!r} is there twice; allowed: one quota for each path")
    return quotas


Quotas = Annotated[tuple[QuotaConfig, ...], AfterValidator(_few_that_differ)]


def check_sum(quotas: Sequence[QuotaConfig], capacity_bytes: int) -> None:
    """ValueError when they leave nothing of the tier; one that is off has nothing to leave."""
    quota_bytes = sum(quota.capacity.resolve(capacity_bytes) for quota in quotas)
    # Each share was rounded down, by less than a byte.
    if 0 < capacity_bytes <= quota_bytes + len(quotas):
        raise ValueError(
            f"the quotas are {format_size(quota_bytes)} together and leave nothing for what matches none; allowed: "
            f"less than nvme.capacity, which is {format_size(capacity_bytes)}"
        )
