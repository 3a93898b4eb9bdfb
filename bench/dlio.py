"""DLIO's training shapes (MLPerf Storage) over our mount, beside an uncached mount and the local disk.

    python -P -m tiercache.bench.dlio --dlio VENV/bin/dlio_benchmark

It is not part of ``tiercache bench``: DLIO needs MPI and gigabytes of packages, in an environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tiercache.bench.arguments import Parser, positive
from tiercache.bench.cli import end_orderly, work_directory
from tiercache.bench.dataset import DataSet
from tiercache.bench.node import ROOMY, Node
from tiercache.bench.pagecache import PageCache
from tiercache.bench.peers.mount import PeerMount
from tiercache.bench.peers.peer import Launch, last_words
from tiercache.bench.peers.rclone import Rclone
from tiercache.bench.place import Place, make_place
from tiercache.bench.slowness import Slowness, parse_slowness
from tiercache.bench.terms import Terms
from tiercache.errors import TierCacheError

RUN_DEADLINE_S = 1800.0
EPOCHS = 2
TERMS = Terms("dataset", read_only=True)
UNCACHED, OURS, LOCAL = "rclone mount, no cache", "tiercache mount", "local directory"


class Shape(NamedTuple):
    """A model of MLPerf Storage, scaled down: fewer and smaller steps, and one simulated accelerator."""

    name: str
    files: int
    record_bytes: int
    batch: int
    step_s: float


SHAPES = (Shape("resnet50", 2000, 114_660, 32, 0.1), Shape("unet3d", 96, 4_000_000, 4, 0.2))


class Result(NamedTuple):
    """One run: an entry per epoch, the first with nothing cached."""

    shape: str
    row: str
    utilisation: tuple[float, ...]
    """AU in percent, as DLIO computes it."""
    samples_per_s: tuple[float, ...]
    gets: int
    """Of all epochs, at the origin."""


class UncachedRclone(Rclone):
    """What a mount makes of it that keeps nothing on the disk."""

    def launch(self, place: Place, mountpoint: Path, cache: Path, terms: Terms) -> Launch:
        launch = super().launch(place, mountpoint, cache, terms)
        return launch._replace(
            command=[part.replace("--vfs-cache-mode=full", "--vfs-cache-mode=off") for part in launch.command]
        )


class Dlio:
    """The program, for one shape."""

    def __init__(self, binary: str, shape: Shape, directory: Path) -> None:
        self._binary = binary
        self._shape = shape
        self._directory = directory
        self._runs = 0

    def generate(self, data: Path) -> None:
        """Write the data set."""
        self._run(data, "++workload.workflow.generate_data=True", "++workload.workflow.train=False")

    def train(self, data: Path) -> dict[str, Any]:
        """Train over it; the metrics of DLIO's summary."""
        output = self._run(data, "++workload.workflow.generate_data=False", "++workload.workflow.train=True")
        metric = json.loads((output / "summary.json").read_text())["metric"]
        assert isinstance(metric, dict)
        return metric

    def _run(self, data: Path, *more: str) -> Path:
        self._runs += 1
        output = self._directory / f"{self._shape.name}-{self._runs}"
        settings = {
            "model": self._shape.name,
            "workflow.checkpoint": False,
            "dataset.data_folder": data,
            "dataset.num_files_train": self._shape.files,
            "dataset.num_files_eval": 1,  # DLIO lists their directory too, and a store has no empty ones
            "dataset.record_length": self._shape.record_bytes,
            "dataset.record_length_stdev": 0,
            "dataset.record_length_resize": min(self._shape.record_bytes, 150_528),
            "reader.batch_size": self._shape.batch,
            "train.epochs": EPOCHS,
            "train.computation_time": self._shape.step_s,
        }
        told = [f"++workload.{name}={value}" for name, value in settings.items()]
        _start([self._binary, "workload=unet3d_a100", *told, *more, f"hydra.run.dir={output}"])
        return output


def _start(command: list[str]) -> None:
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            timeout=RUN_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TierCacheError(f"DLIO did not end within {RUN_DEADLINE_S:.0f} s") from None
    if result.returncode:
        raise TierCacheError(f"DLIO failed: {last_words(result.stdout + result.stderr)}")


def run(binary: str, place: Place, directory: Path, *, rounds: int, scale: float) -> Iterator[Result]:
    """Every shape over every row, which take turns in each round."""
    for full in SHAPES:
        shape = full._replace(files=max(int(full.files * scale), 2 * full.batch))
        dlio = Dlio(binary, shape, directory / "runs")
        local = directory / shape.name
        _say(f"{shape.name}: generating")
        dlio.generate(local)
        sizes = {path.relative_to(local).as_posix(): path.stat().st_size for path in local.rglob("*") if path.is_file()}
        part = place.below(shape.name)
        part.upload(DataSet(shape.name, local, sizes, ()), lambda size_bytes: None)
        rows = _rows(part, local, directory)
        for number in range(rounds):
            start = number % len(rows)
            for name in [*list(rows)[start:], *list(rows)[:start]]:
                _say(f"{shape.name}, round {number + 1}: {name}")
                yield _measure(dlio, shape, name, rows[name], part)


Row = Callable[[], Any]


def _rows(place: Place, local: Path, directory: Path) -> dict[str, Row]:
    """Of each: a context manager that gives the directory to train from, with nothing cached."""
    node_directory, peer_directory = directory / "node", directory / "rclone"

    @contextmanager
    def ours() -> Iterator[Path]:
        node = Node(node_directory, place, terms=TERMS, settings=ROOMY, mounted=True)
        try:
            with node:
                assert node.mountpoint is not None
                yield node.mountpoint
        finally:
            node.remove()

    @contextmanager
    def uncached() -> Iterator[Path]:
        mount = PeerMount(UncachedRclone(place, peer_directory), place, peer_directory / "mount", TERMS)
        try:
            with mount:
                assert mount.mountpoint is not None
                yield mount.mountpoint
        finally:
            mount.remove()

    @contextmanager
    def plain() -> Iterator[Path]:
        PageCache(everything=False).drop(path for path in local.rglob("*") if path.is_file())
        yield local

    if not Rclone.find():
        _say(f"rclone is left out: it is not installed; to get it: {Rclone.install}")
    return {**({UNCACHED: uncached} if Rclone.find() else {}), OURS: ours, LOCAL: plain}


def _measure(dlio: Dlio, shape: Shape, name: str, row: Row, place: Place) -> Result:
    os.sync()
    with ExitStack() as stack:
        data = stack.enter_context(row())
        before = place.traffic()
        metric = dlio.train(data)
        after = place.traffic()
    gets = after.since(before).gets if before and after else 0
    return Result(
        shape.name,
        name,
        tuple(metric["train_au_percentage"]),
        tuple(metric["train_throughput_samples_per_second"]),
        gets,
    )


def print_results(results: Sequence[Result]) -> None:
    """Medians over the rounds, as a table of Markdown."""
    print("| shape | row | AU, first epoch | second | samples/s, first epoch | second | GETs |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for shape, row in dict.fromkeys((result.shape, result.row) for result in results):
        found = [result for result in results if (result.shape, result.row) == (shape, row)]
        utilisation = [f"{median(values):.1f} %" for values in zip(*(each.utilisation for each in found), strict=True)]
        rates = [f"{median(values):.0f}" for values in zip(*(each.samples_per_s for each in found), strict=True)]
        print(f"| {' | '.join([shape, row, *utilisation, *rates, f'{median(each.gets for each in found):.0f}'])} |")


def main(argv: Sequence[str]) -> int:
    """Run what the arguments say; the exit status."""
    parser = _parser()
    options = parser.parse_args(list(argv))
    if shutil.which(options.dlio) is None:
        parser.error(f"{options.dlio} is not there; docs/benchmark.md tells how to get it")
    signal.signal(signal.SIGTERM, end_orderly)
    slowness = parse_slowness(options.simulate_origin)
    results: list[Result] = []
    try:
        with work_directory(options.work_dir) as directory, _place(slowness, directory) as place:
            results += run(options.dlio, place, directory, rounds=options.rounds, scale=options.scale)
    except TierCacheError as error:
        print(f"tiercache: dlio: {error}", file=sys.stderr)
        return 1
    print(f"The origin: {slowness}.\n")
    print_results(results)
    if options.json:
        Path(options.json).write_text(json.dumps([result._asdict() for result in results], indent=1) + "\n")
    return 0


def _place(slowness: Slowness, directory: Path) -> Any:
    return make_place("", {}, slowness=slowness, work_directory=directory)


def _parser() -> Parser:
    parser = Parser(prog="tiercache bench dlio", description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("--dlio", metavar="FILE", default="dlio_benchmark", help="the program; docs/benchmark.md tells how to get it")
    add("--simulate-origin", metavar="SPEC", default="latency=10ms", help="default latency=10ms")
    add("--rounds", type=positive(int), default=3, metavar="N", help="default 3")
    add("--scale", type=positive(float), default=1.0, metavar="FACTOR", help="more or fewer files")
    add("--work-dir", metavar="DIR", default=None, help="where caches and local copies go; default /var/tmp")
    add("--json", metavar="FILE", default="", help="all figures")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
