"""Workloads and data sets: what is measured is the same for the same seed, and scales."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiercache.bench.cli import QUICK_ROUNDS, QUICK_SCALE
from tiercache.bench.dataset import DataSet, describe, digest_of, generate, random_bytes, shuffled
from tiercache.bench.phases import Phase
from tiercache.bench.suites import SUITES, find_workloads
from tiercache.bench.workloads import Naming, Order, Reading, Saving, Workload
from tiercache.errors import ConfigError
from tiercache.units import MIB

WORKLOADS = [workload for suite in SUITES.values() for workload in suite]


def reading(**changes: int) -> Reading:
    values = {"files": 3, "median_bytes": 2000, "workers": 1, "requests": 3, "origin_requests": 3, **changes}
    return Reading(name="test", title="test", order=Order.RANDOM, spread=0.4, **values)


def made(workload: Reading, directory: Path) -> DataSet:
    return generate(workload, directory, lambda size_bytes: None)


def test_every_workload_has_a_name_of_its_own() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_small_scale_leaves_a_little_of_everything(workload: Workload) -> None:
    small = workload.scaled(0.0001)
    match small:
        case Reading():
            assert small.files >= 1
            assert small.requests >= 8
            assert small.median_bytes > 2 * small.request_bytes
        case Saving():
            assert small.size_bytes > 2 * small.write_bytes
        case Naming():
            assert small.directories >= 2
            assert small.created >= 6 or Phase.CREATE not in small.phases


def test_a_name_is_that_of_a_suite_of_all_or_of_one_workload() -> None:
    assert find_workloads("mount") == list(SUITES["mount"])
    assert find_workloads("smallfiles") == list(SUITES["smallfiles"])  # the suite, not its part of the same name
    quick = [each for name, suite in SUITES.items() if name not in ("epochs", "hitratio", "training") for each in suite]
    assert find_workloads("all") == quick
    assert [workload.name for workload in find_workloads("mount-tree")] == ["mount-tree"]
    with pytest.raises(
        ConfigError, match=r"no workload 'x'; there are: smallfiles, .*, all, smallfiles-4, .*mount-tree"
    ):
        find_workloads("x")


def test_the_same_seed_makes_the_same_files_and_another_makes_others(tmp_path: Path) -> None:
    first, second = made(reading(), tmp_path / "1"), made(reading(), tmp_path / "2")
    assert first.files == second.files
    assert first.pieces == second.pieces
    assert made(reading(seed=9), tmp_path / "3").pieces != first.pieces


def test_pieces_cover_each_file_once_with_the_digest_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "long").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "empty").write_bytes(b"")
    dataset = describe("x", tmp_path, request_bytes=1000)
    assert dataset.files == {"d/long": 2560, "empty": 0}
    long = [piece for piece in dataset.pieces if piece.name == "d/long"]
    assert [(piece.offset, piece.length, piece.whole) for piece in long] == [
        (0, 1000, False),
        (1000, 1000, False),
        (2000, 560, False),
    ]
    data = (tmp_path / "d" / "long").read_bytes()
    assert [piece.digest for piece in long] == [digest_of(data[at : at + 1000]) for at in (0, 1000, 2000)]
    assert [(piece.length, piece.whole) for piece in dataset.pieces if piece.name == "empty"] == [(0, True)]


def test_random_bytes_repeat_with_their_seed_and_may_be_more_than_one_call_of_the_generator_makes() -> None:
    size_bytes = 300 * MIB + 1
    data = random_bytes("a", size_bytes)
    assert len(data) == size_bytes
    assert random_bytes("a", 9 * MIB)[: 8 * MIB] == data[: 8 * MIB]
    assert random_bytes("b", 100) != random_bytes("a", 100)


def test_an_order_is_random_but_repeats_with_its_seed(tmp_path: Path) -> None:
    pieces = made(reading(files=20), tmp_path / "d").pieces
    assert shuffled(pieces, "a") == shuffled(pieces, "a")
    assert shuffled(pieces, "a") != shuffled(pieces, "b")
    assert sorted(shuffled(pieces, "a")) == sorted(pieces)


def test_a_quick_run_is_one_round_over_little_data() -> None:
    assert QUICK_ROUNDS == 1
    workloads = [workload.scaled(QUICK_SCALE) for workload in WORKLOADS]
    reads = [workload for workload in workloads if isinstance(workload, Reading)]
    assert sum(workload.files * workload.median_bytes for workload in reads) < 64 * MIB
    assert sum(workload.requests for workload in reads if not workload.request_bytes) < 2000
    assert sum(workload.size_bytes for workload in workloads if isinstance(workload, Saving)) < 64 * MIB
