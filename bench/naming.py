"""Run the metadata workload: list, stat, create."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import ExitStack

from tiercache.bench.dataset import DataSet, generate
from tiercache.bench.node import Node
from tiercache.bench.results import Phase
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Call, Role, Target, targets_for
from tiercache.bench.workloads import Naming, Order, Reading
from tiercache.errors import TierCacheError

NEW = "new"
"""The directory for what is created; a file in it makes it exist everywhere."""

PROFILE = "weights"
"""Names are believed for a minute, and it can be written."""


def run_naming(stage: Stage, workload: Naming) -> None:
    """All operations, all targets in turn in each round."""
    _Run(stage, workload).run()


class _Run:
    def __init__(self, stage: Stage, workload: Naming) -> None:
        self.stage = stage
        self.workload = workload
        self.place = stage.place.below(workload.name)
        self.targets = targets_for(stage.place, mount=stage.mount, calls=(Call.OPEN, Call.GET))
        self.dataset = self._make_tree()
        self.directories: dict[str, set[str]] = {}
        for name in self.dataset.files:
            directory, _, child = name.partition("/")
            if directory != NEW:
                self.directories.setdefault(directory, set()).add(child)

    def run(self) -> None:
        self.stage.progress.expect(5 * self.stage.rounds * len(self.targets))
        for phase, operation in ((Phase.LIST_COLD, self._list), (Phase.STAT_COLD, self._stat)):
            self._cold(phase, operation)
        with self.stage.fresh_node(self.place, profile=PROFILE) as node, ExitStack() as stack:
            sessions = {}
            for target in self.targets:
                session = self.stage.session(target, self.place, self.dataset.directory, node)
                sessions[target.name] = stack.enter_context(session)
                self.stage.pool.call(sessions[target.name], "prepare")
            for phase, operate in (
                (Phase.LIST_WARM, self._list),
                (Phase.STAT_WARM, self._stat),
                (Phase.CREATE, self._create),
            ):
                for number in range(self.stage.rounds):
                    for target in self.stage.rotated(self.targets, number):
                        operate(phase, target, sessions[target.name], number, node)

    def _cold(self, phase: Phase, operation: Callable[..., None]) -> None:
        for number in range(self.stage.rounds):
            for target in self.stage.rotated(self.targets, number):
                with ExitStack() as stack:
                    node = None
                    if target.role is Role.CACHED:
                        node = stack.enter_context(self.stage.fresh_node(self.place, profile=PROFILE, target=target))
                    session = stack.enter_context(self.stage.session(target, self.place, self.dataset.directory, node))
                    self.stage.pool.call(session, "forget")
                    self.stage.drop_paths([])
                    operation(phase, target, session, number, node)

    # -- operations -------------------------------------------------------------------------------

    def _list(self, phase: Phase, target: Target, session: str, number: int, node: Node | None) -> None:
        expected = [(directory, frozenset(names)) for directory, names in self.directories.items()]
        self._measure(phase, target, session, number, node, "list_directories", expected)

    def _stat(self, phase: Phase, target: Target, session: str, number: int, node: Node | None) -> None:
        sizes = [(name, size) for name, size in self.dataset.files.items() if not name.startswith(NEW)]
        random.Random(f"{self.workload.seed} {number}").shuffle(sizes)
        slow = target.role is Role.ORIGIN or phase is Phase.STAT_COLD
        wanted = sizes[: self.workload.origin_requests] if slow else sizes
        self._measure(phase, target, session, number, node, "stat_files", wanted)

    def _create(self, phase: Phase, target: Target, session: str, number: int, node: Node) -> None:
        slug = re.sub("[^a-z0-9]+", "-", target.name)
        names = [f"{NEW}/{slug}-{number}-{count}" for count in range(self.workload.created)]
        data = random.Random(f"{slug} {number}").randbytes(self.workload.size_bytes)
        self._measure(phase, target, session, number, node, "create_files", names, data)
        if target.role is Role.CACHED:
            node.drain()
        if target.role is not Role.LOCAL:
            for name in (names[0], names[-1]):
                if self.place.read(name) != data:
                    raise TierCacheError(f"{target.name}: the origin has other bytes in {name} than were written")
        for name in names:
            self.stage.pool.remove(session, name)
        if target.role is Role.CACHED:
            node.drain()

    def _measure(
        self, phase: Phase, target: Target, session: str, number: int, node: Node | None, loop: str, *arguments: object
    ) -> None:
        self.stage.progress.say(f"{self.workload.name}, {phase}, round {number + 1}: {target.name}")
        before = self.stage.before(node if target.role is Role.CACHED else None)
        timed = self.stage.pool.measure(session, loop, *arguments)
        self.stage.record(self.workload.name, phase, target, number, [timed], before=before)

    def _make_tree(self) -> DataSet:
        workload, stage = self.workload, self.stage
        files = Reading(
            name=workload.name,
            title=workload.title,
            files=workload.directories * workload.files,
            median_bytes=workload.size_bytes,
            order=Order.RANDOM,
            workers=1,
            requests=0,
            origin_requests=0,
            seed=workload.seed,
        )
        directory = stage.work_directory / "local" / workload.name
        (directory / NEW).mkdir(parents=True)
        (directory / NEW / "first").write_bytes(b"first")
        total_bytes = files.files * files.median_bytes
        told = stage.progress.moving("generating", total_bytes)
        made = generate(files, directory, told, per_directory=workload.files)
        self.place.upload(made, stage.progress.moving("uploading", made.total_bytes))
        return made
