"""One cache directory that may be started several times, over an origin that the test rules."""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import trio

from rig.memory_origin import UnrulyOrigin
from tiercache.cache import Cache, VersionRef, version_ref
from tiercache.catalog import Catalog
from tiercache.config import FetchConfig
from tiercache.memory import Memory, Purpose
from tiercache.metrics import Metrics
from tiercache.model import BLOCK_SIZE_BYTES, ObjectStat, Tier, origin_id
from tiercache.origins.base import Origin
from tiercache.policies import make_policy
from tiercache.policies.admission import Admission
from tiercache.tier import FileTier
from tiercache.units import MIB

BS = BLOCK_SIZE_BYTES
T = TypeVar("T")


def bytes_of(seed: str, size_bytes: int) -> bytes:
    """The same random bytes for the same seed."""
    return random.Random(seed).randbytes(size_bytes)


@dataclass
class Running:
    """A started cache and its parts."""

    cache: Cache
    memory: Memory
    catalog: Catalog
    metrics: Metrics
    nursery: trio.Nursery
    nvme: FileTier
    ram: FileTier | None

    def figure(self, name: str, label: str = "") -> float:
        """One figure of the metrics; 0 when nothing was counted."""
        value = self.metrics.snapshot().get(name, 0.0)
        return value.get(label, 0.0) if isinstance(value, dict) else value


class Rig:
    """A cache directory on disk, its origin, and versions of objects in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.origin = UnrulyOrigin()

    def put(self, name: str, data: bytes) -> VersionRef:
        """Write an object at the origin and name its version."""
        return self.ref(self.origin, self.origin.put(name.encode(), data))

    @staticmethod
    def ref(origin: Origin, stat: ObjectStat) -> VersionRef:
        return version_ref(origin, origin_id(origin.identity), stat)

    @asynccontextmanager
    async def start(
        self,
        *,
        nvme_bytes: int = 256 * MIB,
        ram_bytes: int = 0,
        policy: str = "lru",
        verify: Any = "open",
        floor_bytes: int = 0,
        share: float = 1.0,
        admission: Admission | None = None,
        fetch: FetchConfig | None = None,
        memory_bytes: int = 1024 * MIB,
        slow_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> AsyncIterator[Running]:
        """One run of the cache; leaving the block is like a crash of the engine: nothing is tidied up."""
        metrics = Metrics()
        fetch = fetch or FetchConfig()
        memory = Memory(memory_bytes, limits={Purpose.FETCH: fetch.buffer_bytes}, metrics=metrics)
        catalog = Catalog(self.directory / "catalog", map_size_bytes=64 * MIB)
        try:
            tiers = [
                FileTier(
                    tier,
                    self.directory / tier.label,
                    capacity_bytes=capacity_bytes,
                    free_space_floor_bytes=floor_bytes if tier is Tier.NVME else 0,
                    policy=make_policy(policy, capacity_bytes),
                    metrics=metrics,
                    admission=admission if tier is Tier.NVME else None,
                    max_object_share=share,
                    slow_s=slow_s,
                    clock=clock,
                )
                for tier, capacity_bytes in ((Tier.NVME, nvme_bytes), (Tier.RAM, ram_bytes))
                if capacity_bytes or tier is Tier.NVME
            ]
            async with trio.open_nursery() as nursery:
                cache = Cache(
                    catalog,
                    tiers,
                    fetch=fetch,
                    memory=memory,
                    metrics=metrics,
                    nursery=nursery,
                    run_id=catalog.run_id(),
                    verify=verify,
                )
                await cache.recover()
                try:
                    yield Running(cache, memory, catalog, metrics, nursery, tiers[0], tiers[1] if ram_bytes else None)
                finally:
                    nursery.cancel_scope.cancel()
                    cache.close()
                    self.origin.release()
        finally:
            catalog.close(clean=False)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Wait for something that blocks, without blocking the cache."""
    return await trio.to_thread.run_sync(function, *args)
