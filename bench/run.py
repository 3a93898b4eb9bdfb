"""One run: make the place, start the workers, run the workloads, tell what must be known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiercache.bench.machine import describe_machine, filesystem_of, is_busy
from tiercache.bench.naming import run_naming
from tiercache.bench.node import why_no_mount
from tiercache.bench.pagecache import PageCache
from tiercache.bench.peers.choice import open_peers
from tiercache.bench.phases import DROPPED, WRITTEN, Phase
from tiercache.bench.place import Place, make_place
from tiercache.bench.pool import WorkerPool
from tiercache.bench.progress import show_progress
from tiercache.bench.reading import run_reading
from tiercache.bench.report import Report, make_report
from tiercache.bench.saving import run_saving
from tiercache.bench.slowness import SlowDisk, Slowness
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Role
from tiercache.bench.workloads import Naming, Reading, Saving, Workload
from tiercache.config.limits import memory_limit_bytes
from tiercache.errors import ConfigError
from tiercache.units import format_size

BUSY = "Others were using this machine when the run began: trust the ratios more than the figures."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the command line asks for."""

    title: str
    workloads: tuple[Workload, ...]
    origin: str = ""
    """Empty: an S3 server of our own."""
    origin_options: Mapping[str, Any] = field(default_factory=dict)
    slowness: Slowness | None = None
    rounds: int = 5
    mount: bool = True
    driver: str = ""
    """Of our mounts; empty: the usual one."""
    against: tuple[str, ...] = ()
    """Names of peers."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    """The figures will not count: the machine's page cache is left alone, and with it everybody else's speed."""


def run(plan: Plan, directory: Path, *, prepare: Callable[[Stage], None] | None = None) -> Report:
    """Run a plan. ``directory`` is empty and on the disk that is to be measured.

    ``prepare`` may put data sets of its own onto the stage before the workloads run.
    """
    machine = describe_machine(directory)
    busy = is_busy()
    no_mount = why_no_mount() if plan.mount else "switched off"
    workloads = [workload for workload in plan.workloads if not (no_mount and workload.mounts_only)]
    if not workloads:
        raise ConfigError(f"nothing but mounts would be measured, and there can be none: {no_mount}")
    against = () if no_mount else plan.against
    workers = max((workload.workers for workload in workloads if isinstance(workload, Reading)), default=1)
    disk = SlowDisk(plan.slowness) if plan.slowness else None
    missing: list[str] = []

    def complain(line: str) -> None:
        print(f"tiercache: bench: {line}", file=sys.stderr)
        missing.append(line)

    with (
        show_progress() as progress,
        make_place(plan.origin, plan.origin_options, slowness=plan.slowness, work_directory=directory) as place,
        open_peers(against, place, directory / "peers", complain) as peers,
        WorkerPool(workers, disk) as pool,
    ):
        stage = Stage(
            place,
            pool,
            directory,
            progress,
            plan.rounds,
            mount=not no_mount,
            settings=plan.settings,
            driver=plan.driver,
            peers=peers,
            page_cache=PageCache(everything=not plan.quick),
        )
        machine |= {peer.name: peer.version() for peer in peers}
        if prepare is not None:
            prepare(stage)
        for workload in workloads:
            run_workload(stage, workload)
        notes = [
            *_about_place(place),
            *([f"No mount was measured: {no_mount}."] if no_mount else []),
            *([BUSY] if busy else []),
            *missing,
            *stage.notes,
            *stage_notes(stage, workloads, directory),
        ]
    return make_report(
        plan.title,
        workloads,
        stage.epochs,
        settings=_settings(plan, place),
        machine=machine,
        notes=notes,
    )


def run_workload(stage: Stage, workload: Workload) -> None:
    """Run one workload of any kind."""
    match workload:
        case Reading():
            run_reading(stage, workload)
        case Saving():
            run_saving(stage, workload)
        case Naming():
            run_naming(stage, workload)


def stage_notes(stage: Stage, workloads: Sequence[Workload], directory: Path) -> Iterator[str]:
    """What a reader of the figures must know."""
    yield (
        "All targets take turns in each round; figures are medians over the rounds, ratios are medians of the ratios "
        "within a round. Every read was compared with a digest while the clock stood."
    )
    yield stage.page_cache.how
    yield from _about_mounts(stage, workloads)
    yield from _proofs(stage)
    yield from _memory_notes(stage, workloads)
    if filesystem_of(directory) in ("tmpfs", "ramfs"):
        yield f"{directory} is in memory ({filesystem_of(directory)}): there is no disk in these figures."


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


def _about_place(place: Place) -> Iterator[str]:
    yield f"The origin is {place.description}."
    if place.line is not None:
        yield (
            f"It is slowed down to {place.slowness} by a TCP proxy in front of the server, which every target's "
            "requests go through alike; its requests are those that the table counts for uncached targets."
        )
    elif place.slowness is not None:
        yield (
            f"It is slowed down to {place.slowness} by the same model on both sides: in the engine for the cached "
            "targets, in the readers (with one bandwidth for all of them) for the uncached one."
        )


def _settings(plan: Plan, place: Place) -> dict[str, str]:
    return {
        "origin": place.description,
        "simulated": str(plan.slowness) if plan.slowness else "no",
        "rounds": str(plan.rounds),
        **{name: str(value) for name, value in plan.settings.items()},
    }
