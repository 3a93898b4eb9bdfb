"""Workloads as data: what is read or written, how large, in which order, by how many, from which seed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tiercache.units import GIB, KIB, MIB


class Order(enum.StrEnum):
    """In which order an epoch goes through the data."""

    RANDOM = "random"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Epochs over a data set: whole files, or one large file in requests of ``request_bytes``."""

    name: str
    title: str
    files: int
    median_bytes: int
    spread: float = 0.0
    """Sigma of the logarithm of the sizes; 0 makes all equal."""
    order: Order
    workers: int
    request_bytes: int = 0
    """0: a request is a whole file."""
    requests: int
    """Requests of one round, where the bytes are near."""
    origin_requests: int
    """The same where the origin answers, which takes a hundred times as long."""
    seed: int = 1

    @property
    def dataset(self) -> str:
        """Workloads with the same one read the same files."""
        return f"{self.files}-{self.median_bytes}-{self.spread:g}-{self.request_bytes}-{self.seed}"

    def scaled(self, factor: float) -> Reading:
        """Fewer or more files, or a smaller or larger one."""
        if self.request_bytes:
            # Never less than a few requests, the last of them a short one.
            size_bytes = max(int(self.median_bytes * factor), 2 * self.request_bytes + self.request_bytes // 3)
            return replace(self, median_bytes=size_bytes)
        return replace(
            self,
            files=_at_least(self.files * factor, 12),
            requests=_at_least(self.requests * factor, 12),
            origin_requests=_at_least(self.origin_requests * factor, 8),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A checkpoint: written in one stream, then loaded again, here and on another node."""

    name: str
    title: str
    size_bytes: int
    write_bytes: int
    """One write call."""
    fsync: bool
    seed: int = 2

    def scaled(self, factor: float) -> Saving:
        """A smaller or larger checkpoint."""
        return replace(self, size_bytes=max(int(self.size_bytes * factor), 2 * self.write_bytes + 4099))


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """A tree: listed, looked up name by name in random order, and new small files created in it."""

    name: str
    title: str
    directories: int
    files: int
    """In each directory."""
    size_bytes: int
    created: int
    """New files of one round."""
    origin_requests: int
    seed: int = 3

    def scaled(self, factor: float) -> Naming:
        """Fewer or more directories and files."""
        return replace(
            self,
            directories=_at_least(self.directories * factor, 2),
            created=_at_least(self.created * factor, 6),
            origin_requests=_at_least(self.origin_requests * factor, 6),
        )


Workload = Reading | Saving | Naming

_IMAGES = Reading(
    name="smallfiles",
    title="images of about 110 KB in random order, one worker",
    files=1000,
    median_bytes=105 * KIB,
    spread=0.35,
    order=Order.RANDOM,
    workers=1,
    requests=600,
    origin_requests=60,
)

SUITES: Final[Mapping[str, tuple[Workload, ...]]] = {
    "smallfiles": (
        _IMAGES,
        replace(
            _IMAGES,
            name="smallfiles-4",
            title="images of about 110 KB in random order, four workers",
            workers=4,
            requests=1200,
            origin_requests=160,
        ),
    ),
    "largefile": (
        Reading(
            name="largefile",
            title="one large file from beginning to end, 8 MiB a read",
            files=1,
            median_bytes=2 * GIB,
            order=Order.SEQUENTIAL,
            workers=1,
            request_bytes=8 * MIB,
            requests=256,
            origin_requests=32,
        ),
    ),
    "checkpoint": (
        Saving(
            name="checkpoint",
            title="a checkpoint, written without fsync",
            size_bytes=256 * MIB,
            write_bytes=16 * MIB,
            fsync=False,
        ),
        Saving(
            name="checkpoint-fsync",
            title="a checkpoint, written with fsync",
            size_bytes=256 * MIB,
            write_bytes=16 * MIB,
            fsync=True,
        ),
    ),
    "metadata": (
        Naming(
            name="metadata",
            title="names of a tree",
            directories=20,
            files=50,
            size_bytes=4 * KIB,
            created=100,
            origin_requests=100,
        ),
    ),
}
"""By the name that the command line gives them."""


def _at_least(value: float, least: int) -> int:
    return max(int(value), least)
