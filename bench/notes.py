"""What a reader of the figures must know: how they came about, and what they do not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from tiercache.bench.machine import filesystem_of
from tiercache.bench.phases import DROPPED, WRITTEN, Phase
from tiercache.bench.place import Place
from tiercache.bench.slowness import Slowness
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Role
from tiercache.bench.workloads import Epochs, HitRatio, Loading, Reading, Training, Workload
from tiercache.config.limits import memory_limit_bytes
from tiercache.units import format_count, format_size


def stage_notes(stage: Stage, workloads: Sequence[Workload], directory: Path) -> Iterator[str]:
    """What a reader of the figures must know."""
    yield (
        "All targets take turns in each round; figures are medians over the rounds, ratios are medians of the ratios "
        "within a round. Every read was compared with a digest while the clock stood."
    )
    if any(not isinstance(workload, Loading | HitRatio) for workload in workloads):
        yield stage.page_cache.how
    yield from _about_mounts(stage, workloads)
    yield from _proofs(stage)
    yield from _memory_notes(stage, workloads)
    yield from _about_epochs(workloads)
    yield from _evictions(stage)
    yield from _about_training(workloads)
    if filesystem_of(directory) in ("tmpfs", "ramfs"):
        yield f"{directory} is in memory ({filesystem_of(directory)}): there is no disk in these figures."


def _evictions(stage: Stage) -> Iterator[str]:
    """Where everything was to fit, and did not."""
    evicted = sum(
        value
        for epoch in stage.epochs
        if epoch.spent.counters and epoch.capacity_share is None
        for name, value in epoch.spent.counters.items()
        if name.startswith("evictions_total[nvme")
    )
    if evicted:
        yield f"The disk or the NVMe tier was too full: {format_count(int(evicted), 'file')} had to go meanwhile."


def _about_epochs(workloads: Sequence[Workload]) -> Iterator[str]:
    found = [workload for workload in workloads if isinstance(workload, Epochs) and workload.phases]
    if found:
        yield (
            f"Epochs: {found[0].in_flight} requests in flight are the bare loop, which every row is held against; all "
            "others read as a data loader. Latency is added as the part's name says, the server's own cache was full "
            "for every row, and each cold epoch was seen to bring all its bytes from the origin. Their digests are "
            "taken inside the clock."
        )


def _about_training(workloads: Sequence[Workload]) -> Iterator[str]:
    if any(isinstance(workload, Training) for workload in workloads):
        yield (
            "Training: PyTorch's DataLoader, Pillow and a small convolutional network, on the processor: the model "
            "shares the cores with decoding and reading, so its utilisation is no accelerator's. Each epoch has a "
            "process of its own; the clock begins when its model is ready, and holds the start of its workers."
        )


def _about_mounts(stage: Stage, workloads: Sequence[Workload]) -> Iterator[str]:
    if any(epoch.spent.server for epoch in stage.epochs):
        yield "Server CPU and memory are those of the process behind a target: our engine, or a peer with its children."
    for peer in stage.peers:
        yield peer.tuning
    for workload in workloads:
        if isinstance(workload, Reading) and workload.in_directory:
            others = [peer.name for peer in stage.peers if not peer.serves(Place.of_directory(stage.work_directory))]
            without = f"; {' and '.join(others)} cannot show one" if others else ""
            yield f"The origin of {workload.name} is a directory{without}."
    if stage.peers and any(epoch.phase in WRITTEN for epoch in stage.epochs):
        yield (
            "Written files were read back, compared and removed off the clock before the peers began to upload them"
            + (", and so were ours." if all(workload.mounts_only for workload in workloads) else ".")
        )


def _memory_notes(stage: Stage, workloads: Sequence[Workload]) -> Iterator[str]:
    memory_bytes = memory_limit_bytes()
    for name, dataset in stage.datasets.items():
        if memory_bytes > dataset.total_bytes:
            users = [
                each.name
                for each in workloads
                if isinstance(each, Reading) and each.dataset == name and Phase.WARM in each.phases
            ]
            if not users:
                continue
            yield (
                f"RAM ({format_size(memory_bytes)}) exceeds the data set of {', '.join(users)} "
                f"({format_size(dataset.total_bytes)}): every target's warm rounds are answered from memory. "
                "The disk-warm rounds show the disk."
            )


def _proofs(stage: Stage) -> Iterator[str]:
    dropped = _resident_shares(stage, DROPPED)
    if dropped:
        yield (
            f"Proof (mincore): before a cold or disk-warm epoch at most {max(dropped) * 100:.1f} % of the pages of "
            "cache files and local files were in memory."
        )
    warm = _resident_shares(stage, {Phase.WARM}, besides=Role.PEER)
    if warm:
        yield f"Before a warm epoch at least {min(warm) * 100:.1f} % of them were."


def _resident_shares(stage: Stage, phases: Set[Phase], *, besides: Role | None = None) -> list[float]:
    shares = (
        epoch.resident_before for epoch in stage.epochs if epoch.phase in phases and epoch.target.role is not besides
    )
    return [share for share in shares if share is not None]


def about_place(place: Place) -> Iterator[str]:
    """Where the truth lay, and how slow it was."""
    yield f"The origin is {place.description}."
    if place.line is not None and place.slowness != Slowness():
        yield (
            f"It is slowed down to {place.slowness} by a TCP proxy in front of the server, which every target's "
            "requests go through alike; its requests are those that the table counts for uncached targets."
        )
    elif place.line is None and place.slowness is not None:
        yield (
            f"It is slowed down to {place.slowness} by the same model on both sides: in the engine for the cached "
            "targets, in the readers (with one bandwidth for all of them) for the uncached one."
        )
