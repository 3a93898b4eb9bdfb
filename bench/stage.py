"""What all workloads need while they run: the place, the workers, the page cache, fresh nodes, and where results go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiercache.bench.dataset import DataSet
from tiercache.bench.measure import Timed
from tiercache.bench.node import Node
from tiercache.bench.pagecache import PageCache, resident_share
from tiercache.bench.peers.mount import PeerMount
from tiercache.bench.peers.peer import Peer
from tiercache.bench.phases import OURS_ONLY, Phase
from tiercache.bench.place import Place
from tiercache.bench.pool import WorkerPool
from tiercache.bench.progress import Progress
from tiercache.bench.results import Epoch, epoch_of
from tiercache.bench.served import Behind, Served
from tiercache.bench.spent import Spent, TierUse, grown
from tiercache.bench.targets import Call, Role, Setup, Target, targets_for
from tiercache.bench.terms import Terms

NO_SETTINGS: Mapping[str, Any] = {}

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
    driver: str = ""
    """Of our mounts; empty: the usual one."""
    peers: tuple[Peer, ...] = ()
    page_cache: PageCache = field(default_factory=PageCache)
    epochs: list[Epoch] = field(default_factory=list)
    datasets: dict[str, DataSet] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _nodes: int = 0
    _sessions: int = 0

    def targets(self, place: Place, *, calls: Sequence[Call] = tuple(Call), mounts_only: bool = False) -> list[Target]:
        """Who takes part over an origin of this kind."""
        peers = [peer.name for peer in self.peers if peer.serves(place)]
        return targets_for(place, mount=self.mount, peers=peers, calls=calls, mounts_only=mounts_only)

    def rotated(self, targets: Sequence[Target], number: int, phase: Phase) -> list[Target]:
        """A B C, then B C A, …: nobody always comes first. Only those that the phase is for."""
        taking_part = [target for target in targets if not (phase in OURS_ONLY and target.role is Role.PEER)]
        start = number % len(taking_part)
        return [*taking_part[start:], *taking_part[:start]]

    # -- what stands behind the targets -----------------------------------------------------------

    def new_node(self, place: Place, terms: Terms, *, mounted: bool, settings: Mapping[str, Any] = NO_SETTINGS) -> Node:
        """A node over a cache directory of its own; the caller enters it and removes it.

        ``settings`` are the workload's, and come before those of the run.
        """
        return Node(
            self._new_directory(),
            place,
            terms=terms,
            settings={**self.settings, **settings},
            mounted=mounted,
            driver=self.driver,
        )

    @contextmanager
    def fresh(
        self, target: Target, place: Place, terms: Terms, *, settings: Mapping[str, Any] = NO_SETTINGS
    ) -> Iterator[Served | None]:
        """What serves one target and has nothing yet; removed afterwards. It mounts only if that is the target.

        ``settings`` are the workload's, of our node.
        """
        served: Node | PeerMount
        match target.role:
            case Role.CACHED:
                served = self.new_node(place, terms, mounted=target.mounted, settings=settings)
            case Role.PEER:
                served = self._new_peer_mount(target.program, place, terms)
            case Role.ORIGIN | Role.LOCAL:
                yield None
                return
        try:
            with served:
                yield served
        finally:
            served.remove()

    @contextmanager
    def peer_mounts(self, targets: Sequence[Target], place: Place, terms: Terms) -> Iterator[dict[str, Served]]:
        """A mount of each peer among the targets, by its name; removed afterwards."""
        with ExitStack() as stack:
            found: dict[str, Served] = {}
            for target in targets:
                if target.role is Role.PEER:
                    mount = self._new_peer_mount(target.program, place, terms)
                    stack.callback(mount.remove)
                    found[target.program] = stack.enter_context(mount)
            yield found

    @contextmanager
    def behind(
        self, targets: Sequence[Target], place: Place, terms: Terms, *, settings: Mapping[str, Any] = NO_SETTINGS
    ) -> Iterator[Behind]:
        """A fresh node and a mount of each peer; removed afterwards."""
        node = self.new_node(place, terms, mounted=self.mount, settings=settings)
        try:
            with self.peer_mounts(targets, place, terms) as peers, node:
                yield Behind(node, peers)
        finally:
            node.remove()

    def adopt(self, place: Place, dataset: DataSet) -> None:
        """Let peers that keep a format of their own have a data set that the origin has."""
        for peer in self.peers:
            if peer.own_format and peer.serves(place):
                peer.adopt(place, dataset, self.progress.moving(f"filling {peer.name}", dataset.total_bytes))

    def _new_peer_mount(self, name: str, place: Place, terms: Terms) -> PeerMount:
        [peer] = [peer for peer in self.peers if peer.name == name]
        # A peer does not always tell when its uploads are over, so none of theirs begins before the file is removed.
        put_off = terms._replace(put_off_uploads=not terms.read_only)
        return PeerMount(peer, place, self._new_directory(), put_off)

    def _new_directory(self) -> Path:
        self._nodes += 1
        return self.work_directory / f"node-{self._nodes}"

    @contextmanager
    def session(
        self,
        target: Target,
        place: Place,
        local: Path,
        served: Served | None,
        *,
        workers: int = 1,
        buffered: bool = True,
    ) -> Iterator[str]:
        """Open a target in the workers; gives the name to call it by."""
        self._sessions += 1
        name = f"{target.name} #{self._sessions}"
        setup = setup_of(target, place, local, served)._replace(buffered=buffered)
        self.pool.open(name, setup, workers=workers)
        try:
            yield name
        finally:
            self.pool.close(name, workers=workers)

    # -- the page cache ---------------------------------------------------------------------------

    def cached_paths(self, target: Target, dataset: DataSet | None, served: Served | None) -> list[Path]:
        """Files whose pages would make a target fast without its disk."""
        if target.role is Role.LOCAL:
            return dataset.paths() if dataset else []
        if served is None:
            return []
        return [*served.cache_files(), *_sample(served, dataset)]

    def warm_paths(self, target: Target, dataset: DataSet, served: Served | None) -> list[Path]:
        """Files that a warm target reads; none where it is not for us to look."""
        if target.role is Role.LOCAL:
            return dataset.paths()
        if served is None:
            return []
        if target.mounted:
            return _sample(served, dataset)
        return list(served.ram_files()) or list(served.cache_files())

    def drop(self, target: Target, dataset: DataSet | None, served: Served | None) -> float | None:
        """Empty the page cache; the share of the target's pages that is left, None where there are none to look at."""
        return self.drop_paths(self.cached_paths(target, dataset, served))

    def drop_paths(self, paths: Sequence[Path]) -> float | None:
        """The same for files that are named one by one."""
        self.page_cache.drop(paths)
        return resident_share(paths) if paths else None

    # -- results ----------------------------------------------------------------------------------

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
        spent = before.spent()
        self.add(epoch_of(workload, phase, target, number, timed, spent=spent, resident_before=resident_before))

    def add(self, epoch: Epoch) -> None:
        """Note down one that is made already."""
        self.epochs.append(epoch)
        self.progress.advance()

    def before(self, served: Served | None) -> Before:
        """The counters before an epoch."""
        return Before(served, self.place)


class Before:
    """Counters before an epoch, to tell afterwards what it added."""

    def __init__(self, served: Served | None, place: Place) -> None:
        self._served = served
        self._place = place
        self._traffic = place.traffic()
        self._status = served.status() if served else None
        self._usage = served.usage() if served else None

    def spent(self) -> Spent:
        """What has been done since behind the target."""
        usage = status = None
        if self._served is not None:
            usage = self._served.usage()  # first: telling its figures costs the engine time
            status = self._served.status()
        traffic = self._place.traffic()
        return Spent(
            server=usage.since(self._usage) if usage and self._usage else None,
            use=TierUse.of(status).minus(TierUse.of(self._status)) if status and self._status else None,
            counters=grown(status, since=self._status) if status and self._status else None,
            traffic=traffic.since(self._traffic) if traffic and self._traffic else None,
        )


def _sample(served: Served, dataset: DataSet | None) -> list[Path]:
    if served.mountpoint is None or dataset is None:
        return []
    return [served.mountpoint / name for name in list(dataset.files)[:MOUNT_SAMPLE]]


def setup_of(target: Target, place: Place, local: Path, served: Served | None) -> Setup:
    """How a worker reaches a target. ``place`` and ``local`` are the data set's."""
    match target.kind, target.role:
        case "plain", Role.LOCAL:
            return Setup("plain", target.call, str(local))
        case "plain", Role.ORIGIN:
            return Setup("plain", target.call, place.root, slow=place.slowness is not None)
        case "plain", Role.CACHED | Role.PEER:
            assert served is not None
            assert served.mountpoint is not None
            return Setup("plain", target.call, str(served.mountpoint))
        case "fsspec", Role.LOCAL:
            return Setup("fsspec", target.call, str(local), "file")
        case "fsspec", Role.CACHED:
            assert isinstance(served, Node)
            return Setup("fsspec", target.call, place.root, "tiercache", our_options(place, served))
    return Setup(target.kind, target.call, place.root, place.protocol, place.options)


def our_options(place: Place, node: Node) -> dict[str, Any]:
    """Of our fsspec filesystem, attached to a node."""
    return {
        "target_protocol": place.protocol,
        "target_options": place.engine_options,
        "cache_dir": str(node.cache_dir),
        "settings": node.settings,
        "engine": "attach",
        "profile": node.terms.profile,
    }
