"""Run a checkpoint workload: save, until the origin has it, load on the same node and on a fresh one."""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack

from tiercache.bench.dataset import digest_of
from tiercache.bench.measure import Timed
from tiercache.bench.node import Node
from tiercache.bench.phases import Phase
from tiercache.bench.served import Behind, Served
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Call, Role, Target
from tiercache.bench.terms import Terms
from tiercache.bench.workloads import Saving
from tiercache.errors import TierCacheError

LOAD_REQUEST_BYTES = 8 * 1024 * 1024


def run_saving(stage: Stage, workload: Saving) -> None:
    """All phases of all targets, one target after the other in each round."""
    _Run(stage, workload).run()


class _Run:
    def __init__(self, stage: Stage, workload: Saving) -> None:
        self.stage = stage
        self.workload = workload
        self.place = stage.place.below(workload.name)
        self.local = stage.work_directory / "local" / workload.name
        # cat_file() has no counterpart in writing.
        calls = (Call.OPEN, Call.GET)
        self.targets = stage.targets(stage.place, calls=calls, mounts_only=workload.mounts_only)
        self.terms = Terms(workload.profile, put_off_uploads=Phase.DELIVER not in workload.phases)
        self.digest = stage.pool.keep(str(workload.seed), workload.size_bytes)

    def run(self) -> None:
        stage = self.stage
        stage.progress.expect(stage.rounds * len(self.workload.phases) * len(self.targets))
        self.local.mkdir(parents=True)
        self.place.establish()
        with stage.behind(self.targets, self.place, self.terms) as behind, ExitStack() as stack:
            sessions = {
                target.name: stack.enter_context(stage.session(target, self.place, self.local, behind.of(target)))
                for target in self.targets
            }
            for number in range(stage.rounds):
                for target in stage.rotated(self.targets, number, Phase.SAVE):
                    self._turn(target, sessions[target.name], number, behind)
        stage.pool.keep("", 0)

    def _turn(self, target: Target, session: str, number: int, behind: Behind) -> None:
        stage, phases = self.stage, self.workload.phases
        served = behind.of(target)
        name = f"{re.sub('[^a-z0-9]+', '-', target.name)}-{number}.ckpt"
        os.sync()  # the writes of the target before are not this one's
        saved = self._save(target, session, number, name, served)
        if Phase.DELIVER in phases and target.role in (Role.CACHED, Role.ORIGIN):
            self._deliver(target, number, name, behind.node if target.role is Role.CACHED else None, saved)
        if Phase.LOAD in phases:
            self._load(Phase.LOAD, target, session, number, name, served)
        else:
            self._measure_load(session, name)  # for its digest
        if Phase.LOAD_FRESH in phases and target.role is not Role.PEER:
            self._load_fresh(target, session, number, name)
        stage.pool.remove(session, name)
        if target.role is Role.CACHED:
            behind.node.drain()

    def _save(self, target: Target, session: str, number: int, name: str, served: Served | None) -> Timed:
        workload = self.workload
        self.stage.progress.say(f"{workload.name}, save, round {number + 1}: {target.name}")
        before = self.stage.before(served)
        timed = self.stage.pool.save(session, name, write_bytes=workload.write_bytes, fsync=workload.fsync)
        self.stage.record(workload.name, Phase.SAVE, target, number, [timed], before=before)
        return timed

    def _deliver(self, target: Target, number: int, name: str, ours: Node | None, saved: Timed) -> None:
        """The rest of the way, which an uncached save has behind it, and whether what arrived is what was saved."""
        before = self.stage.before(ours)
        begin_ns = time.perf_counter_ns()
        if ours is not None:
            ours.drain()
        more_ns = time.perf_counter_ns() - begin_ns
        [save_ns] = memoryview(saved.latencies_ns).cast("q")
        whole = saved._replace(latencies_ns=(save_ns + more_ns).to_bytes(8, "little"))
        self.stage.record(self.workload.name, Phase.DELIVER, target, number, [whole], before=before)
        if digest_of(self.place.read(name)) != self.digest:
            raise TierCacheError(f"{target.name}: the origin has other bytes than were saved")

    def _load(self, phase: Phase, target: Target, session: str, number: int, name: str, served: Served | None) -> None:
        self.stage.progress.say(f"{self.workload.name}, {phase}, round {number + 1}: {target.name}")
        resident = None
        if phase is Phase.LOAD_FRESH:
            resident = self.stage.drop_paths([self.local / name] if target.role is Role.LOCAL else [])
            self.stage.pool.call(session, "forget")
        before = self.stage.before(served)
        timed = self._measure_load(session, name)
        self.stage.record(self.workload.name, phase, target, number, [timed], before=before, resident_before=resident)

    def _measure_load(self, session: str, name: str) -> Timed:
        """Load the file; an error if it is not what was saved."""
        arguments = (name, self.workload.size_bytes, self.digest)
        return self.stage.pool.measure(session, "load_file", *arguments, request_bytes=LOAD_REQUEST_BYTES)

    def _load_fresh(self, target: Target, session: str, number: int, name: str) -> None:
        with ExitStack() as stack:
            served = stack.enter_context(self.stage.fresh(target, self.place, self.terms))
            if served is not None:
                session = stack.enter_context(self.stage.session(target, self.place, self.local, served))
            self._load(Phase.LOAD_FRESH, target, session, number, name, served)
