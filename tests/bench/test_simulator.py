"""The simulator of policies: its traces, its figures, and that it drives a policy as a tier does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiercache.bench.cli import main
from tiercache.bench.simulator.replay import replay
from tiercache.bench.simulator.traces import epochs_trace, file_trace, zipf_trace
from tiercache.errors import ConfigError
from tiercache.metrics import Metrics
from tiercache.model import Tier, VersionId
from tiercache.policies import POLICIES, Planned, make_policy
from tiercache.tier import FileTier

KIB4 = 4096


def test_one_command_prints_a_table_and_writes_figures_and_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "curves.png"
    arguments = ["--objects=100", "--capacity=0.2,50%", "--spread=1", f"--json={figures}", f"--png={picture}"]
    assert main(["policies", "--trace=epochs", *arguments]) == 0
    printed = capsys.readouterr().out
    for name in POLICIES:
        assert f" {name} " in printed
    for title in ("hit ratio", "byte hit ratio", "bytes written to the cache"):
        assert title in printed
    results = json.loads(figures.read_text())["results"]
    assert [(result["policy"], result["capacity"]) for result in results][:2] == [("fifo", "20%"), ("fifo", "50%")]
    assert len(results) == 2 * len(POLICIES)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_hold_and_planned_hit_their_share_of_random_epochs_and_hold_writes_nothing_more(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--objects=200", "--capacity=0.2,0.5", "--policies=hold,planned,lru", f"--json={figures}"]
    assert main(["policies", *arguments]) == 0
    ratio = {
        (result["policy"], result["capacity"]): (result["hit_ratio"], result["written_ratio"])
        for result in json.loads(figures.read_text())["results"]
    }
    assert ratio["hold", "20%"] == (0.2, 0)
    assert ratio["hold", "50%"] == (0.5, 0)
    assert ratio["planned", "50%"][0] == 0.5
    assert ratio["lru", "50%"][0] < 0.3
    assert sum(ratio["lru", "50%"]) == pytest.approx(1), "what is missed is written"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policies=lru,belady"], "--policies: 'belady' is not known; allowed: fifo, lru"),
        (["--capacity=1.5"], "--capacity: 1.5 is not a share above 0 and up to 1; a size has a unit"),
        (["--capacity=20x"], "--capacity: '20x' is not a size"),
        (["--capacity=,"], "--capacity: is empty"),
        (["--trace=/nowhere/trace.csv"], "--trace: /nowhere/trace.csv: No such file or directory"),
        (["--epochs=1"], "argument --epochs: 1 is too few"),
        (["--png=/nowhere/x.png"], "/nowhere/x.png: there is no directory /nowhere"),
    ],
)
def test_a_fault_of_the_arguments_is_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["policies", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tiercache: bench policies: {complaint}")
    assert said.endswith("(see tiercache bench policies --help)\n")
    assert said.count("\n") == 1


def test_a_file_has_a_read_in_each_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"key,size\n# a remark\na,1\n\nb,c,4097\na,1\na,9000\n")
    keys, sizes = zip(*file_trace(path).reads, strict=True)
    assert sizes == (KIB4, 2 * KIB4, KIB4, 3 * KIB4), "in the units in which a tier charges"
    assert keys[0] == keys[2], "the same key and size"
    assert len(set(keys)) == 3, "another size is another version"


@pytest.mark.parametrize("line", ["a", "a,", "a,x", "a,-1", "a,1.5"])
def test_a_line_of_a_file_that_is_none_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"a,1\n{line}\n")
    with pytest.raises(ConfigError, match=r"trace\.csv: line 2 is not key,size"):
        file_trace(path)


def test_a_file_without_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("key,size\n")
    with pytest.raises(ConfigError, match="has no reads"):
        file_trace(path)


def test_a_trace_is_the_same_for_the_same_seed() -> None:
    def zipf(seed: int) -> list[tuple[bytes, int]]:
        return zipf_trace(objects=50, reads=200, alpha=1, spread=1, seed=seed).reads

    assert zipf(1) == zipf(1) != zipf(2)


def test_an_object_over_the_limit_of_one_object_is_never_kept() -> None:
    counts = replay(make_policy("lru", 10), 10, [(b"large", 6), (b"small", 5)] * 2, max_object_bytes=5)
    assert (counts.reads, counts.hits, counts.hit_bytes, counts.written_bytes) == (4, 1, 5, 5)


@pytest.mark.parametrize("name", POLICIES)
def test_a_tier_hits_and_evicts_as_the_simulation_does(name: str, tmp_path: Path) -> None:
    trace = zipf_trace(objects=60, reads=600, alpha=0.8, spread=1, seed=3).reads
    capacity = sum(dict(trace).values()) // 4
    in_tier, simulated = make_policy(name, capacity), make_policy(name, capacity)
    tier = FileTier(
        Tier.NVME,
        tmp_path / "tier",
        capacity_bytes=capacity,
        free_space_floor_bytes=0,
        policy=in_tier,
        metrics=Metrics(),
    )
    if isinstance(in_tier, Planned):
        in_tier.plan(key for key, _ in trace)
    hits = 0
    for key, size in trace:
        version = VersionId(key)
        if isinstance(in_tier, Planned):
            in_tier.consumed(key)
        if version in tier:
            hits += 1
            in_tier.access(version)
        elif reservation := tier.reserve(version, size, object_bytes=size, name=key):
            reservation.settle()
    counts = replay(simulated, capacity, trace, max_object_bytes=capacity // 2)
    assert hits == counts.hits > 0
    assert len(in_tier) == len(simulated) == len(tier)


def test_the_epochs_of_a_trace_read_every_object_once() -> None:
    trace = epochs_trace(objects=30, epochs=3, spread=0.5, seed=1)
    assert trace.uncounted == 30
    for epoch in range(3):
        assert len({key for key, _ in trace.reads[30 * epoch : 30 * (epoch + 1)]}) == 30
