"""``tiercache bench``: cached against uncached, in one run."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, get_args

from tiercache.bench.arguments import Parser, outputs_of, positive
from tiercache.bench.peers.choice import KINDS, parse_against
from tiercache.bench.report import Report
from tiercache.bench.run import Plan, run
from tiercache.bench.slowness import parse_slowness
from tiercache.bench.suites import SUITES, find_workloads
from tiercache.bench.table import print_report
from tiercache.errors import ConfigError
from tiercache.fuse.options import DriverName

QUICK_SCALE = 0.01
QUICK_ROUNDS = 1
"""Most of a quick run's time is that of starting engines, clients and mounts: a second round tells nothing more."""
DEFAULT_ROUNDS = 5


def main(argv: Sequence[str]) -> int:
    """Run what the arguments say; the exit status. TierCacheError as everywhere."""
    if argv and argv[0] == "policies":
        from tiercache.bench.simulator.cli import main as simulate

        return simulate(argv[1:])
    parser = _parser()
    options = parser.parse_args(list(argv))
    try:
        outputs = outputs_of(options, "json", "html", "png")
        plan = _plan(options)
    except ConfigError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, end_orderly)
    report = None
    try:
        with work_directory(options.work_dir) as directory:
            for report in run(plan, directory):  # noqa: B007 - the last one counts, also when no more will come
                pass
    finally:
        if report is not None:
            _publish(report, outputs)
    return 0


def _publish(report: Report, outputs: Mapping[str, Path]) -> None:
    print_report(report)
    for kind, path in outputs.items():
        write_output(report, kind, path)
        print(f"wrote {path}")


def end_orderly(number: int, frame: object) -> NoReturn:
    """A signal handler: leave nothing mounted, running or lying about."""
    sys.exit(128 + number)


@contextmanager
def work_directory(parent: str | None) -> Iterator[Path]:
    """A new directory for caches and local copies, removed afterwards. Not in /tmp, which may be in memory."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="tiercache-bench-", dir=parent or "/var/tmp"))
    except OSError as error:
        raise ConfigError(f"--work-dir: {error.filename or parent}: {error.strerror}") from None
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def write_output(report: Report, kind: str, path: Path) -> None:
    """Write the report as ``json``, ``html`` or ``png``."""
    if kind == "json":
        report.write_json(path)
    elif kind == "html":
        from tiercache.bench.page import write_page

        write_page(report, path)
    else:
        from tiercache.bench.plots import write_png

        write_png(report, path)


def _plan(options: argparse.Namespace) -> Plan:
    workloads = find_workloads(options.workload)
    scale = options.scale * (QUICK_SCALE if options.quick else 1.0)
    if scale != 1.0:
        workloads = [workload.scaled(scale) for workload in workloads]
    return Plan(
        title=f"tiercache bench {options.workload}",
        workloads=tuple(workloads),
        origin=options.origin,
        origin_options=_pairs("--option", options.option),
        slowness=parse_slowness(options.simulate_origin) if options.simulate_origin else None,
        rounds=options.rounds or (QUICK_ROUNDS if options.quick else DEFAULT_ROUNDS),
        mount=not options.no_mount,
        driver=options.driver,
        against=parse_against(options.against),
        quick=options.quick,
        settings=_pairs("--set", options.set),
    )


def _pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    found = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ConfigError(f"{option}: {pair!r} is not NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _parser() -> Parser:
    parser = Parser(
        prog="tiercache bench",
        description="Measure tiercache against the uncached origin, against a plain local directory and, where asked "
        "for, against other mounts, in one run. Every read is checked against a digest. Without --origin a local S3 "
        "server is started.",
    )
    add = parser.add_argument
    add(
        "workload",
        metavar="WORKLOAD",
        help=f"what to measure: {','.join([*SUITES, 'all'])}, or one part of these such as mount-tree; "
        "policies: a simulation, see tiercache bench policies --help",
    )
    add(
        "--origin",
        metavar="URL",
        default="",
        help="s3://BUCKET/PREFIX or a directory; works in a new folder there",
    )
    add("--option", metavar="NAME=VALUE", action="append", default=[], help="of the S3 client, such as endpoint_url=…")
    add(
        "--simulate-origin",
        metavar="SPEC",
        default="",
        help="a slower origin: latency=10ms,bandwidth=100MB/s[,serial=yes]",
    )
    add("--scale", type=positive(float), default=1.0, metavar="FACTOR", help="more or less data and requests")
    add("--quick", action="store_true", help="little data and one round: does it run at all?")
    add("--rounds", type=positive(int), default=None, metavar="N", help=f"default {DEFAULT_ROUNDS}")
    add("--work-dir", metavar="DIR", default=None, help="where caches and local copies go; default /var/tmp")
    add("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting of the engine: ram.capacity=1GiB")
    add("--no-mount", action="store_true", help="leave the mount out")
    add(
        "--against",
        metavar="NAMES",
        default="",
        help=f"other mounts to measure beside ours, over the same server and on the same disk: {','.join(KINDS)}",
    )
    add("--driver", choices=get_args(DriverName), default="", help="what speaks with the kernel for our mounts")
    add("--json", metavar="FILE", default="", help="all figures, each round's too")
    add("--html", metavar="FILE", default="", help="a page with plots, in one file")
    add("--png", metavar="FILE", default="", help="the plots")
    return parser
