"""What a trace of reads says of more room, of other policies, of plans and of admission: the figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from tiercache.bench.simulator.grid import Cell, Grid, simulate
from tiercache.bench.simulator.recorded import Recorded
from tiercache.bench.simulator.replay import Read
from tiercache.bench.simulator.sampling import adjusted, thin
from tiercache.bench.simulator.traces import Trace
from tiercache.errors import ConfigError
from tiercache.policies import POLICIES, Planned
from tiercache.units import Size, format_count

READS_MAX: Final = 100_000
"""Of a longer trace a sample of the objects is replayed, of about so many reads."""

READS_MIN: Final = 1_000
READS_PER_OBJECT_MIN: Final = 2.0
"""With less nothing is said: what is read once can hit nowhere, and a part of the trace fills the cache."""

EPOCHS_SHARE: Final = 0.9
"""So many of the objects are read as often as all others, give or take one, where each epoch reads each once. Of
objects that are drawn again and again fewer are, from two reads each on."""


@dataclass(frozen=True)
class Advice:
    """``grid`` has every policy at every capacity; None where ``too_short``. The first reads of a trace only fill the
    cache: those of the first epoch, or half of all; figures are those of the others, objects that are not in the
    sample included."""

    recorded: Recorded
    policy: str
    capacity_bytes: int
    reads: int
    objects: int
    footprint_bytes: int
    epochs: float
    """How often each object was read, where each is read once in each epoch; else 0."""
    uncounted: int
    """Reads that only fill the cache."""
    read_bytes: int
    counted_s: float
    """How long the counted reads took; 0 if that is not known."""
    too_short: str
    grid: Grid | None = None
    second_miss: Cell | None = None
    """As now, but only what is missed again is let in."""

    def cell(self, policy: str, capacity_bytes: int) -> Cell:
        """One result."""
        assert self.grid is not None
        return next(c for c in self.grid.cells if c.policy == policy and c.capacity_bytes == capacity_bytes)

    @property
    def now(self) -> Cell:
        """The result of what the engine has."""
        return self.cell(self.policy, self.capacity_bytes)

    def origin_bytes(self, cell: Cell) -> float:
        """What would have come from the origin."""
        return self.read_bytes * (1 - cell.counts.byte_hit_ratio)

    def written_bytes(self, cell: Cell) -> float:
        """What would have been written to the cache."""
        return self.read_bytes * cell.counts.written_ratio


def advise(recorded: Recorded, *, capacity_bytes: int, policy: str, added_bytes: int) -> Advice:
    """Replay a trace at the capacity, half of it, twice, and with ``added_bytes`` more. ConfigError for a policy that
    cannot be simulated."""
    if policy not in POLICIES:
        raise ConfigError(f"policy {policy!r} cannot be simulated; allowed: {', '.join(POLICIES)}")
    advice = _described(recorded, capacity_bytes, policy)
    if advice.too_short:
        return advice
    replayed, share = thin(recorded.trace.reads, READS_MAX)
    uncounted = advice.uncounted * len(replayed) // advice.reads
    trace = Trace(recorded.trace.title, replayed, uncounted)
    sample = recorded.sample * share
    sizes = sorted({capacity_bytes // 2, capacity_bytes, capacity_bytes * 2, capacity_bytes + added_bytes})
    choosy = simulate(trace, [policy], [Size(capacity_bytes)], second_miss_reads=len(replayed), sample=sample)
    grid = simulate(trace, POLICIES, [Size(size_bytes) for size_bytes in sizes], sample=sample)
    cells = [_for_all(advice, cell, share) for cell in [*grid.cells, *choosy.cells]]
    return replace(advice, grid=grid._replace(cells=cells[:-1]), second_miss=cells[-1])


def _for_all(advice: Advice, cell: Cell, share: float) -> Cell:
    reads = (advice.reads - advice.uncounted) * advice.recorded.weight * share
    counts = adjusted(cell.counts, reads=reads, read_bytes=advice.read_bytes * advice.recorded.sample * share)
    return cell._replace(counts=counts)


def _described(recorded: Recorded, capacity_bytes: int, policy: str) -> Advice:
    reads = recorded.trace.reads
    objects = len(dict(reads))
    epochs = epochs_of(reads)
    uncounted = int(len(reads) / (epochs or 2))
    return Advice(
        recorded,
        policy,
        capacity_bytes,
        reads=len(reads),
        objects=objects,
        footprint_bytes=int(recorded.trace.footprint_bytes() / recorded.sample),
        epochs=epochs,
        uncounted=uncounted,
        read_bytes=int(sum(size_bytes for _, size_bytes in reads[uncounted:]) * recorded.weight / recorded.sample),
        counted_s=recorded.duration_s * (1 - uncounted / len(reads)),
        too_short=_too_short(len(reads), objects),
    )


def without_foresight(policy: str) -> bool:
    """Whether an engine can have the policy."""
    return policy != Planned.name


def epochs_of(reads: list[Read]) -> float:
    """How often each object is read, where each is read once in each epoch, however these are ordered; else 0."""
    numbers = Counter(key for key, _ in reads)
    middle = median(numbers.values())
    near = sum(abs(number - middle) <= 1 for number in numbers.values())
    return middle if middle >= READS_PER_OBJECT_MIN and near >= EPOCHS_SHARE * len(numbers) else 0.0


def _too_short(reads: int, objects: int) -> str:
    if reads < READS_MIN:
        return f"it has {format_count(reads, 'read')}; with fewer than {READS_MIN:,} nothing can be said"
    if reads < READS_PER_OBJECT_MIN * objects:
        return (
            f"it reads each object {reads / objects:.1f} times in the mean; nothing can be said before it is "
            f"{READS_PER_OBJECT_MIN:g} times"
        )
    return ""
