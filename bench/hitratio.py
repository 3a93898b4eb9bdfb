"""Run the hit ratio workload: random epochs over a cache that holds a part of the data set, policy by policy."""

from __future__ import annotations

from tiercache.bench.dataset import DataSet, generate, shuffled
from tiercache.bench.node import Node
from tiercache.bench.phases import Phase
from tiercache.bench.results import epoch_of
from tiercache.bench.stage import Stage
from tiercache.bench.targets import Call, Role, Target
from tiercache.bench.terms import Terms
from tiercache.bench.workloads import HitRatio
from tiercache.config import load_config
from tiercache.errors import ConfigError

TERMS = Terms("dataset", read_only=True)


def run_hit_ratio(stage: Stage, workload: HitRatio) -> None:
    """Every policy at every capacity. No clock counts, so they come one after the other."""
    directory = stage.work_directory / "local" / workload.name
    told = stage.progress.moving("generating", workload.files * workload.median_bytes)
    dataset = generate(workload, directory, told)
    stage.place.below(dataset.name).upload(dataset, stage.progress.moving("uploading", dataset.total_bytes))
    policies = [policy for policy in workload.policies if _is_known(policy)]
    stage.notes += [
        f"{workload.name}: there is no policy {policy!r} in this release."
        for policy in workload.policies
        if policy not in policies
    ]
    stage.progress.expect(len(policies) * len(workload.shares) * stage.rounds)
    for share in workload.shares:
        for policy in policies:
            _measure(stage, workload, dataset, policy, share)


def _measure(stage: Stage, workload: HitRatio, dataset: DataSet, policy: str, share: float) -> None:
    place = stage.place.below(dataset.name)
    target = Target(f"{policy}, {share:.0%} fits", "fsspec", Role.CACHED, Call.CAT)
    settings = {
        "ram.capacity": 0,
        "nvme.policy": policy,
        "nvme.capacity": int(dataset.total_bytes * share),
        "nvme.free_space_floor": 0,
    }
    node = stage.new_node(place, TERMS, mounted=False, settings=settings)
    try:
        with node, stage.session(target, place, dataset.directory, node, workers=workload.workers) as session:
            stage.pool.call(session, "prepare", workers=workload.workers)
            for number in range(-workload.fill_epochs, stage.rounds):
                stage.progress.say(f"{workload.name}, epoch {number + workload.fill_epochs + 1}: {target.name}")
                _epoch(stage, workload, dataset, target, session, node, number, share)
    finally:
        node.remove()


def _epoch(
    stage: Stage,
    workload: HitRatio,
    dataset: DataSet,
    target: Target,
    session: str,
    node: Node,
    number: int,
    share: float,
) -> None:
    before = stage.before(node)
    pieces = shuffled(dataset.pieces, f"{workload.seed} {number}")
    timed = stage.pool.read(session, pieces, workers=workload.workers)
    stage.pool.call(session, "settle", workers=workload.workers)
    if number >= 0:
        epoch = epoch_of(
            workload.name, Phase.RANDOM_EPOCHS, target, number, timed, spent=before.spent(), capacity_share=share
        )
        stage.add(epoch)


def _is_known(policy: str) -> bool:
    try:
        load_config(None, {"nvme.policy": policy})
    except ConfigError:
        return False
    return True
