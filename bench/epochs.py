"""Run epochs as training does: a data loader, cold and once more, its order told before or not, beside a bare loop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from tiercache.bench.cgroup import why_no_memory_group
from tiercache.bench.dataset import DataSet, Piece, generate, shuffled
from tiercache.bench.hinting import planned
from tiercache.bench.loading import flood, load
from tiercache.bench.node import ROOMY, Node
from tiercache.bench.phases import Phase
from tiercache.bench.results import loaded_epoch
from tiercache.bench.scarce import run_scarce
from tiercache.bench.served import Served
from tiercache.bench.spent import Spent
from tiercache.bench.stage import Stage
from tiercache.bench.targets import BARE_LOOP, Role, Target, epoch_targets
from tiercache.bench.terms import Terms
from tiercache.bench.workloads import Epochs
from tiercache.errors import ConfigError, TierCacheError

SECOND = {Phase.HINTED: Phase.AGAIN_HINTED, Phase.SHUFFLED: Phase.AGAIN}
"""By the cold epoch that it follows."""

HINTED = frozenset({Phase.HINTED, Phase.AGAIN_HINTED})

TERMS = Terms("dataset", read_only=True)


def run_epochs(stage: Stage, workload: Epochs) -> None:
    """All phases. The data set is generated and uploaded unless it is on the stage already."""
    line = stage.place.line
    if line is None:
        raise ConfigError(f"{workload.name} needs an S3 origin: it counts requests, and lets them wait")
    line.set_latency(0.0)
    if workload.memory_share and why_no_memory_group():
        stage.notes.append(f"{workload.name} is left out: {why_no_memory_group()}.")
        return
    if workload.dataset not in stage.datasets:
        _add_dataset(stage, workload)
    if workload.memory_share:
        run_scarce(stage, workload, stage.datasets[workload.dataset], TERMS)
        return
    run = _Run(stage, workload, stage.datasets[workload.dataset])
    run.warm_the_server()
    line.set_latency(workload.latency_s)
    try:
        run.run()
    finally:
        line.set_latency(stage.place.slowness.latency_s if stage.place.slowness else 0.0)


def _add_dataset(stage: Stage, workload: Epochs) -> None:
    directory = stage.work_directory / "local" / workload.dataset
    told = stage.progress.moving("generating", workload.files * workload.median_bytes)
    dataset = generate(workload, directory, told)
    place = stage.place.below(dataset.name)
    place.upload(dataset, stage.progress.moving("uploading", dataset.total_bytes))
    stage.adopt(place, dataset)
    stage.datasets[workload.dataset] = dataset


class _Run:
    def __init__(self, stage: Stage, workload: Epochs, dataset: DataSet) -> None:
        self.stage = stage
        self.workload = workload
        self.dataset = dataset
        self.place = stage.place.below(dataset.name)
        peers = [peer.name for peer in stage.peers if peer.serves(self.place)]
        self.targets = {
            phase: epoch_targets(blind=phase is Phase.SHUFFLED, mount=stage.mount, peers=peers)
            for phase in workload.phases
        }

    def run(self) -> None:
        epochs = sum(
            len(targets) + (sum(target.role is not Role.ORIGIN for target in targets) if phase in SECOND else 0)
            for phase, targets in self.targets.items()
        )
        self.stage.progress.expect(epochs * self.stage.rounds)
        for number in range(self.stage.rounds):
            for phase, targets in self.targets.items():
                for target in self.stage.rotated(targets, number, phase):
                    self._target(phase, target, number)

    def warm_the_server(self) -> None:
        """Every target finds the server's own cache as full."""
        [bare] = [target for target in next(iter(self.targets.values())) if target.name == BARE_LOOP]
        with self.stage.session(bare, self.place, self.dataset.directory, None) as session:
            flood(self.stage.pool, session, self.dataset.pieces, in_flight=self.workload.in_flight, batch=1)

    def _target(self, phase: Phase, target: Target, number: int) -> None:
        """One target's turn: a node that has nothing, and the second epoch of that node."""
        workers = 1 if target.name == BARE_LOOP else self.workload.workers
        with ExitStack() as stack:
            served = stack.enter_context(self.stage.fresh(target, self.place, TERMS, settings=ROOMY))
            session = stack.enter_context(
                self.stage.session(target, self.place, self.dataset.directory, served, workers=workers)
            )
            self.stage.pool.call(session, "prepare", workers=workers)
            if target.role is not Role.LOCAL:
                self._epoch(phase, target, session, number, served)
            if phase in SECOND and target.role is not Role.ORIGIN:
                self._epoch(SECOND[phase], target, session, number, served)

    def _epoch(self, phase: Phase, target: Target, session: str, number: int, served: Served | None) -> None:
        stage, workload = self.stage, self.workload
        stage.progress.say(f"{workload.name}, {phase}, round {number + 1}: {target.name}")
        os.sync()  # what the one before has written is not to be written during this one
        pieces = self._order(phase, number)
        before = stage.before(served)
        if target.name == BARE_LOOP:
            loaded = flood(stage.pool, session, pieces, in_flight=workload.in_flight, batch=workload.batch)
        else:
            told = served if phase in HINTED and isinstance(served, Node) else None
            batches = self._batches(pieces, told, mounted=target.mounted)
            loaded = load(stage.pool, session, batches, workers=workload.workers, prefetch=workload.prefetch)
            stage.pool.call(session, "settle", workers=workload.workers)
        spent = before.spent()
        if phase not in SECOND.values():
            prove_cold(target, sum(each.moved_bytes for each in loaded.timed), spent)
        stage.add(loaded_epoch(workload.name, phase, target, number, loaded, spent=spent))

    def _order(self, phase: Phase, number: int) -> list[Piece]:
        if phase is Phase.SORTED:
            return sorted(self.dataset.pieces, key=lambda piece: piece.name)
        epoch = "again" if phase in SECOND.values() else "first"
        return shuffled(self.dataset.pieces, f"{self.workload.seed} {number} {epoch}")

    def _batches(self, pieces: list[Piece], told: Node | None, *, mounted: bool) -> Iterator[Sequence[Piece]]:
        """As a sampler hands them out: each is drawn when a worker can take it."""
        numbers = range(len(pieces))
        size = self.workload.batch
        batches: Any = [numbers[at : at + size] for at in range(0, len(pieces), size)]
        if told is not None:
            batches = planned(batches, pieces, told, mounted=mounted)
        for batch in batches:
            yield [pieces[number] for number in batch]


def prove_cold(target: Target, moved_bytes: int, spent: Spent) -> None:
    """TierCacheError if an epoch that began with nothing did not bring all its bytes from the origin."""
    received_bytes = spent.traffic.received_bytes if spent.traffic else 0
    if received_bytes < moved_bytes:
        raise TierCacheError(
            f"{target.name}: {moved_bytes} bytes were read in an epoch that began with nothing, and only "
            f"{received_bytes} came from the origin"
        )
