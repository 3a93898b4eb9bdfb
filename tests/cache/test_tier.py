"""The account of a tier: exact, with fills in flight, under any order of events."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rig.small_disk import free_bytes, small_disk
from rig.tiers import UNIT, Clock, fill, make_tier, version
from tiercache.metrics import Metrics
from tiercache.model import Tier
from tiercache.policies import POLICIES, make_policy
from tiercache.tier import FileTier, Reservation, write_extent
from tiercache.tier.health import FAILURES_BEFORE_OUT, FIRST_PAUSE_S
from tiercache.units import MIB


def test_files_are_charged_as_the_disk_charges_them(tmp_path: Path) -> None:
    """Whole allocation units, one for an empty file; the sum is what ``du`` finds."""
    tier = make_tier(tmp_path / "tier", units=20)
    for number, size_bytes in enumerate((0, 1, UNIT, UNIT + 1, 3 * UNIT)):
        assert fill(tier, number, size_bytes)
    assert tier.used_bytes == (1 + 1 + 1 + 2 + 3) * UNIT
    on_disk = sum(path.stat().st_blocks * 512 for path in (tmp_path / "tier").rglob("*") if path.is_file())
    assert on_disk <= tier.used_bytes <= on_disk + UNIT, "the empty file takes no block, but an inode"


def test_the_last_byte_of_the_capacity_is_used_and_no_byte_more(tmp_path: Path) -> None:
    """Ten units hold exactly ten files of one unit; the eleventh evicts the least recently used one."""
    tier = make_tier(tmp_path, units=10)
    assert all(fill(tier, number, UNIT) for number in range(10))
    assert tier.used_bytes == tier.capacity_bytes
    assert fill(tier, 10, 1)
    assert tier.used_bytes == tier.capacity_bytes
    assert version(0) not in tier
    assert not Path(tier.path(version(0))).exists()


def test_fills_in_flight_take_their_room_at_once(tmp_path: Path) -> None:
    """Reserved but unwritten bytes are used bytes, and what is pinned for them is never the victim."""
    tier = make_tier(tmp_path, units=4)
    in_flight = {version(1), version(2)}
    tier.is_pinned = in_flight.__contains__
    first = tier.reserve(version(1), 2 * UNIT, object_bytes=2 * UNIT, name=b"")
    second = tier.reserve(version(2), 2 * UNIT, object_bytes=2 * UNIT, name=b"")
    assert first is not None
    assert second is not None
    assert tier.used_bytes == 4 * UNIT
    assert tier.reserve(version(3), 1, object_bytes=1, name=b"") is None
    first.cancel()
    assert tier.used_bytes == 2 * UNIT
    assert tier.reserve(version(3), 1, object_bytes=1, name=b"") is not None


def test_a_version_dropped_in_flight_stays_charged_until_its_fill_ends(tmp_path: Path) -> None:
    """The bytes are still being written somewhere; a file that the late fill made again is removed."""
    tier = make_tier(tmp_path)
    reservation = tier.reserve(version(1), UNIT, object_bytes=UNIT, name=b"")
    assert reservation is not None
    tier.drop(version(1))
    assert tier.used_bytes == UNIT
    write_extent(tier.path(version(1)), 0, bytes(UNIT), size_bytes=UNIT)
    reservation.settle()
    assert tier.used_bytes == 0
    assert not Path(tier.path(version(1))).exists()


def test_a_few_blocks_of_a_large_object_take_the_room_of_a_few_blocks(tmp_path: Path) -> None:
    """Extents are charged, not the object's size."""
    tier = make_tier(tmp_path, units=10)
    reservation = tier.reserve(version(1), 2 * UNIT, object_bytes=10 * UNIT, name=b"")
    assert reservation is not None
    reservation.settle()
    assert tier.charged_bytes(version(1)) == 2 * UNIT
    assert fill(tier, 2, 8 * UNIT)
    assert version(1) in tier


every_policy = pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"planned"}))


def test_hold_evicts_for_no_newcomer(tmp_path: Path) -> None:
    """With the hold policy what came first stays, and a full tier refuses. Staged bytes get room all the same."""
    tier = make_tier(tmp_path, units=3, policy="hold")
    assert [fill(tier, number, UNIT) for number in range(5)] == [True, True, True, False, False]
    assert tier.give_room(UNIT)
    assert tier.used_bytes == 2 * UNIT


@every_policy
def test_a_tier_that_became_smaller_evicts_what_is_too_much(tmp_path: Path, policy: str) -> None:
    tier = make_tier(tmp_path, units=2, policy=policy)
    for number in range(5):
        tier.restore(version(number), UNIT, name=b"f")
    tier.trim()
    assert tier.used_bytes == 2 * UNIT


def test_repeated_failures_take_a_disk_out_and_a_probe_brings_it_back(tmp_path: Path) -> None:
    """While it is out the tier takes nothing; a full disk is not counted as an illness."""
    clock = Clock()
    tier = make_tier(tmp_path, clock=clock)
    for _ in range(10):
        tier.failed(OSError(28, "full"), "a test")
    assert tier.works
    for _ in range(FAILURES_BEFORE_OUT):
        assert tier.works
        tier.failed(OSError(5, "broken"), "a test")
    assert not tier.works
    assert not fill(tier, 1, 1)
    assert not tier.probe_is_due
    clock.now_s += FIRST_PAUSE_S
    assert tier.probe_is_due
    tier.begin_probe()
    assert not tier.works
    assert tier.probed(tier.probe())
    assert fill(tier, 1, 1)


def test_a_directory_that_cannot_be_made_turns_the_tier_off(tmp_path: Path) -> None:
    """A file in its place, or a link to somewhere: the tier misses, nothing is raised and nothing written there."""
    (tmp_path / "file").write_text("in the way")
    assert not make_tier(tmp_path / "file").works
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    tier = make_tier(tmp_path / "link")
    assert not tier.works
    assert not fill(tier, 1, 1)


def test_only_files_of_a_tier_are_found(tmp_path: Path) -> None:
    """Names that no tier makes are neither reported nor touched."""
    tier = make_tier(tmp_path)
    fill(tier, 7, 10)
    for foreign in ("ab/notes.txt", "ab/" + "g" * 32, "readme", "abc/" + "0" * 32):
        path = tmp_path / foreign
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (tmp_path / "cd").mkdir()
    (tmp_path / "cd" / ("0" * 32)).symlink_to(tmp_path / "readme")
    assert [found for found, _ in tier.scan()] == [version(7)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 8) as path:
        yield path


def test_the_floor_holds_when_others_fill_the_disk(disk: Path) -> None:
    """C23: room is given back down to the floor, a fill that would go below it is refused, and later it recovers."""
    tier = FileTier(
        Tier.NVME,
        disk / "tier",
        capacity_bytes=100 * MIB,
        free_space_floor_bytes=2 * MIB,
        policy=make_policy("lru", 100 * MIB),
        metrics=Metrics(),
        max_object_share=1.0,
    )
    for number in range(10):
        assert fill(tier, number, MIB)
        assert free_bytes(disk) >= 2 * MIB
    other = disk / "other"
    other.write_bytes(bytes(free_bytes(disk)))
    tier.trim()
    assert free_bytes(disk) >= 2 * MIB
    with other.open("ab") as file:
        while tier.used_bytes:
            file.write(bytes(free_bytes(disk)))
            file.flush()
            tier.trim()
        file.write(bytes(free_bytes(disk)))
    assert not fill(tier, 20, MIB)
    other.unlink()
    assert fill(tier, 21, MIB)


def name_of(number: int) -> bytes:
    return b"job/%d" % number if number % 2 else b"%d" % number


class TierAccount(RuleBasedStateMachine):
    """Any order of fills, failures, drops and evictions: used is the sum of what is there and in flight."""

    QUOTAS: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.tier = make_tier(Path(self.directory.name), units=8, quotas=self.QUOTAS)
        self.open: list[tuple[int, int, Reservation]] = []
        self.tier.is_pinned = lambda candidate: any(version(number) == candidate for number, _, _ in self.open)

    @rule(number=st.integers(0, 5), units=st.integers(1, 4))
    def reserve(self, number: int, units: int) -> None:
        reservation = self.tier.reserve(version(number), units * UNIT, object_bytes=units * UNIT, name=name_of(number))
        if reservation is not None:
            self.open.append((number, units, reservation))

    @rule(pick=st.integers(0, 10), written=st.booleans())
    def end(self, pick: int, written: bool) -> None:
        if self.open:
            _, _, reservation = self.open.pop(pick % len(self.open))
            if written:
                reservation.settle()
            else:
                reservation.cancel()

    @rule(number=st.integers(0, 5))
    def drop(self, number: int) -> None:
        self.tier.drop(version(number))

    @rule(old=st.integers(0, 2), new=st.integers(6, 8))
    def rename(self, old: int, new: int) -> None:
        if version(old) in self.tier and version(new) not in self.tier:
            self.tier.rename(version(old), version(new), name=name_of(new))

    @invariant()
    def within_capacity(self) -> None:
        assert 0 <= self.tier.used_bytes <= self.tier.capacity_bytes

    @invariant()
    def is_the_sum_of_its_parts(self) -> None:
        held = sum(self.tier.charged_bytes(version(number)) for number in range(9))
        in_flight = sum(units * UNIT for _, units, _ in self.open)
        assert max(held, in_flight) <= self.tier.used_bytes <= held + in_flight
        if not self.open:
            assert self.tier.used_bytes == held
        assert len(self.tier.policy) + self.in_quotas() == len(self.tier)

    def in_quotas(self) -> int:
        """Versions that other policies have."""
        return 0

    def teardown(self) -> None:
        for _, _, reservation in self.open:
            reservation.cancel()
        self.open.clear()
        self.is_the_sum_of_its_parts()
        self.directory.cleanup()


TestTierAccount = TierAccount.TestCase
TestTierAccount.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class QuotaAccount(TierAccount):
    """The same with a quota of three units for the odd numbers."""

    QUOTAS: ClassVar[dict[str, int]] = {"job/": 3}

    @rule()
    def trim(self) -> None:
        self.tier.trim()
        if not self.open:
            assert all(room.used_bytes <= room.capacity_bytes for room in self.tier.quotas)

    @invariant()
    def parts_are_not_negative(self) -> None:
        assert all(0 <= room.used_bytes <= self.tier.used_bytes for room in self.tier.quotas)

    def in_quotas(self) -> int:
        return sum(len(room.policy) for room in self.tier.quotas)


TestQuotaAccount = QuotaAccount.TestCase
TestQuotaAccount.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
