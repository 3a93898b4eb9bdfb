"""Run epochs over a data set that is larger than the memory for it: the second one, all of it in the NVMe tier."""

from __future__ import annotations

from contextlib import ExitStack

from tiercache.bench.cgroup import MemoryGroup
from tiercache.bench.dataset import DataSet, shuffled
from tiercache.bench.loading import Batch, Loaded, load
from tiercache.bench.node import ROOMY
from tiercache.bench.phases import Phase
from tiercache.bench.processes import usage_of
from tiercache.bench.results import loaded_epoch
from tiercache.bench.served import Behind
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Role, Target, epoch_targets
from tiercache.bench.terms import Terms
from tiercache.bench.workloads import Epochs
from tiercache.units import MIB, format_size

LEAST_LEFT_BYTES = 64 * MIB
"""Less would be taken by what processes allocate meanwhile."""

NO_RAM_TIER = {**ROOMY, "ram.capacity": 0}


def run_scarce(stage: Stage, workload: Epochs, dataset: DataSet, terms: Terms) -> None:
    """All rounds: each target reads everything twice, and the second time counts: what memory can hold, it holds."""
    place = stage.place.below(dataset.name)
    targets = [
        target for target in epoch_targets(blind=False, mount=stage.mount, peers=()) if target.role is not Role.ORIGIN
    ]
    stage.progress.expect(len(targets) * stage.rounds)
    with stage.behind(targets, place, terms, settings=NO_RAM_TIER) as behind, ExitStack() as stack:
        sessions = {
            target.name: stack.enter_context(
                stage.session(target, place, dataset.directory, behind.of(target), workers=workload.workers)
            )
            for target in targets
        }
        _fill(stage, workload, dataset, targets, sessions)
        group = stack.enter_context(MemoryGroup())
        stage.notes.append(_limit(group, stage, workload, dataset, behind))
        for number in range(stage.rounds):
            for target in stage.rotated(targets, number, Phase.SCARCE):
                stage.progress.say(f"{workload.name}, round {number + 1}: {target.name}")
                for turn in ("before", "measured"):
                    before = stage.before(behind.of(target))
                    batches = _batches(workload, dataset, f"{workload.seed} {number} {turn}")
                    loaded = _load(stage, workload, sessions[target.name], batches)
                stage.add(loaded_epoch(workload.name, Phase.SCARCE, target, number, loaded, spent=before.spent()))


def _fill(stage: Stage, workload: Epochs, dataset: DataSet, targets: list[Target], sessions: dict[str, str]) -> None:
    for target in targets:
        stage.progress.say(f"{workload.name}: filling, {target.name}")
        stage.pool.call(sessions[target.name], "prepare", workers=workload.workers)
        _load(stage, workload, sessions[target.name], _batches(workload, dataset, "fill"))
    stage.drop_paths(dataset.paths())


def _load(stage: Stage, workload: Epochs, session: str, batches: list[Batch]) -> Loaded:
    loaded = load(stage.pool, session, batches, workers=workload.workers, prefetch=workload.prefetch)
    stage.pool.call(session, "settle", workers=workload.workers)
    return loaded


def _limit(group: MemoryGroup, stage: Stage, workload: Epochs, dataset: DataSet, behind: Behind) -> str:
    """Put readers and engine under a limit that leaves memory for a share of the data; the note for the report."""
    pids = [*stage.pool.pids[: workload.workers], behind.node.pid]
    own_bytes = sum(usage_of(pid).anonymous_bytes for pid in pids)
    for pid in pids:
        group.add(pid)
    left_bytes = max(int(dataset.total_bytes * workload.memory_share), LEAST_LEFT_BYTES)
    group.limit(own_bytes + left_bytes)
    return (
        f"{workload.name}: the readers and the engine had {format_size(own_bytes + left_bytes)} of memory in a control "
        f"group: {format_size(own_bytes)} that they used themselves, and {format_size(left_bytes)} for the page cache "
        f"of {format_size(dataset.total_bytes)} of files. The local directory was read by the same processes."
    )


def _batches(workload: Epochs, dataset: DataSet, seed: str) -> list[Batch]:
    pieces = shuffled(dataset.pieces, seed)
    return [pieces[at : at + workload.batch] for at in range(0, len(pieces), workload.batch)]
