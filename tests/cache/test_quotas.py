"""A tier in parts: each holds no more than its quota, and loses nothing to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.small_disk import free_bytes, small_disk
from rig.tiers import UNIT, fill, make_tier, version
from tiercache.policies import POLICIES
from tiercache.tier import FileTier

MINE, OTHERS = range(10), range(10, 40)


def name(number: int) -> bytes:
    return b"mine/%d" % number if number in MINE else b"others/%d" % number


def fill_all(tier: FileTier, numbers: range) -> list[bool]:
    return [fill(tier, number, UNIT, name=name(number)) for number in numbers]


def here(tier: FileTier, numbers: range) -> list[int]:
    return [number for number in numbers if version(number) in tier]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_neither_part_pushes_out_the_other(tmp_path: Path, policy: str) -> None:
    tier = make_tier(tmp_path, units=10, policy=policy, quotas={"mine/": 4})
    assert all(fill_all(tier, range(4)))
    fill_all(tier, OTHERS)
    assert here(tier, MINE) == [0, 1, 2, 3]
    before = here(tier, OTHERS)
    assert before
    assert len(before) <= 6
    fill_all(tier, range(4, 10))
    assert here(tier, OTHERS) == before
    [room] = tier.quotas
    assert room.used_bytes == len(here(tier, MINE)) * UNIT <= 4 * UNIT


def test_what_is_read_counts_for_the_policy_of_its_part(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, units=10, quotas={"mine/": 3})
    fill_all(tier, range(3))
    tier.accessed(version(0))
    tier.accessed(version(99))
    fill_all(tier, range(3, 5))
    assert here(tier, MINE) == [0, 3, 4]


def test_the_first_quota_that_matches_counts(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, quotas={"/mine/0": 1, "mine/": 2, "**/0": 3})
    names = (b"mine/0", b"mine/1", b"else/0", b"else/1")
    assert [tier.rule(name) for name in names] == ["/mine/0", "mine/", "**/0", ""]


def test_an_object_too_large_for_its_quota_is_not_kept(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, units=10, quotas={"mine/": 4}, share=0.5)
    assert tier.takes(2 * UNIT, b"mine/a")
    assert not tier.takes(2 * UNIT + 1, b"mine/a")
    assert tier.shuts_out(2 * UNIT + 1, b"mine/a") == "too large for its quota"
    assert tier.takes(3 * UNIT, b"a")
    assert tier.shuts_out(3 * UNIT + 1, b"a") == "too large"
    assert not fill(tier, 1, 2 * UNIT + 1, name=b"mine/a")


def test_what_is_pinned_is_not_evicted_and_nothing_of_others_instead(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, units=10, quotas={"mine/": 2})
    fill_all(tier, range(2))
    fill_all(tier, range(10, 16))
    tier.is_pinned = {version(0), version(1)}.__contains__
    assert not fill(tier, 2, UNIT, name=name(2))
    assert here(tier, MINE) == [0, 1]
    assert here(tier, OTHERS) == list(range(10, 16))


def test_a_renamed_file_counts_where_its_new_name_belongs(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, units=10, quotas={"mine/": 3})
    fill_all(tier, range(3))
    fill_all(tier, range(10, 17))
    [room] = tier.quotas
    assert tier.rename(version(10), version(50), name=b"mine/new")
    assert here(tier, MINE) == [1, 2], "the oldest made way"
    assert version(50) in tier
    assert (room.used_bytes, tier.used_bytes) == (3 * UNIT, 9 * UNIT)
    assert tier.rename(version(1), version(51), name=b"others/new")
    assert (room.used_bytes, tier.used_bytes) == (2 * UNIT, 9 * UNIT)


def test_a_file_that_its_new_quota_never_takes_goes(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, units=10, quotas={"mine/": 2})
    fill_all(tier, range(2))
    assert fill(tier, 10, 3 * UNIT, name=b"others/large")
    Path(tier.path(version(50))).parent.mkdir(exist_ok=True)
    Path(tier.path(version(10))).rename(tier.path(version(50)))
    assert not tier.rename(version(10), version(50), name=b"mine/large")
    assert here(tier, MINE) == [0, 1]
    assert not Path(tier.path(version(50))).exists()
    assert tier.used_bytes == 2 * UNIT


def test_the_whole_tier_stays_within_its_capacity_while_a_part_is_over_its_quota(tmp_path: Path) -> None:
    """What is in use when a file is renamed cannot make way at once."""
    tier = make_tier(tmp_path, units=6, quotas={"mine/": 2})
    fill_all(tier, range(2))
    fill_all(tier, range(10, 14))
    in_use = {version(0), version(1)}
    tier.is_pinned = in_use.__contains__
    assert tier.rename(version(10), version(50), name=b"mine/new")
    assert tier.quotas[0].used_bytes == 3 * UNIT
    in_use.add(version(50))
    assert not fill(tier, 20, UNIT, name=name(20))
    assert here(tier, OTHERS) == [11, 12, 13], "the part that is within its share gives nothing"
    in_use.clear()
    assert fill(tier, 20, UNIT, name=name(20))
    assert (tier.quotas[0].used_bytes, tier.used_bytes) == (2 * UNIT, 6 * UNIT)


def test_a_lower_quota_counts_from_the_next_start(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, units=10, quotas={"mine/": 2})
    for number in range(5):
        tier.restore(version(number), UNIT, name=name(number))
    tier.restore(version(10), UNIT, name=name(10))
    tier.trim()
    assert here(tier, MINE) == [3, 4]
    assert here(tier, OTHERS) == [10]


def test_bytes_of_others_take_from_the_fullest_part_first(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, units=20, quotas={"mine/": 4})
    fill_all(tier, range(4))
    fill_all(tier, range(10, 18))
    assert tier.give_room(2 * UNIT)
    assert (here(tier, MINE), here(tier, OTHERS)) == ([2, 3], list(range(10, 18))), "full, beside half full"
    assert tier.give_room(2 * UNIT)
    assert tier.quotas[0].used_bytes == UNIT
    assert tier.used_bytes == 8 * UNIT
    tier.is_pinned = lambda candidate: candidate in {version(number) for number in MINE}
    assert tier.give_room(100 * UNIT), "what is pinned in one part does not shield the other"
    assert here(tier, OTHERS) == []
    assert not tier.give_room(UNIT)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 8) as path:
        yield path


def test_the_floor_takes_from_the_fullest_part_first(disk: Path) -> None:
    large = 64 * UNIT
    tier = make_tier(disk / "tier", units=24 * 64, quotas={"mine/": 4 * 64})
    for number in (0, 1, 2, 3, 10, 11, 12, 13):
        assert fill(tier, number, large, name=name(number))
    tier.floor_bytes = free_bytes(disk) + 2 * large
    tier.trim()
    assert here(tier, MINE) == [2, 3]
    assert here(tier, OTHERS) == [10, 11, 12, 13]
