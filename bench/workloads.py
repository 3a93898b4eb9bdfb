"""Workloads as data: what is read or written, how large, in which order, by how many, from which seed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from tiercache.bench.phases import EPOCHS, NAMING, READING, SAVING, Phase
from tiercache.config import ProfileName
from tiercache.units import KIB


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
    phases: tuple[Phase, ...] = READING
    profile: ProfileName = "dataset"
    read_only: bool = True
    mounts_only: bool = False
    """Nothing but mounts and the plain directory, which is what a mount can be held against."""
    in_directory: bool = False
    """The data set's own directory is the origin: where the store would take longer to fill than the work takes."""
    most_rounds: int | None = None
    buffered: bool = True
    """As Python's ``open`` does by itself: it asks whether the file is a terminal, which costs a mount a request."""
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
    phases: tuple[Phase, ...] = SAVING
    """Without DELIVER uploads are put off, and the file is removed before one begins."""
    mounts_only: bool = False
    seed: int = 2

    @property
    def profile(self) -> ProfileName:
        """With ``checkpoint`` a close waits until the bytes are safe on this node's disk."""
        return "checkpoint" if self.fsync else "general"

    def scaled(self, factor: float) -> Saving:
        """A smaller or larger checkpoint."""
        write_bytes = min(self.write_bytes, _at_least(self.write_bytes * factor, 64 * KIB))
        return replace(
            self, write_bytes=write_bytes, size_bytes=max(int(self.size_bytes * factor), 2 * write_bytes + 4099)
        )


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
    phases: tuple[Phase, ...] = NAMING
    profile: ProfileName = "weights"
    """Names are believed for a minute, and it can be written."""
    mounts_only: bool = False
    seed: int = 3

    def scaled(self, factor: float) -> Naming:
        """Fewer or more directories and files."""
        return replace(
            self,
            directories=_at_least(self.directories * factor, 2),
            created=_at_least(self.created * factor, 6),
            origin_requests=_at_least(self.origin_requests * factor, 6),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """Epochs of a data loader over many small files of an object store, which is as far away as ``latency_s``."""

    name: str
    title: str
    files: int
    median_bytes: int
    spread: float = 0.0
    latency_s: float
    workers: int = 4
    prefetch: int = 2
    """Batches that a worker has to read at a time."""
    batch: int = 64
    """Files."""
    in_flight: int = 64
    """Of the bare loop that everything is held against."""
    phases: tuple[Phase, ...] = EPOCHS
    memory_share: float = 0.0
    """Instead of cold epochs the second one, with memory for this share of the data; 0: no limit."""
    request_bytes: int = 0
    seed: int = 5

    @property
    def dataset(self) -> str:
        """Workloads with the same one read the same files."""
        return f"epochs-{self.files}-{self.median_bytes}-{self.spread:g}-{self.seed}"

    @property
    def mounts_only(self) -> bool:
        return False

    def scaled(self, factor: float) -> Epochs:
        """Fewer or more files, never less than three batches."""
        batch = min(self.batch, _at_least(self.batch * factor, 4))
        return replace(self, batch=batch, files=_at_least(self.files * factor, 3 * batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model that learns from images in an object store, which is as far away as ``latency_s``."""

    name: str
    title: str
    images: int
    latency_s: float
    workers: int = 2
    prefetch: int = 2
    batch: int = 32
    seed: int = 6

    @property
    def mounts_only(self) -> bool:
        return False

    def scaled(self, factor: float) -> Training:
        """Fewer or more images, never less than two batches."""
        batch = min(self.batch, _at_least(self.batch * factor, 4))
        return replace(self, batch=batch, images=_at_least(self.images * factor, 2 * batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRatio:
    """Random epochs over files of one size, of which a share fits into the cache."""

    name: str
    title: str
    files: int
    median_bytes: int
    """A multiple of what a disk allocates, so that the share is exact."""
    policies: tuple[str, ...]
    shares: tuple[float, ...]
    fill_epochs: int = 2
    """That do not count: in the first the cache fills; in the second a policy that watches may make up its mind."""
    workers: int = 4
    spread: float = 0.0
    request_bytes: int = 0
    seed: int = 7

    @property
    def mounts_only(self) -> bool:
        return False

    def scaled(self, factor: float) -> HitRatio:
        """Fewer or more files: a multiple of ten, so that the shares are exact."""
        return replace(self, files=10 * _at_least(self.files * factor / 10, 2))


Loading = Epochs | Training
"""A data loader reads, through the line."""

Workload = Reading | Saving | Naming | Epochs | Training | HitRatio


def _at_least(value: float, least: int) -> int:
    return max(int(value), least)
