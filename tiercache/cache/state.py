"""What the engine holds in memory of a version while something happens to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from tiercache.cache.flight import Flight
from tiercache.cache.residency import Residency
from tiercache.cache.words import VersionRef
from tiercache.model import VersionId


class VersionState:
    """One version in motion: residency of its NVMe file, fetches in flight, checks that run.

    There is at most one per version, so two readers can never disagree. Losing the file (evicted, damaged, dropped)
    resets it and starts a new *generation*: a fill that began in an older one is never recorded.
    """

    __slots__ = (
        "checking",
        "doubts",
        "generation",
        "in_flight",
        "inode",
        "residency",
        "unverified",
        "users",
        "written_ns",
    )

    def __init__(self, size_bytes: int) -> None:
        self.residency = Residency(size_bytes)
        self.inode = 0
        self.written_ns = 0
        """ctime after our own last write (or check); another one means that somebody else wrote. 0 while unknown."""
        self.unverified = False
        """The record says complete, but this run has not compared the bytes with their checksums."""
        self.in_flight: dict[int, Flight] = {}
        self.checking: trio.Event | None = None
        self.doubts = 0
        """How often the file changed behind our back in this generation."""
        self.generation = 0
        self.users = 0

    def has_or_awaits(self, block: int) -> bool:
        """Whether a block needs no fetch: it is in the file or on its way."""
        return self.residency.has(block) or block in self.in_flight

    def reset(self) -> None:
        """The file is gone."""
        self.residency = Residency(self.residency.size_bytes)
        self.inode = 0
        self.written_ns = 0
        self.unverified = False
        self.doubts = 0
        self.generation += 1

    def doubt(self) -> None:
        """Somebody else wrote to the file: each block must prove itself by its checksum."""
        self.residency.doubt()
        self.written_ns = 0
        self.doubts += 1

    def wrote(self, inode: int, ctime_ns: int) -> None:
        """One of our writes ended. Writes of several threads may be told in another order than they ended."""
        self.inode = inode
        self.written_ns = max(self.written_ns, ctime_ns)


class VersionStates:
    """All versions in motion. An incomplete or unverified one stays, to remember which blocks this run has checked."""

    def __init__(self, load: Callable[[VersionRef], VersionState]) -> None:
        self._load = load
        self._states: dict[VersionId, VersionState] = {}

    def get(self, version: VersionId) -> VersionState | None:
        return self._states.get(version)

    def is_in_flight(self, version: VersionId) -> bool:
        state = self._states.get(version)
        return state is not None and bool(state.in_flight)

    @contextmanager
    def use(self, version: VersionRef) -> Iterator[VersionState]:
        """The state of a version, kept as long as anybody uses it."""
        state = self._states.get(version.id)
        if state is None:
            state = self._states[version.id] = self._load(version)
        state.users += 1
        try:
            yield state
        finally:
            state.users -= 1
            settled = state.residency.empty or (state.residency.complete and not state.unverified)
            # A flight that was sent for and has not begun to run is no user yet, and will look for itself here.
            if not state.users and not state.in_flight and settled:
                del self._states[version.id]

    def reset_all(self) -> list[VersionId]:
        """Nothing on the NVMe tier's disk can be used; those that are in use all the same."""
        for version in list(self._states):
            self.reset(version)
        return list(self._states)

    def reset(self, version: VersionId) -> None:
        """The NVMe file of a version is gone."""
        state = self._states.get(version)
        if state is None:
            return
        state.reset()
        if not state.users and not state.in_flight:
            del self._states[version]
