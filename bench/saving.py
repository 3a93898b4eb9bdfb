"""Run a checkpoint workload: save, until the origin has it, load on the same node and on a fresh one."""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack

from tiercache.bench.dataset import digest_of
from tiercache.bench.measure import Timed
from tiercache.bench.node import Node
from tiercache.bench.results import Phase
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Call, Role, Target, targets_for
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
        self.targets = targets_for(stage.place, mount=stage.mount, calls=(Call.OPEN, Call.GET))
        # With this profile a close waits until the bytes are safe on this node's disk.
        self.profile = "checkpoint" if workload.fsync else "general"
        self.digest = stage.pool.keep(str(workload.seed), workload.size_bytes)

    def run(self) -> None:
        stage = self.stage
        delivered = sum(target.role is not Role.LOCAL for target in self.targets)
        stage.progress.expect(stage.rounds * (3 * len(self.targets) + delivered))
        self.local.mkdir(parents=True)
        self.place.make_directory()
        with stage.fresh_node(self.place, profile=self.profile) as node, ExitStack() as stack:
            sessions = {
                target.name: stack.enter_context(stage.session(target, self.place, self.local, node))
                for target in self.targets
            }
            for number in range(stage.rounds):
                for target in stage.rotated(self.targets, number):
                    self._turn(target, sessions[target.name], number, node)
        stage.pool.keep("", 0)

    def _turn(self, target: Target, session: str, number: int, node: Node) -> None:
        stage = self.stage
        ours = node if target.role is Role.CACHED else None
        name = f"{re.sub('[^a-z0-9]+', '-', target.name)}-{number}.ckpt"
        os.sync()  # the writes of the target before are not this one's
        saved = self._save(target, session, number, name, ours)
        if target.role is not Role.LOCAL:
            self._deliver(target, number, name, ours, saved)
        self._load(Phase.LOAD, target, session, number, name, ours)
        self._load_fresh(target, session, number, name)
        stage.pool.remove(session, name)
        if ours is not None:
            ours.drain()

    def _save(self, target: Target, session: str, number: int, name: str, ours: Node | None) -> Timed:
        workload = self.workload
        self.stage.progress.say(f"{workload.name}, save, round {number + 1}: {target.name}")
        before = self.stage.before(ours)
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

    def _load(self, phase: Phase, target: Target, session: str, number: int, name: str, ours: Node | None) -> None:
        workload = self.workload
        self.stage.progress.say(f"{workload.name}, {phase}, round {number + 1}: {target.name}")
        resident = None
        if phase is Phase.LOAD_FRESH:
            resident = self.stage.drop_paths([self.local / name] if target.role is Role.LOCAL else [])
            self.stage.pool.call(session, "forget")
        before = self.stage.before(ours)
        arguments = (name, workload.size_bytes, self.digest)
        timed = self.stage.pool.measure(session, "load_file", *arguments, request_bytes=LOAD_REQUEST_BYTES)
        self.stage.record(workload.name, phase, target, number, [timed], before=before, resident_before=resident)

    def _load_fresh(self, target: Target, session: str, number: int, name: str) -> None:
        if target.role is not Role.CACHED:
            self._load(Phase.LOAD_FRESH, target, session, number, name, None)
            return
        with (
            self.stage.fresh_node(self.place, profile=self.profile, target=target) as node,
            self.stage.session(target, self.place, self.local, node) as fresh,
        ):
            self._load(Phase.LOAD_FRESH, target, fresh, number, name, node)
