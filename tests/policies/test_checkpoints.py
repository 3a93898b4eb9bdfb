"""What counts as a checkpoint, when it is whole, and which is the latest."""

from __future__ import annotations

import pytest

from tiercache.model import Durability
from tiercache.policies.checkpoints import SavedFile, Settling, has_manifest, in_order, judge, matches


def saved(
    name: str, *, level: Durability = Durability.ORIGIN, state: str = "clean", writing: bool = False, at: int = 1
) -> SavedFile:
    return SavedFile(name.encode(), 10, at, level, state, writing)


SHARDED = [
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
]
DCP = ["__0_0.distcp", "__1_0.distcp", ".metadata"]


@pytest.mark.parametrize("names", [SHARDED, DCP, ["model.pt"], [f"deep/{name}" for name in SHARDED + DCP]])
def test_a_checkpoint_is_complete_with_all_files_that_its_format_wants(names: list[str]) -> None:
    whole = judge(b"c", [saved(name, at=position) for position, name in enumerate(names)], level=Durability.ORIGIN)
    assert (whole.complete, whole.lacks, whole.level) == (True, "", Durability.ORIGIN)
    assert (whole.files, whole.size_bytes, whole.saved_ns) == (len(names), 10 * len(names), len(names) - 1)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (SHARDED, "model-00001-of-00002.safetensors"),
        (SHARDED, "model-00002-of-00002.safetensors"),
        (SHARDED, "model.safetensors.index.json"),
        (DCP, ".metadata"),
        ([f"weights/{name}" for name in SHARDED], "weights/model-00002-of-00002.safetensors"),
        ([f"state/{name}" for name in DCP], "state/.metadata"),
    ],
)
def test_a_checkpoint_without_one_of_them_is_not(names: list[str], missing: str) -> None:
    judged = judge(b"c", [saved(name) for name in names if name != missing], level=Durability.ORIGIN)
    assert judged.lacks == f"{missing} is missing"
    assert not judged.complete


def test_a_checkpoint_of_a_trainer_is_whole_with_the_state_that_it_writes_last() -> None:
    """Its optimizer is the largest file and comes late. What it leaves beside the model at the end of a run has no such
    state, and checkpoints of others have other files."""
    names = ["model.safetensors", "training_args.bin", "scheduler.pt"]
    assert judge(b"checkpoint-7", [saved(name) for name in names], level=Durability.ORIGIN).lacks == (
        "trainer_state.json is missing"
    )
    whole = [*names, "optimizer.pt", "trainer_state.json"]
    assert judge(b"checkpoint-7", [saved(name) for name in whole], level=Durability.ORIGIN).complete
    assert judge(b"model", [saved(name) for name in names], level=Durability.ORIGIN).complete
    others = ["model.safetensors", "optimizer.bin"]
    assert judge(b"checkpoint-7", [saved(name) for name in others], level=Durability.ORIGIN).complete


@pytest.mark.parametrize("wanted", Durability)
@pytest.mark.parametrize("reached", Durability)
def test_all_files_must_have_reached_the_level(wanted: Durability, reached: Durability) -> None:
    judged = judge(b"c", [saved("a"), saved("b", level=reached)], level=wanted)
    assert judged.level == reached
    assert judged.complete == (reached >= wanted)
    assert judged.lacks == ("" if judged.complete else f"1 of 2 not at level {wanted.label} yet")


@pytest.mark.parametrize(
    ("state", "lacks"),
    [
        ("staged", ""),
        ("writing", "b is being written"),
        ("lost", "b is lost"),
        ("conflict", "b is in conflict with another writer's"),
        ("sealed", ""),
        ("uploading", ""),
    ],
)
def test_a_file_that_is_written_or_in_trouble_makes_it_incomplete_at_any_level(state: str, lacks: str) -> None:
    troubled = saved("b", level=Durability.MEMORY, state=state, writing=state == "writing")
    judged = judge(b"c", [saved("a"), troubled], level=Durability.MEMORY)
    assert judged.lacks == lacks


def test_an_empty_directory_is_no_complete_checkpoint() -> None:
    judged = judge(b"c", [], level=Durability.MEMORY)
    assert (judged.lacks, judged.files, judged.size_bytes, judged.saved_ns) == ("it is empty", 0, 0, 0)


def test_the_latest_has_the_highest_number_and_then_the_latest_time() -> None:
    names = [b"checkpoint-900", b"checkpoint-1000", b"best", b"epoch=3-step=950.ckpt", b"checkpoint_900", b"final"]
    times = {b"checkpoint_900": 2, b"checkpoint-900": 1, b"best": 3, b"final": 4}
    assert in_order(names, times) == [
        b"checkpoint-1000",
        b"epoch=3-step=950.ckpt",
        b"checkpoint_900",
        b"checkpoint-900",
        b"final",
        b"best",
    ]


def test_names_match_as_shell_patterns_do_and_bytes_that_are_no_text_too() -> None:
    assert matches(b"checkpoint-\xff", ["ckpt-*", "checkpoint-*"])
    assert not matches(b"my-checkpoint-1", ["checkpoint-*"])
    assert not matches(b"checkpoint-1", [])


def test_a_manifest_makes_a_directory_a_checkpoint() -> None:
    assert has_manifest([b"a", b".metadata"])
    assert has_manifest([b"model.safetensors.index.json"])
    assert not has_manifest([b"a", b"index.json.bak", b"metadata"])


@pytest.mark.parametrize(
    ("checkpoint", "announcing", "age_s", "whole"),
    [
        (b"c", "", 5, False),
        (b"c", "", -5, False),  # by another machine's clock
        (b"c", "", 10, True),
        (b"c", ".metadata", 5, True),
        (b"checkpoint-7", "model.safetensors.index.json", 5, False),
        (b"checkpoint-7", "trainer_state.json", 5, True),
        (b"checkpoint-7", ".metadata", 5, True),
        (b"c", "optimizer/.metadata", 5, False),
    ],
)
def test_a_checkpoint_that_nothing_announces_has_to_settle(
    checkpoint: bytes, announcing: str, age_s: int, whole: bool
) -> None:
    now_ns = 1_000_000_000_000
    files = [saved("a")._replace(changed_ns=now_ns - age_s * 1_000_000_000), saved("b")]
    if announcing:
        files.append(saved(announcing)._replace(announces=True))
    judged = judge(checkpoint, files, level=Durability.ORIGIN, settling=Settling(10.0, now_ns))
    wanted = "" if whole else "changed less than 10 s ago, and no file in it tells that all are there"
    assert judged.lacks == wanted
