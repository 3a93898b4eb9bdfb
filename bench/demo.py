"""``make demo``: real files in a local S3 server, mounted and opened through fsspec, cached against uncached."""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tiercache.bench.cli import end_orderly, work_directory, write_output
from tiercache.bench.dataset import describe
from tiercache.bench.reading import add_dataset
from tiercache.bench.realfiles import copy_real_files, describe_real_files, find_real_files
from tiercache.bench.run import Plan, run
from tiercache.bench.slowness import parse_slowness
from tiercache.bench.stage import Stage
from tiercache.bench.table import print_report
from tiercache.bench.workloads import Order, Reading, Saving, Workload
from tiercache.errors import TierCacheError
from tiercache.units import MIB

OBJECTS = 600
"""About so many; the real files are stored as often as that takes."""
ROUNDS = 5


def main(argv: Sequence[str]) -> int:
    """Run the demonstration and write report.html and report.png into the current directory; the exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--simulate-origin", metavar="SPEC", default="", help="such as latency=10ms,bandwidth=100MB/s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    options = parser.parse_args(list(argv))
    signal.signal(signal.SIGTERM, end_orderly)
    try:
        _demonstrate(options)
    except TierCacheError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; everything was cleaned up", file=sys.stderr)
        return 130
    return 0


def _demonstrate(options: argparse.Namespace) -> None:
    files = find_real_files()
    if not files:
        raise TierCacheError("no real files were found: pip install 'tiercache-fs[bench]'")
    copies = max(1, round(OBJECTS / len(files)))
    sizes = [file.path.stat().st_size for file in files]
    reading = _real_workload(len(files) * copies, int(statistics.median(sizes)))

    def prepare(stage: Stage) -> None:
        directory = stage.work_directory / "local" / "real"
        copy_real_files(files, directory, copies=copies)
        stage.notes.append(describe_real_files(files, copies=copies))
        add_dataset(stage, reading, describe("real", directory))

    plan = Plan(
        title="tiercache: cached against uncached",
        workloads=(reading, *_other_workloads()),
        slowness=parse_slowness(options.simulate_origin) if options.simulate_origin else None,
        rounds=options.rounds,
    )
    with work_directory(None) as directory:
        *_, report = run(plan, directory, prepare=prepare)
    print_report(report)
    for kind in ("html", "png"):
        path = Path(f"report.{kind}")
        write_output(report, kind, path)
        print(f"wrote {path.absolute()}")


def _real_workload(files: int, median_bytes: int) -> Reading:
    return Reading(
        name="real-files",
        title="real images, sound and text in random order, one worker",
        files=files,
        median_bytes=median_bytes,
        order=Order.RANDOM,
        workers=1,
        requests=500,
        origin_requests=50,
        seed=7,
    )


def _other_workloads() -> tuple[Workload, ...]:
    return (
        Reading(
            name="largefile",
            title="one large file from beginning to end, 8 MiB a read",
            files=1,
            median_bytes=192 * MIB + 12345,
            order=Order.SEQUENTIAL,
            workers=1,
            request_bytes=8 * MIB,
            requests=25,
            origin_requests=12,
        ),
        Saving(
            name="checkpoint",
            title="a checkpoint, written with fsync, then loaded",
            size_bytes=96 * MIB,
            write_bytes=16 * MIB,
            fsync=True,
        ),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
