"""``tiercache bench policies``: what each eviction policy makes of a trace."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tiercache.bench.arguments import Parser, outputs_of, positive
from tiercache.bench.simulator.grid import print_grid, simulate, write_json
from tiercache.bench.simulator.traces import (
    Trace,
    change_trace,
    epochs_trace,
    file_trace,
    scan_trace,
    zipf_trace,
)
from tiercache.errors import ConfigError
from tiercache.policies import POLICIES
from tiercache.units import Size, parse_share

OF_EPOCHS = {"epochs": epochs_trace, "change": change_trace, "scan": scan_trace}


def main(argv: Sequence[str]) -> int:
    """Simulate what the arguments say; the exit status."""
    parser = _parser()
    options = parser.parse_args(list(argv))
    try:
        outputs = outputs_of(options, "json", "png")
        policies = _policies(options.policies) or list(POLICIES)
        capacities = [_capacity(text) for text in _split(options.capacity)]
        if not capacities:
            raise ConfigError("--capacity: is empty; allowed: shares such as 0.2 and sizes such as 200GiB")
        trace = _trace(options)
    except ConfigError as error:
        parser.error(str(error))
    grid = simulate(trace, policies, capacities, second_miss_reads=options.second_miss)
    print_grid(grid)
    for kind, path in outputs.items():
        if kind == "json":
            write_json(grid, path)
        else:
            from tiercache.bench.simulator.curves import write_curves

            write_curves(grid, path)
        print(f"wrote {path}")
    return 0


def _trace(options: argparse.Namespace) -> Trace:
    match options.trace:
        case "epochs" | "change" | "scan" as name:
            return OF_EPOCHS[name](
                objects=options.objects, epochs=options.epochs, spread=options.spread, seed=options.seed
            )
        case "zipf":
            return zipf_trace(
                objects=options.objects,
                reads=options.reads,
                alpha=options.alpha,
                spread=options.spread,
                seed=options.seed,
            )
        case path:
            try:
                return file_trace(Path(path))
            except ConfigError as error:
                raise ConfigError(f"--trace: {error}") from None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _policies(text: str) -> list[str]:
    names = _split(text)
    for name in names:
        if name not in POLICIES:
            raise ConfigError(f"--policies: {name!r} is not known; allowed: {', '.join(POLICIES)}")
    return names


def _capacity(text: str) -> Size:
    try:
        share = float(text)
    except ValueError:
        try:
            return parse_share(text)
        except ValueError as error:
            raise ConfigError(f"--capacity: {error}") from None
    if not 0 < share <= 1:
        raise ConfigError(f"--capacity: {text} is not a share above 0 and up to 1; a size has a unit, such as 200GiB")
    return Size(0, share)


def _parser() -> Parser:
    parser = Parser(
        prog="tiercache bench policies",
        description="Replay a trace of reads through the eviction policies, the code that the engine runs, without an "
        "origin, disks and bytes.",
    )
    add = parser.add_argument
    add(
        "--trace",
        metavar="TRACE",
        default="epochs",
        help="epochs (every object once in each, in random order), change (another data set after some epochs), scan "
        "(other objects read once between epochs), zipf (skewed popularity), or a file of lines key,size with the size "
        "in bytes",
    )
    add(
        "--capacity",
        metavar="LIST",
        default="0.2,0.5,0.8",
        help="shares of all objects' bytes, or sizes such as 200GiB; default 0.2,0.5,0.8",
    )
    add("--policies", metavar="LIST", default="", help=f"of {','.join(POLICIES)}; default all")
    add("--objects", type=positive(int), default=10_000, metavar="N", help="of one data set; default 10000")
    add(
        "--epochs",
        type=_at_least_two,
        default=5,
        metavar="N",
        help="over one data set, the first one not counted; default 5",
    )
    add("--reads", type=positive(int), default=200_000, metavar="N", help="of zipf; default 200000")
    add("--alpha", type=positive(float), default=1.0, help="of zipf: how skewed; default 1.0")
    add(
        "--spread",
        type=float,
        default=0.0,
        metavar="SIGMA",
        help="lognormal sizes; default 0, all objects of one size",
    )
    add("--seed", type=int, default=42, metavar="N", help="of the made traces; default 42")
    add(
        "--second-miss",
        type=positive(int),
        default=0,
        metavar="READS",
        help="let in only what is missed again within so many reads",
    )
    add("--json", metavar="FILE", default="", help="all figures")
    add("--png", metavar="FILE", default="", help="the miss ratio curves")
    return parser


def _at_least_two(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text} is too few: the first epoch only fills the cache")
    return value
