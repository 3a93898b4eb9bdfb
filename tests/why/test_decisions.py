"""The last decisions are remembered, no more of them than there is room for."""

from __future__ import annotations

from tiercache.decisions import Decisions, Topic
from tiercache.model import Key, OriginId, Tier, VersionId

ONE, OTHER = VersionId(b"1" * 16), VersionId(b"2" * 16)
NAME = (OriginId(b"o" * 16), Key(b"k"))


def test_of_each_topic_and_tier_the_last_decision_counts() -> None:
    now_s = 0.0
    decisions = Decisions(100, lambda: now_s)
    decisions.note(ONE, Topic.ADMISSION, Tier.NVME, "name")
    now_s = 1.0
    decisions.note(ONE, Topic.ADMISSION, Tier.NVME)
    decisions.note(ONE, Topic.ADMISSION, Tier.RAM, "first hit")
    decisions.note(ONE, Topic.LEAVING, Tier.RAM, "room", "lru", OTHER)
    decisions.note(NAME, Topic.FAILURE, why="denied")
    assert [(d.topic, d.tier, d.why, d.by, d.other, d.at_s) for d in decisions.of(ONE)] == [
        (Topic.ADMISSION, Tier.RAM, "first hit", "", None, 1.0),
        (Topic.ADMISSION, Tier.NVME, "", "", None, 1.0),
        (Topic.LEAVING, Tier.RAM, "room", "lru", OTHER, 1.0),
    ]
    assert [decision.why for decision in decisions.of(NAME)] == ["denied"]
    assert decisions.of(OTHER) == []


def test_beyond_the_limit_the_oldest_is_forgotten_and_that_is_told() -> None:
    decisions = Decisions(2)
    decisions.note(ONE, Topic.ADMISSION, Tier.NVME)
    decisions.note(OTHER, Topic.ADMISSION, Tier.NVME)
    decisions.note(ONE, Topic.ADMISSION, Tier.NVME)  # the same again takes no place
    assert not decisions.forgot
    decisions.note(ONE, Topic.AHEAD, why="plan")
    assert decisions.forgot
    assert len(decisions) == 2
    assert decisions.of(OTHER) == []
    assert len(decisions.of(ONE)) == 2


def test_without_a_place_nothing_is_remembered() -> None:
    decisions = Decisions(0)
    decisions.note(ONE, Topic.ADMISSION, Tier.NVME)
    assert len(decisions) == 0
    assert not decisions.forgot
