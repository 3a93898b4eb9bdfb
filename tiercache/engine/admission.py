"""What the configuration lets into the NVMe tier."""

from __future__ import annotations

import math

from tiercache.config import NvmeConfig
from tiercache.globs import path_pattern
from tiercache.policies.admission import Admission, AllOf, Names, SecondMiss, WriteBudget


def admission_of(settings: NvmeConfig, now_s: float) -> Admission | None:
    """None where everything is let in. A second miss is used up when it is asked for, so that is asked for last."""
    asked: list[Admission] = []
    if settings.include or settings.exclude:
        asked.append(
            Names([path_pattern(path) for path in settings.include], [path_pattern(path) for path in settings.exclude])
        )
    if settings.daily_writes_max < math.inf:
        asked.append(WriteBudget(settings.daily_writes_max, now_s))
    if settings.second_miss_s:
        asked.append(
            SecondMiss(settings.second_miss_s, apart_s=settings.second_miss_apart_s, keys_max=settings.second_miss_keys)
        )
    return AllOf(asked) if asked else None
