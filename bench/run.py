"""One run: make the place, start the workers, run the workloads, tell what must be known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiercache.bench.epochs import run_epochs
from tiercache.bench.hitratio import run_hit_ratio
from tiercache.bench.machine import describe_machine, is_busy
from tiercache.bench.naming import run_naming
from tiercache.bench.node import why_no_mount
from tiercache.bench.notes import about_place, stage_notes
from tiercache.bench.pagecache import PageCache
from tiercache.bench.peers.choice import open_peers
from tiercache.bench.place import Place, make_place
from tiercache.bench.pool import WorkerPool
from tiercache.bench.progress import show_progress
from tiercache.bench.reading import run_reading
from tiercache.bench.report import Report, make_report
from tiercache.bench.saving import run_saving
from tiercache.bench.slowness import SlowDisk, Slowness
from tiercache.bench.stage import Stage
from tiercache.bench.training.run import check_training, run_training
from tiercache.bench.workloads import Epochs, HitRatio, Loading, Naming, Reading, Saving, Training, Workload
from tiercache.errors import ConfigError

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


def run(plan: Plan, directory: Path, *, prepare: Callable[[Stage], None] | None = None) -> Iterator[Report]:
    """Run a plan. ``directory`` is empty and on the disk that is to be measured.

    Gives the report so far after each workload, so that a run that is ended early has not been for nothing; the last
    one is of everything. ``prepare`` may put data sets of its own onto the stage before the workloads run.
    """
    machine = describe_machine(directory)
    busy = is_busy()
    no_mount = why_no_mount() if plan.mount else "switched off"
    workloads = [workload for workload in plan.workloads if not (no_mount and workload.mounts_only)]
    if not workloads:
        raise ConfigError(f"nothing but mounts would be measured, and there can be none: {no_mount}")
    if any(isinstance(workload, Training) for workload in workloads):
        check_training()
    against = () if no_mount else plan.against
    workers = max((each.workers for each in workloads if isinstance(each, Reading | Epochs | HitRatio)), default=1)
    slowness = plan.slowness
    if slowness is None and any(isinstance(each, Loading) for each in workloads):
        slowness = Slowness()
    disk = SlowDisk(plan.slowness) if plan.slowness else None
    missing: list[str] = []

    def complain(line: str) -> None:
        print(f"tiercache: bench: {line}", file=sys.stderr)
        missing.append(line)

    with (
        show_progress() as progress,
        make_place(plan.origin, plan.origin_options, slowness=slowness, work_directory=directory) as place,
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
        for number, workload in enumerate(workloads, 1):
            run_workload(stage, workload)
            done, left = workloads[:number], [each.name for each in workloads[number:]]
            notes = [
                *([f"The run was ended before {', '.join(left)}."] if left else []),
                *about_place(place),
                *([f"No mount was measured: {no_mount}."] if no_mount else []),
                *([BUSY] if busy else []),
                *missing,
                *stage.notes,
                *stage_notes(stage, done, directory),
            ]
            yield make_report(
                plan.title, done, stage.epochs, settings=_settings(plan, place), machine=machine, notes=notes
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
        case Epochs():
            run_epochs(stage, workload)
        case Training():
            run_training(stage, workload)
        case HitRatio():
            run_hit_ratio(stage, workload)


def _settings(plan: Plan, place: Place) -> dict[str, str]:
    return {
        "origin": place.description,
        "simulated": str(plan.slowness) if plan.slowness else "no",
        "rounds": str(plan.rounds),
        **{name: str(value) for name, value in plan.settings.items()},
    }
