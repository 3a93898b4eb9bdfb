"""Epochs of a data loader, run small: the rows are there, and they are what they say."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from rig.benchmarks import run
from tiercache.bench.cgroup import why_no_memory_group
from tiercache.bench.cli import main
from tiercache.bench.epochs import SECOND
from tiercache.bench.peers.choice import KINDS
from tiercache.bench.phases import Phase
from tiercache.bench.suites import find_workloads
from tiercache.bench.targets import BARE_LOOP, MOUNT, OURS_CAT, PLAIN_OPEN, S3FS_CAT
from tiercache.config.schema import PolicyName
from tiercache.errors import ConfigError

COLD_OF = {second: cold for cold, second in SECOND.items()}
EPOCHS = {
    Phase.HINTED: {BARE_LOOP, MOUNT, OURS_CAT},
    Phase.SORTED: {BARE_LOOP, MOUNT, OURS_CAT},
    Phase.SHUFFLED: {BARE_LOOP, MOUNT, OURS_CAT, S3FS_CAT},
    Phase.AGAIN_HINTED: {MOUNT, OURS_CAT, PLAIN_OPEN},
    Phase.AGAIN: {MOUNT, OURS_CAT, PLAIN_OPEN},
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("workload", ["epochs-10ms", pytest.param("epochs", marks=pytest.mark.exhaustive)])
def test_hinted_and_blind_epochs_are_rows_of_their_own(
    workload: str, quick_arguments: list[str], bench_keys: Callable[[], list[str]], tmp_path: Path
) -> None:
    """Wrong bytes, or a cold epoch that the origin did not answer, would end the run."""
    found = run(workload, [*quick_arguments, "--against=rclone"], tmp_path)
    assert bench_keys() == []
    parts = {part.name for part in find_workloads(workload)} - {"epochs-nvme"}
    assert {row["workload"] for row in found["rows"]} - {"epochs-nvme"} == parts
    peers = {row["target"] for row in found["rows"] if row["role"] == "peer"}
    assert bool(peers) == bool(KINDS["rclone"].find())
    for name, phases in itertools.product(parts, EPOCHS.items()):
        phase, targets = phases
        rows = {row["target"]: row for row in found["rows"] if (row["workload"], row["phase"]) == (name, phase)}
        assert rows.keys() == (targets | peers if Phase.SHUFFLED in (phase, COLD_OF.get(phase)) else targets)
        for target, row in rows.items():
            assert row["wait"]["p99_s"] >= row["wait"]["p50_s"] >= 0
            assert row["batch"]["p99_s"] >= row["batch"]["p50_s"] > 0
            if phase in COLD_OF:
                assert row["against_local"]["median"] > 0
                assert target in peers or row["asked"]["gets"] == 0
            else:
                assert row["against_origin"]["median"] > 0
                assert row["asked"]["gets"] >= row["requests"]
    for epoch in found["epochs"]:
        if epoch["target"] in (MOUNT, OURS_CAT) and epoch["phase"] in COLD_OF.values():
            assert epoch["phase"] != Phase.HINTED or planned_files(epoch) > 0


@pytest.mark.timeout(300)
def test_a_cache_that_holds_hits_what_it_holds(
    quick_arguments: list[str], bench_keys: Callable[[], list[str]], tmp_path: Path
) -> None:
    """A real engine, real fills: hold's hit ratio is the share that fits."""
    found = run("hitratio", quick_arguments, tmp_path)
    assert bench_keys() == []
    [workload] = found["workloads"]
    known = set(workload["policies"]) & {*get_args(PolicyName)}
    rows = {row["target"]: row["hits"] for row in found["rows"]}
    assert rows.keys() == {f"{policy}, {share:.0%} fits" for policy in known for share in workload["shares"]}
    for share in workload["shares"]:
        assert rows[f"hold, {share:.0%} fits"] == {"hit_ratio": pytest.approx(share), "capacity_share": share}


@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(why_no_memory_group()), reason=why_no_memory_group())
def test_the_second_epoch_is_read_with_memory_for_half_of_it(
    quick_arguments: list[str], bench_keys: Callable[[], list[str]], tmp_path: Path
) -> None:
    found = run("epochs-nvme", [*quick_arguments, "--set=nvme.capacity=1GiB"], tmp_path)
    assert bench_keys() == []
    assert any("for the page cache of" in note for note in found["notes"])
    rows = {(row["phase"], row["target"]): row for row in found["rows"]}
    phases = (Phase.SCARCE, Phase.SCARCE_HINTED)
    assert rows.keys() == {(phase, target) for phase in phases for target in (MOUNT, OURS_CAT, PLAIN_OPEN)}
    for row in rows.values():
        assert row["against_local"]["median"] > 0
        assert row["asked"]["gets"] == 0


def test_without_a_memory_limit_that_part_is_left_out_with_the_reason(
    quick_arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.bench.epochs.why_no_memory_group", lambda: "a memory limit needs root")
    found = run("epochs-nvme", quick_arguments, tmp_path)
    assert found["rows"] == []
    assert "epochs-nvme is left out: a memory limit needs root." in found["notes"]


def planned_files(epoch: Any) -> float:
    """What a plan brought. Of its reads some may come from the kernel's page cache, where nobody counts them."""
    return float(epoch["counters"].get("plan_files_total[fetched]", 0))


TRAINING = {
    S3FS_CAT,
    PLAIN_OPEN,
    *(f"tiercache {face}, {epoch}" for face in ("mount", "fsspec") for epoch in ("blind", "planned", "second epoch")),
}


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_a_model_trains_from_every_source(
    quick_arguments: list[str], bench_keys: Callable[[], list[str]], tmp_path: Path
) -> None:
    """Each image is compared with its digest where it is decoded; wrong ones would end the run."""
    found = run("training", quick_arguments, tmp_path)
    assert bench_keys() == []
    rows = {row["target"]: row for row in found["rows"]}
    assert rows.keys() == TRAINING
    [workload] = found["workloads"]
    for target, row in rows.items():
        assert row["requests"] == workload["images"]
        assert 0 < row["utilisation"] < 1
        assert row["against_origin"]["median"] > 0
        warm = target == PLAIN_OPEN or target.endswith("second epoch")
        assert row["asked"]["gets"] == 0 if warm else row["asked"]["gets"] >= workload["images"]
    planned = [epoch for epoch in found["epochs"] if epoch["target"].endswith("planned")]
    assert len(planned) == 2
    assert all(planned_files(epoch) > 0 for epoch in planned)


def test_training_without_its_packages_is_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiercache.bench.training.run.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"training needs torch and PIL: pip install 'tiercache-fs\[bench-torch\]'"):
        main(["training", f"--work-dir={tmp_path}"])
    assert list(tmp_path.iterdir()) == []


def test_epochs_need_an_object_store(tmp_path: Path) -> None:
    for name in ("work", "origin"):
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match="epochs-0ms needs an S3 origin"):
        main(["epochs", "--quick", f"--origin={tmp_path / 'origin'}", f"--work-dir={tmp_path / 'work'}"])
    assert list((tmp_path / "origin").iterdir()) == []
