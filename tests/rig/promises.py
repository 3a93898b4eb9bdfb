"""What was promised of each name to survive a power loss, and whether it was kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tiercache.model import StagedState

TOLD = (StagedState.CONFLICT, StagedState.LOST)


class Told(NamedTuple):
    """A staged file that did not go up."""

    state: StagedState
    reason: str
    kept: bytes


class Fate:
    """What one name may come to."""

    def __init__(self) -> None:
        self.whole: set[bytes | None] = {None}
        """What the origin may have: states that were whole."""
        self.promised: set[bytes | None] | None = None
        """Since something was acknowledged at the level local or higher: that, and the whole states that came after."""
        self.prefix: bytes | None = b""
        """What must be left of a file that is told of; None where telling is no excuse."""


class Promises:
    """One fate for each name."""

    def __init__(self) -> None:
        self.fates: dict[str, Fate] = {}

    def begins(self, name: str, data: bytes | None) -> None:
        """This state is on its way, and whole."""
        fate = self.fates.setdefault(name, Fate())
        fate.whole.add(data)
        if fate.promised is not None:
            fate.promised.add(data)

    def acknowledged(self, name: str, data: bytes | None) -> None:
        """It survives a power cut."""
        self.begins(name, data)
        self.fates[name].promised = {data}
        self.fates[name].prefix = None

    def written_on(self, name: str, kept: bytes) -> None:
        """The file itself is changed, without a promise yet: ``kept`` of it stays what it was."""
        self.fates[name].prefix = kept

    def check(self, objects: Mapping[str, bytes], told: Mapping[str, Told], hint: str) -> None:
        """``objects`` are at the origin when all has gone up that would, ``told`` what did not."""
        for name, fate in self.fates.items():
            found, here = objects.get(name), told.get(name)
            assert found in fate.whole, f"{hint}: a state of {name} that never was is at the origin"
            if here is not None:
                assert here.state in TOLD, f"{hint}: {name} is {here.state}"
                assert here.reason, hint
            if fate.promised is None or found in fate.promised:
                continue
            assert here is not None, f"{hint}: {name} was promised and is gone"
            assert fate.prefix is not None, f"{hint}: {name} was promised: {here.reason}"
            assert here.kept.startswith(fate.prefix), f"{hint}: {name} was promised: {here.reason}"
        assert set(objects) <= set(self.fates), hint
        assert set(told) <= set(self.fates), f"{hint}: {told}"
