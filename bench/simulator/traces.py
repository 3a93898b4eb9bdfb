"""Traces of reads: random epochs, skewed popularity, or a file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from tiercache.bench.simulator.replay import Read
from tiercache.errors import ConfigError
from tiercache.tier.tier import charge_bytes

MEDIAN_BYTES = 100_000
HEADER = "key,size"


class Trace(NamedTuple):
    """Reads in their order, all of them known."""

    title: str
    reads: list[Read]
    uncounted: int = 0
    """So many reads at the start only fill the cache."""
    working_set: int = 0
    """So many objects are in use at a time, those of the last reads; 0 = all."""

    def footprint_bytes(self) -> int:
        """Of all objects that are in use at a time."""
        return sum(dict(self.reads[-self.working_set :]).values())

    def has_sizes(self) -> bool:
        """Whether not all objects have the same size, so that hits and bytes of hits differ."""
        return len({size_bytes for _, size_bytes in self.reads}) > 1


def epochs_trace(*, objects: int, epochs: int, spread: float, seed: int) -> Trace:
    """Each epoch reads every object once, in a new random order; the first one only fills the cache."""
    generator = random.Random(seed)
    catalog = _objects(objects, spread, generator)
    reads: list[Read] = []
    for _ in range(epochs):
        generator.shuffle(catalog)
        reads += catalog
    title = f"{epochs} random epochs over {objects:,} objects{_spoken(spread)}, the first one not counted"
    return Trace(title, reads, objects)


def change_trace(*, objects: int, epochs: int, spread: float, seed: int) -> Trace:
    """Random epochs over one data set, then as many over another one; only those after its first one count."""
    first = epochs_trace(objects=objects, epochs=epochs, spread=spread, seed=seed)
    second = epochs_trace(objects=objects, epochs=epochs, spread=spread, seed=seed + 1)
    reads = first.reads + [(b"new " + key, size_bytes) for key, size_bytes in second.reads]
    title = f"{epochs} random epochs over {objects:,} objects{_spoken(spread)}, then as many over others"
    return Trace(f"{title}, from the second of these counted", reads, len(first.reads) + objects, objects)


def scan_trace(*, objects: int, epochs: int, spread: float, seed: int) -> Trace:
    """Random epochs; between the reads of the last but one others are read, once; the last one counts."""
    calm = epochs_trace(objects=objects, epochs=epochs, spread=spread, seed=seed)
    scanned = _objects(objects, spread, random.Random(seed + 1))
    start = (epochs - 2) * objects
    reads = calm.reads[:start]
    for read, (key, size_bytes) in zip(calm.reads[start : start + objects], scanned, strict=True):
        reads += (read, (b"once " + key, size_bytes))
    title = f"{epochs} random epochs over {objects:,} objects{_spoken(spread)}, as many read once in the last but one"
    return Trace(f"{title}, the last one counted", reads + calm.reads[start + objects :], len(reads), objects)


def zipf_trace(*, objects: int, reads: int, alpha: float, spread: float, seed: int) -> Trace:
    """Independent reads, of the object of rank r with a chance of 1 / r^alpha."""
    generator = random.Random(seed)
    catalog = _objects(objects, spread, generator)
    weights = list(accumulate(rank**-alpha for rank in range(1, objects + 1)))
    picked = generator.choices(catalog, cum_weights=weights, k=reads)
    return Trace(f"{reads:,} reads of {objects:,} objects by zipf {alpha:g}{_spoken(spread)}", picked)


def file_trace(*paths: Path, on_remark: Callable[[bytes], None] = lambda line: None) -> Trace:
    """Files of lines KEY,SIZE with the size in bytes, one after the other. Empty lines, lines with # at the start
    (remarks), and a first line ``key,size`` are left out. A key with another size is another version, as in a cache.

    ConfigError when one cannot be read, naming the line.
    """
    known: dict[bytes, Read] = {}  # each read once in memory, however often it is in the trace
    reads: list[Read] = []
    for path in paths:
        try:
            with path.open("rb") as lines:
                reads += _parsed(path, lines, known, on_remark)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
    if not reads:
        raise ConfigError(f"{paths[-1]}: has no reads; allowed: lines of {HEADER}")
    return Trace(f"{len(reads):,} reads of {paths[-1].name}", reads)


def _parsed(
    path: Path, lines: Iterable[bytes], known: dict[bytes, Read], on_remark: Callable[[bytes], None]
) -> Iterator[Read]:
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if line.startswith(b"#"):
            on_remark(line)
            continue
        if not line or (number == 1 and line.lower() == HEADER.encode()):
            continue
        if line not in known:
            size = line.rpartition(b",")[2].strip()
            if b"," not in line or not size.isdigit():
                raise ConfigError(f"{path}: line {number} is not {HEADER}, with the size in bytes")
            known[line] = (line, charge_bytes(int(size)))
        yield known[line]


def _objects(objects: int, spread: float, generator: random.Random) -> list[Read]:
    """Keys with sizes of a lognormal distribution, in whole units as a tier charges them."""
    center = math.log(MEDIAN_BYTES)
    sizes = (int(generator.lognormvariate(center, spread)) if spread else MEDIAN_BYTES for _ in range(objects))
    return [(b"%d" % number, charge_bytes(size)) for number, size in enumerate(sizes)]


def _spoken(spread: float) -> str:
    return f" of lognormal sizes (median {MEDIAN_BYTES // 1000} KB, spread {spread:g})" if spread else ""
