"""Data sets: files in a local directory, cut into the pieces that one request reads, each with its digest."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from tiercache.bench.workloads import Epochs, HitRatio, Reading
from tiercache.units import KIB, MIB

Generated = Reading | Epochs | HitRatio

Told = Callable[[int], None]
"""Called with the number of further bytes done."""

_CHUNK_BYTES = 4 * MIB


class Piece(NamedTuple):
    """What one request reads, and what it must get."""

    name: str
    offset: int
    length: int
    digest: bytes
    whole: bool
    """The piece is the file."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """Files below ``directory``; names are relative, with slashes."""

    name: str
    directory: Path
    files: dict[str, int]
    """Size in bytes by name."""
    pieces: tuple[Piece, ...]

    @property
    def total_bytes(self) -> int:
        return sum(self.files.values())

    def paths(self) -> list[Path]:
        return [self.directory / name for name in self.files]


def digest_of(data: bytes | memoryview) -> bytes:
    """What is compared after each read."""
    return xxhash.xxh3_64_digest(data)


def random_bytes(seed: str, size_bytes: int) -> bytes:
    """The same for the same seed, of any size: one call of the generator makes less than 256 MiB."""
    numbers = random.Random(seed)
    return b"".join(numbers.randbytes(length) for length in _chunks(size_bytes))


def generate(workload: Generated, directory: Path, told: Told, *, per_directory: int = 100) -> DataSet:
    """Write the workload's files: random bytes, the same for the same seed."""
    numbers = random.Random(workload.seed)
    for number, size_bytes in enumerate(_sizes(workload, numbers)):
        path = directory / f"{number // per_directory:03d}" / f"{number:06d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for length in _chunks(size_bytes):
                file.write(numbers.randbytes(length))
                told(length)
    return describe(directory.name, directory, request_bytes=workload.request_bytes)


def describe(name: str, directory: Path, *, request_bytes: int = 0) -> DataSet:
    """The data set of the files that lie in a directory."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in paths}
    pieces = [piece for file, size in sizes.items() for piece in _cut(directory, file, size, request_bytes)]
    return DataSet(name, directory, sizes, tuple(pieces))


def shuffled(pieces: Iterable[Piece], seed: str) -> list[Piece]:
    """A random order, the same for the same seed."""
    order = list(pieces)
    random.Random(seed).shuffle(order)
    return order


def _sizes(workload: Generated, numbers: random.Random) -> list[int]:
    if not workload.spread:
        return [workload.median_bytes] * workload.files
    center = math.log(workload.median_bytes)
    drawn = (int(numbers.lognormvariate(center, workload.spread)) for _ in range(workload.files))
    return [min(max(size, KIB), 16 * workload.median_bytes) for size in drawn]


def _chunks(size_bytes: int) -> Iterator[int]:
    for offset in range(0, size_bytes, _CHUNK_BYTES):
        yield min(_CHUNK_BYTES, size_bytes - offset)


def _cut(directory: Path, name: str, size_bytes: int, request_bytes: int) -> Iterator[Piece]:
    step = request_bytes or max(size_bytes, 1)
    with open(directory / name, "rb") as file:
        for offset in range(0, max(size_bytes, 1), step):
            data = os.pread(file.fileno(), step, offset)
            yield Piece(name, offset, len(data), digest_of(data), whole=len(data) == size_bytes)
