"""How the capacity of a tier is parted: one room for each quota, and one for what no quota names. Each has its own
policy, made for its own capacity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tiercache.policies.base import Policy


class Quota(NamedTuple):
    """So much of a tier is for objects with these names, and no more."""

    rule: str
    """How users wrote the pattern."""
    pattern: re.Pattern[bytes]
    """Must match the whole name with a slash before it."""
    capacity_bytes: int
    policy: Policy


class Room:
    """A part of a tier. What is charged to one counts fills in flight, and is never more than its capacity, but for a
    time after a file was renamed into it or its quota was lowered."""

    __slots__ = ("capacity_bytes", "max_object_bytes", "policy", "rule", "used_bytes")

    def __init__(self, rule: str, capacity_bytes: int, max_object_share: float, policy: Policy) -> None:
        self.rule = rule
        """Empty where there is no quota."""
        self.capacity_bytes = capacity_bytes
        self.max_object_bytes = int(capacity_bytes * max_object_share)
        self.policy = policy
        self.used_bytes = 0

    def fits(self, charge: int) -> bool:
        """Whether so much more stays within the capacity."""
        return self.used_bytes + charge <= self.capacity_bytes

    @property
    def fullness(self) -> float:
        return self.used_bytes / max(1, self.capacity_bytes)


class Rooms:
    """All rooms of a tier, and the sum of what is in them."""

    def __init__(self, capacity_bytes: int, max_object_share: float, policy: Policy, quotas: Sequence[Quota]) -> None:
        left_bytes = capacity_bytes - sum(quota.capacity_bytes for quota in quotas)
        self.rest = Room("", left_bytes, max_object_share, policy)
        self.named = [Room(q.rule, q.capacity_bytes, max_object_share, q.policy) for q in quotas]
        self.used_bytes = 0
        self._patterns = [(quota.pattern, room) for quota, room in zip(quotas, self.named, strict=True)]

    @property
    def all(self) -> list[Room]:
        return [*self.named, self.rest]

    def of(self, name: bytes) -> Room:
        """Where an object of this name belongs: the first quota that matches counts."""
        if self._patterns:
            path = b"/" + name
            for pattern, room in self._patterns:
                if pattern.fullmatch(path):
                    return room
        return self.rest

    def fullest_first(self) -> list[Room]:
        """By what they use of their capacity."""
        return sorted(self.all, key=lambda room: -room.fullness)

    def charge(self, room: Room, size_bytes: int) -> None:
        """So many bytes more are in a room; fewer, where it is negative."""
        room.used_bytes += size_bytes
        self.used_bytes += size_bytes


class Account:
    """The bytes of one version: written ones, and those of fills in flight. Dead once the version left the tier."""

    __slots__ = ("alive", "pending_bytes", "room", "settled_bytes")

    def __init__(self, room: Room) -> None:
        self.room = room
        self.settled_bytes = 0
        self.pending_bytes = 0
        self.alive = True

    @property
    def charged_bytes(self) -> int:
        return self.settled_bytes + self.pending_bytes
