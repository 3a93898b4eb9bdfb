"""Run a reading workload: cold, warm and disk-warm, all targets in turn in each round."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tiercache.bench.dataset import DataSet, Piece, generate, shuffled
from tiercache.bench.pagecache import resident_share
from tiercache.bench.phases import Phase
from tiercache.bench.place import Place
from tiercache.bench.served import Behind, Served
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Role, Target
from tiercache.bench.terms import Terms
from tiercache.bench.workloads import Order, Reading

WARM_TURNS = 3
"""Warm rounds are this many times as many, because they are short, and cost nothing but their time. One stays one."""

DISK_SETTINGS = {"ram.capacity": 0}


def run_reading(stage: Stage, workload: Reading) -> None:
    """All phases. The data set is generated and uploaded unless it is on the stage already."""
    if workload.dataset not in stage.datasets:
        directory = stage.work_directory / "local" / workload.dataset
        told = stage.progress.moving("generating", workload.files * workload.median_bytes)
        add_dataset(stage, workload, generate(workload, directory, told))
    _Run(stage, workload, stage.datasets[workload.dataset]).run()


def add_dataset(stage: Stage, workload: Reading, dataset: DataSet) -> None:
    """Upload a data set for the workload and those that share it."""
    if not workload.in_directory:
        place = stage.place.below(dataset.name)
        place.upload(dataset, stage.progress.moving("uploading", dataset.total_bytes))
        stage.adopt(place, dataset)
    os.sync()  # the server's dirty pages could not be dropped
    stage.datasets[workload.dataset] = dataset


class _Run:
    def __init__(self, stage: Stage, workload: Reading, dataset: DataSet) -> None:
        self.stage = stage
        self.workload = workload
        self.dataset = dataset
        self.place = Place.of_directory(dataset.directory) if workload.in_directory else stage.place.below(dataset.name)
        self.terms = Terms(workload.profile, read_only=workload.read_only)
        self.targets = stage.targets(self.place, mounts_only=workload.mounts_only)
        self.rounds = min(stage.rounds, workload.most_rounds or stage.rounds)
        self.warm_rounds = self.rounds * (1 if workload.request_bytes or self.rounds == 1 else WARM_TURNS)

    def run(self) -> None:
        phases = self.workload.phases
        rounds = {Phase.COLD: self.rounds, Phase.WARM: self.warm_rounds, Phase.DISK_WARM: self.rounds}
        self.stage.progress.expect(sum(rounds[phase] for phase in phases) * len(self.targets))
        if Phase.COLD in phases:
            self._cold()
        if phases == (Phase.COLD,):
            return
        node = self.stage.new_node(self.place, self.terms, mounted=self.stage.mount)
        try:
            with self.stage.peer_mounts(self.targets, self.place, self.terms) as peers:
                if Phase.WARM in phases:
                    with node:
                        self._warm(Behind(node, peers))
                if Phase.DISK_WARM in phases:
                    # Over the same cache directory: what it holds survives the end of an engine.
                    with node.restart({**self.stage.settings, **DISK_SETTINGS}) as again:
                        self._disk_warm(Behind(again, peers))
        finally:
            node.remove()

    # -- phases -----------------------------------------------------------------------------------

    def _cold(self) -> None:
        for number in range(self.rounds):
            pieces = self._pieces(number, self.workload.origin_requests, repeat=False)
            for target in self.stage.rotated(self.targets, number, Phase.COLD):
                with (
                    self.stage.fresh(target, self.place, self.terms) as served,
                    self._session(target, served) as session,
                ):
                    self._epoch(Phase.COLD, target, session, number, pieces, served)

    def _warm(self, behind: Behind) -> None:
        with ExitStack() as stack:
            sessions = self._opened(stack, behind)
            for number in range(self.warm_rounds):
                for target in self.stage.rotated(self.targets, number, Phase.WARM):
                    pieces = self._pieces(number, self._requests(target), repeat=True)
                    self._epoch(Phase.WARM, target, sessions[target.name], number, pieces, behind.of(target))

    def _disk_warm(self, behind: Behind) -> None:
        with ExitStack() as stack:
            sessions = self._opened(stack, behind)
            for number in range(self.rounds):
                for target in self.stage.rotated(self.targets, number, Phase.DISK_WARM):
                    # No piece twice: the second time it would come from memory.
                    pieces = self._pieces(number, self._requests(target), repeat=False)
                    self._epoch(Phase.DISK_WARM, target, sessions[target.name], number, pieces, behind.of(target))

    # -- parts ------------------------------------------------------------------------------------

    def _opened(self, stack: ExitStack, behind: Behind) -> dict[str, str]:
        """A session of each target, and a first epoch that fills what there is to fill. It checks every byte too."""
        sessions = {}
        for target in self.targets:
            session = stack.enter_context(self._session(target, behind.of(target)))
            self.stage.progress.say(f"{self.workload.name}: filling, {target.name}")
            pieces = self.dataset.pieces
            if target.role is Role.ORIGIN:
                pieces = pieces[: self.workload.origin_requests]
            self.stage.pool.read(session, pieces, workers=self.workload.workers)
            # What was opened before all of it was there is not what a program opens afterwards.
            self.stage.pool.call(session, "settle", workers=self.workload.workers)
            sessions[target.name] = session
        return sessions

    @contextmanager
    def _session(self, target: Target, served: Served | None) -> Iterator[str]:
        workers, buffered = self.workload.workers, self.workload.buffered
        with self.stage.session(
            target, self.place, self.dataset.directory, served, workers=workers, buffered=buffered
        ) as session:
            self.stage.pool.call(session, "prepare", workers=workers)
            yield session

    def _requests(self, target: Target) -> int:
        return self.workload.origin_requests if target.role is Role.ORIGIN else self.workload.requests

    def _pieces(self, number: int, wanted: int, *, repeat: bool) -> list[Piece]:
        """What a round reads: the same for all targets, only less of it from the origin."""
        order = list(self.dataset.pieces)
        if self.workload.order is Order.RANDOM:
            order = shuffled(order, f"{self.workload.seed} {number}")
        return list(itertools.islice(itertools.cycle(order), wanted)) if repeat else order[:wanted]

    def _epoch(
        self, phase: Phase, target: Target, session: str, number: int, pieces: list[Piece], served: Served | None
    ) -> None:
        stage, workers = self.stage, self.workload.workers
        stage.progress.say(f"{self.workload.name}, {phase}, round {number + 1}: {target.name}")
        if phase is Phase.WARM:
            resident = self._warm_again(target, session, pieces, served)
        else:
            resident = stage.drop(target, self.dataset, served)
        before = stage.before(served)
        timed = stage.pool.read(session, pieces, workers=workers)
        stage.pool.call(session, "settle", workers=workers)
        stage.record(self.workload.name, phase, target, number, timed, before=before, resident_before=resident)

    def _warm_again(self, target: Target, session: str, pieces: list[Piece], served: Served | None) -> float | None:
        """Others on the machine may have pushed our files out of memory: read them once more, off the clock.

        The share of the pages that are in memory now.
        """
        paths = self.stage.warm_paths(target, self.dataset, served)
        share = resident_share(paths) if paths else None
        if share is not None and share < 1:
            self.stage.pool.read(session, pieces, workers=self.workload.workers)
            share = resident_share(paths)
        return share
