"""Run the training workload: every way to read the images takes its turn in each round."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import ExitStack
from importlib.util import find_spec
from typing import NamedTuple

from tiercache.bench.dataset import DataSet, describe, shuffled
from tiercache.bench.epochs import TERMS, prove_cold
from tiercache.bench.loading import Loaded
from tiercache.bench.node import ROOMY
from tiercache.bench.phases import Phase
from tiercache.bench.results import loaded_epoch
from tiercache.bench.served import Served
from tiercache.bench.stage import Stage, setup_of
from tiercache.bench.targets import Role, Target, training_targets
from tiercache.bench.training.images import make_images
from tiercache.bench.training.loop import Job, Trained, train
from tiercache.bench.workloads import Training
from tiercache.errors import ConfigError, TierCacheError

NEEDED = ("torch", "PIL")
AVERAGE_BYTES = 110_000
_END_DEADLINE_S = 30.0


class Turn(NamedTuple):
    """One node's part of a round: targets that read one after the other."""

    targets: tuple[Target, ...]

    @property
    def first(self) -> Target:
        return self.targets[0]


def check_training() -> None:
    """ConfigError if this Python cannot train."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"training needs {' and '.join(missing)}: pip install 'tiercache-fs[bench-torch]'")


def run_training(stage: Stage, workload: Training) -> None:
    """All rounds. The images are made and uploaded."""
    line = stage.place.line
    if line is None:
        raise ConfigError(f"{workload.name} needs an S3 origin: it counts requests, and lets them wait")
    line.set_latency(0.0)
    directory = stage.work_directory / "local" / workload.name
    make_images(
        directory,
        workload.images,
        workload.seed,
        stage.progress.moving("making images", workload.images * AVERAGE_BYTES),
    )
    dataset = describe(workload.name, directory)
    stage.place.below(dataset.name).upload(dataset, stage.progress.moving("uploading", dataset.total_bytes))
    line.set_latency(workload.latency_s)
    _Run(stage, workload, dataset).run()
    line.set_latency(0.0)


class _Run:
    def __init__(self, stage: Stage, workload: Training, dataset: DataSet) -> None:
        self.stage = stage
        self.workload = workload
        self.dataset = dataset
        self.place = stage.place.below(dataset.name)
        self.turns = [Turn(targets) for targets in training_targets(mount=stage.mount)]

    def run(self) -> None:
        self.stage.progress.expect(self.stage.rounds * sum(len(turn.targets) for turn in self.turns))
        for number in range(self.stage.rounds):
            start = number % len(self.turns)
            for turn in [*self.turns[start:], *self.turns[:start]]:
                self._turn(turn, number)

    def _turn(self, turn: Turn, number: int) -> None:
        with ExitStack() as stack:
            served = stack.enter_context(self.stage.fresh(turn.first, self.place, TERMS, settings=ROOMY))
            for epoch, target in enumerate(turn.targets):
                self._epoch(target, number, served, cold=epoch == 0 and target.role is not Role.LOCAL)

    def _epoch(self, target: Target, number: int, served: Served | None, *, cold: bool) -> None:
        stage, workload = self.stage, self.workload
        stage.progress.say(f"{workload.name}, round {number + 1}: {target.name}")
        os.sync()
        job = Job(
            setup_of(target, self.place, self.dataset.directory, served),
            tuple(shuffled(self.dataset.pieces, f"{workload.seed} {number} {cold}")),
            planned=target.planned,
            workers=workload.workers,
            prefetch=workload.prefetch,
            batch=workload.batch,
            seed=workload.seed,
        )
        before = stage.before(served)
        trained = _in_a_process(job, target.name)
        spent = before.spent()
        if cold:
            prove_cold(target, trained.timed.moved_bytes, spent)
        loaded = Loaded((trained.timed,), trained.wall_s, (), trained.wait_s)
        stage.add(
            loaded_epoch(
                workload.name, Phase.TRAINING, target, number, loaded, spent=spent, compute_s=trained.compute_s
            )
        )


def _in_a_process(job: Job, name: str) -> Trained:
    """A process of its own for each epoch: its workers are forked, and nothing of ours is to be forked with it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=train, args=(job, theirs), name="tiercache-bench-training")
    process.start()
    theirs.close()
    try:
        answer: Trained | str = ours.recv()
    except EOFError:
        answer = "the training process ended"
    finally:
        process.join(_END_DEADLINE_S)
        process.terminate()
        process.join()
        ours.close()
    if isinstance(answer, str):
        raise TierCacheError(f"{name}: {answer}")
    return answer
