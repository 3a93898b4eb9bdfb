"""Run the metadata workload: list, stat, create."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tiercache.bench.dataset import DataSet, Piece, digest_of, generate
from tiercache.bench.node import Node
from tiercache.bench.phases import Phase
from tiercache.bench.served import Served
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Call, Role, Target
from tiercache.bench.terms import Terms
from tiercache.bench.workloads import Naming, Order, Reading
from tiercache.errors import TierCacheError

NEW = "new"
"""The directory for what is created; a file in it makes it exist everywhere."""

COLD = (Phase.LIST_COLD, Phase.STAT_COLD)


def run_naming(stage: Stage, workload: Naming) -> None:
    """All operations, all targets in turn in each round."""
    _Run(stage, workload).run()


class _Run:
    def __init__(self, stage: Stage, workload: Naming) -> None:
        self.stage = stage
        self.workload = workload
        self.place = stage.place.below(workload.name)
        calls = (Call.OPEN, Call.GET)
        self.targets = stage.targets(stage.place, calls=calls, mounts_only=workload.mounts_only)
        self.terms = Terms(
            workload.profile,
            read_only=Phase.CREATE not in workload.phases,
            put_off_uploads=workload.mounts_only,
        )
        self.dataset = self._make_tree()
        self.directories: dict[str, set[str]] = {}
        for name in self.dataset.files:
            directory, _, child = name.partition("/")
            if directory != NEW:
                self.directories.setdefault(directory, set()).add(child)

    def run(self) -> None:
        stage, phases = self.stage, self.workload.phases
        stage.progress.expect(len(phases) * stage.rounds * len(self.targets))
        operations: dict[Phase, Callable[..., None]] = {
            Phase.LIST_COLD: self._list,
            Phase.STAT_COLD: self._stat,
            Phase.LIST_WARM: self._list,
            Phase.STAT_WARM: self._stat,
            Phase.WALK_WARM: self._walk,
            Phase.CREATE: self._create,
        }
        for phase in (phase for phase in phases if phase in COLD):
            self._cold(phase, operations[phase])
        with stage.behind(self.targets, self.place, self.terms) as behind, ExitStack() as stack:
            sessions = {}
            for target in self.targets:
                session = stage.session(target, self.place, self.dataset.directory, behind.of(target))
                sessions[target.name] = stack.enter_context(session)
                stage.pool.call(sessions[target.name], "prepare")
                if Phase.WALK_WARM in phases:
                    stage.pool.measure(sessions[target.name], "walk_tree", self._tree())
            for phase in (phase for phase in phases if phase not in COLD):
                for number in range(stage.rounds):
                    for target in stage.rotated(self.targets, number, phase):
                        operations[phase](phase, target, sessions[target.name], number, behind.of(target))

    def _cold(self, phase: Phase, operation: Callable[..., None]) -> None:
        for number in range(self.stage.rounds):
            for target in self.stage.rotated(self.targets, number, phase):
                with (
                    self.stage.fresh(target, self.place, self.terms) as served,
                    self.stage.session(target, self.place, self.dataset.directory, served) as session,
                ):
                    self.stage.pool.call(session, "forget")
                    self.stage.drop_paths([])
                    operation(phase, target, session, number, served)

    # -- operations -------------------------------------------------------------------------------

    def _list(self, phase: Phase, target: Target, session: str, number: int, served: Served | None) -> None:
        expected = [(directory, frozenset(names)) for directory, names in self.directories.items()]
        self._measure(phase, target, session, number, served, "list_directories", expected)

    def _stat(self, phase: Phase, target: Target, session: str, number: int, served: Served | None) -> None:
        sizes = [(name, size) for name, size in self.dataset.files.items() if not name.startswith(NEW)]
        random.Random(f"{self.workload.seed} {number}").shuffle(sizes)
        slow = target.role is Role.ORIGIN or phase is Phase.STAT_COLD
        wanted = sizes[: self.workload.origin_requests] if slow else sizes
        self._measure(phase, target, session, number, served, "stat_files", wanted)

    def _walk(self, phase: Phase, target: Target, session: str, number: int, served: Served | None) -> None:
        self._measure(phase, target, session, number, served, "walk_tree", self._tree())

    def _tree(self) -> list[tuple[str, dict[str, int]]]:
        return [
            (directory, {child: self.dataset.files[f"{directory}/{child}"] for child in sorted(children)})
            for directory, children in sorted(self.directories.items())
        ]

    def _create(self, phase: Phase, target: Target, session: str, number: int, served: Served | None) -> None:
        slug = re.sub("[^a-z0-9]+", "-", target.name)
        names = [f"{NEW}/{slug}-{number}-{count}" for count in range(self.workload.created)]
        data = random.Random(f"{slug} {number}").randbytes(self.workload.size_bytes)
        self._measure(phase, target, session, number, served, "create_files", names, data)
        if self.terms.put_off_uploads or target.role is Role.PEER:
            pieces = [Piece(name, 0, len(data), digest_of(data), whole=True) for name in names]
            self.stage.pool.read(session, pieces, workers=1)
        else:
            self._check_at_origin(target, names, data, served)
        for name in names:
            self.stage.pool.remove(session, name)
        if isinstance(served, Node):
            served.drain()

    def _check_at_origin(self, target: Target, names: Sequence[str], data: bytes, served: Served | None) -> None:
        if isinstance(served, Node):
            served.drain()
        if target.role in (Role.CACHED, Role.ORIGIN):
            for name in (names[0], names[-1]):
                if self.place.read(name) != data:
                    raise TierCacheError(f"{target.name}: the origin has other bytes in {name} than were written")

    def _measure(
        self,
        phase: Phase,
        target: Target,
        session: str,
        number: int,
        served: Served | None,
        loop: str,
        *arguments: object,
    ) -> None:
        self.stage.progress.say(f"{self.workload.name}, {phase}, round {number + 1}: {target.name}")
        before = self.stage.before(served)
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
        stage.adopt(self.place, made)
        return made
