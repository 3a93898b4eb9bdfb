"""Run epochs over a data set that is larger than the memory for it: the second one, all of it in the NVMe tier."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from itertools import accumulate, chain

from tiercache.bench.cgroup import MemoryGroup
from tiercache.bench.dataset import DataSet, shuffled
from tiercache.bench.hinting import planned
from tiercache.bench.loading import Batch, Loaded, load
from tiercache.bench.node import ROOMY, Node
from tiercache.bench.phases import Phase
from tiercache.bench.processes import usage_of
from tiercache.bench.results import loaded_epoch
from tiercache.bench.served import Behind, Served
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
    stage.progress.expect(2 * len(targets) * stage.rounds)
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
            for phase in (Phase.SCARCE, Phase.SCARCE_HINTED):
                for target in stage.rotated(targets, number, phase):
                    stage.progress.say(f"{workload.name}, {phase}, round {number + 1}: {target.name}")
                    node = behind.of(target) if phase is Phase.SCARCE_HINTED else None
                    for turn in ("before", "measured"):
                        before = stage.before(behind.of(target))
                        batches = _batches(workload, dataset, f"{workload.seed} {number} {phase} {turn}")
                        told = _told(batches, node, mounted=target.mounted) if turn == "measured" else batches
                        loaded = _load(stage, workload, sessions[target.name], told)
                    stage.add(loaded_epoch(workload.name, phase, target, number, loaded, spent=before.spent()))


def _told(batches: list[Batch], node: Served | None, *, mounted: bool) -> Iterable[Batch]:
    """The same, drawn from a sampler that tells the node of them."""
    if not isinstance(node, Node):
        return batches
    pieces = list(chain.from_iterable(batches))
    ends = list(accumulate(map(len, batches)))
    numbers = [range(end - len(batch), end) for batch, end in zip(batches, ends, strict=True)]
    return ([pieces[number] for number in batch] for batch in planned(numbers, pieces, node, mounted=mounted))


def _fill(stage: Stage, workload: Epochs, dataset: DataSet, targets: list[Target], sessions: dict[str, str]) -> None:
    for target in targets:
        stage.progress.say(f"{workload.name}: filling, {target.name}")
        stage.pool.call(sessions[target.name], "prepare", workers=workload.workers)
        _load(stage, workload, sessions[target.name], _batches(workload, dataset, "fill"))
    stage.drop_paths(dataset.paths())


def _load(stage: Stage, workload: Epochs, session: str, batches: Iterable[Batch]) -> Loaded:
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
