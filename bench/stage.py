"""What all workloads need while they run: the place, the workers, the page cache, fresh nodes, and where results go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiercache.bench.dataset import DataSet
from tiercache.bench.measure import Timed
from tiercache.bench.node import Node
from tiercache.bench.pagecache import PageCache, resident_share
from tiercache.bench.place import Place
from tiercache.bench.pool import WorkerPool
from tiercache.bench.progress import Progress
from tiercache.bench.results import Epoch, Phase, TierUse, epoch_of
from tiercache.bench.targets import Role, Setup, Target

MOUNT_SAMPLE = 32
"""Files of a mount whose pages are looked at: each look is an open that the kernel has to ask for."""


@dataclass
class Stage:
    """One run of the benchmark."""

    place: Place
    pool: WorkerPool
    work_directory: Path
    progress: Progress
    rounds: int
    mount: bool
    settings: Mapping[str, Any]
    """Of our engine, as in the configuration file."""
    page_cache: PageCache = field(default_factory=PageCache)
    epochs: list[Epoch] = field(default_factory=list)
    datasets: dict[str, DataSet] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _nodes: int = 0
    _sessions: int = 0

    def rotated(self, targets: Sequence[Target], number: int) -> list[Target]:
        """A B C, then B C A, …: nobody always comes first."""
        start = number % len(targets)
        return [*targets[start:], *targets[:start]]

    def new_node(self, place: Place, *, profile: str, mounted: bool) -> Node:
        """A node over a cache directory of its own; the caller enters it and removes it."""
        self._nodes += 1
        directory = self.work_directory / f"node-{self._nodes}"
        return Node(directory, place, profile=profile, settings=self.settings, mounted=mounted)

    @contextmanager
    def fresh_node(self, place: Place, *, profile: str, target: Target | None = None) -> Iterator[Node]:
        """A node that has nothing yet; removed afterwards. For one ``target`` it mounts only if that is the mount."""
        mounted = self.mount if target is None else target.mounted
        node = self.new_node(place, profile=profile, mounted=mounted)
        try:
            with node:
                yield node
        finally:
            node.remove()

    @contextmanager
    def session(
        self, target: Target, place: Place, local: Path, node: Node | None, *, workers: int = 1
    ) -> Iterator[str]:
        """Open a target in the workers; gives the name to call it by."""
        self._sessions += 1
        name = f"{target.name} #{self._sessions}"
        self.pool.open(name, setup_of(target, place, local, node), workers=workers)
        try:
            yield name
        finally:
            self.pool.close(name, workers=workers)

    def cached_paths(self, target: Target, dataset: DataSet | None, node: Node | None) -> list[Path]:
        """Files whose pages would make a target fast without its disk."""
        if target.role is Role.LOCAL:
            return dataset.paths() if dataset else []
        if target.role is Role.ORIGIN or node is None:
            return []
        paths = list(node.cache_files())
        if node.mountpoint is not None and dataset is not None:
            paths += [node.mountpoint / name for name in list(dataset.files)[:MOUNT_SAMPLE]]
        return paths

    def warm_paths(self, target: Target, dataset: DataSet, node: Node | None) -> list[Path]:
        """Files that a warm target reads; none where it is not for us to look."""
        if target.role is Role.LOCAL:
            return dataset.paths()
        if node is None or target.mounted:
            return []
        return list(node.ram_files()) or list(node.cache_files())

    def drop(self, target: Target, dataset: DataSet | None, node: Node | None) -> float | None:
        """Empty the page cache; the share of the target's pages that is left, None where there are none to look at."""
        return self.drop_paths(self.cached_paths(target, dataset, node))

    def drop_paths(self, paths: Sequence[Path]) -> float | None:
        """The same for files that are named one by one."""
        self.page_cache.drop(paths)
        return resident_share(paths) if paths else None

    def record(
        self,
        workload: str,
        phase: Phase,
        target: Target,
        number: int,
        timed: Sequence[Timed],
        *,
        before: Before,
        resident_before: float | None = None,
    ) -> None:
        """Note down one epoch."""
        traffic = self.place.traffic()
        self.epochs.append(
            epoch_of(
                workload,
                phase,
                target,
                number,
                timed,
                use=before.use_now(),
                traffic=traffic.since(before.traffic) if traffic and before.traffic else None,
                resident_before=resident_before,
            )
        )
        self.progress.advance()

    def before(self, node: Node | None) -> Before:
        """The counters before an epoch."""
        return Before(node, self.place.traffic())


class Before:
    """Counters before an epoch, to tell afterwards what it added."""

    def __init__(self, node: Node | None, traffic: Any) -> None:
        self._node = node
        self.traffic = traffic
        self._use = TierUse.of(node.status()) if node else None

    def use_now(self) -> TierUse | None:
        """What the engine has done since."""
        if self._node is None or self._use is None:
            return None
        return TierUse.of(self._node.status()).minus(self._use)


def setup_of(target: Target, place: Place, local: Path, node: Node | None) -> Setup:
    """How a worker reaches a target. ``place`` and ``local`` are the data set's."""
    match target.kind, target.role:
        case "plain", Role.LOCAL:
            return Setup("plain", target.call, str(local))
        case "plain", Role.ORIGIN:
            return Setup("plain", target.call, place.root, slow=place.slowness is not None)
        case "plain", Role.CACHED:
            assert node is not None
            assert node.mountpoint is not None
            return Setup("plain", target.call, str(node.mountpoint))
        case "fsspec", Role.LOCAL:
            return Setup("fsspec", target.call, str(local), "file")
        case "fsspec", Role.CACHED:
            assert node is not None
            return Setup("fsspec", target.call, place.root, "tiercache", _our_options(place, node))
    return Setup(target.kind, target.call, place.root, place.protocol, place.options)


def _our_options(place: Place, node: Node) -> dict[str, Any]:
    return {
        "target_protocol": place.protocol,
        "target_options": place.engine_options,
        "cache_dir": str(node.cache_dir),
        "settings": node.settings,
        "engine": "attach",
        "profile": node.profile,
    }
