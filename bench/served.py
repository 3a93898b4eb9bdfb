"""What stands between a target and the origin: our node, a peer's mount, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tiercache.bench.node import Node
from tiercache.bench.processes import Usage
from tiercache.bench.targets import Role, Target


class Served(Protocol):
    """A running cache. It ends when its block is left."""

    mountpoint: Path | None

    def cache_files(self) -> Iterator[Path]:
        """Its files on the disk."""
        ...

    def ram_files(self) -> Iterator[Path]:
        """Its files in memory."""
        ...

    def status(self) -> dict[str, Any] | None:
        """The figures that it counts itself, under the names of our engine; None if it has none."""
        ...

    def usage(self) -> Usage:
        """What its processes use."""
        ...

    def remove(self) -> None:
        """Remove its files, after its end."""
        ...


@dataclass(frozen=True, slots=True)
class Behind:
    """What stands behind each target of a workload."""

    node: Node
    """All of ours share it."""
    peers: Mapping[str, Served] = field(default_factory=dict)
    """By the name of the program."""

    def of(self, target: Target) -> Served | None:
        """None for those that need nothing."""
        match target.role:
            case Role.CACHED:
                return self.node
            case Role.PEER:
                return self.peers[target.program]
            case Role.ORIGIN | Role.LOCAL:
                return None
