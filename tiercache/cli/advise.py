"""Say from a recorded trace what more room or another policy would give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tiercache.bench.simulator.advice import Advice, advise
from tiercache.bench.simulator.advice_words import as_dictionary, sentences, title
from tiercache.bench.simulator.grid import HITS, print_measure
from tiercache.bench.simulator.recorded import Recorded, recorded, recorded_in
from tiercache.cli.failure import WrongUsage
from tiercache.cli.link import running_cache_dirs
from tiercache.cli.status import print_json
from tiercache.units import parse_size

if TYPE_CHECKING:
    from tiercache.config import Config


def show(config: Config, trace: str | None, *, capacity: str, policy: str, added: str, as_json: bool) -> None:
    """Advice on a trace file, or on what the engine of ``config`` recorded. What is not given is that of the engine
    that recorded it. WrongUsage when it does not tell."""
    added_bytes, capacity_bytes = _size("--add", added), _size("--capacity", capacity) if capacity else 0
    found = recorded([Path(trace)]) if trace else recorded_in(_cache_dir(config))
    advice = advise(
        found,
        capacity_bytes=capacity_bytes or _told(found, trace),
        policy=policy or found.policy or config.nvme.policy,
        added_bytes=added_bytes,
    )
    if as_json:
        print_json(as_dictionary(advice))
    else:
        _print(advice)


def _print(advice: Advice) -> None:
    print(title(advice))
    if advice.grid is not None:
        print_measure(advice.grid, HITS)
    for sentence in sentences(advice):
        print(sentence)


def _told(found: Recorded, trace: str | None) -> int:
    if not found.capacity_bytes:
        raise WrongUsage(f"{trace}: does not tell how large the cache was; name it with --capacity SIZE")
    return found.capacity_bytes


def _cache_dir(config: Config) -> Path:
    """The one that is named, else that of the one engine that runs, else the default."""
    running = running_cache_dirs() if "cache_dir" not in config.model_fields_set else []
    return running[0] if len(running) == 1 else config.cache_dir


def _size(option: str, text: str) -> int:
    try:
        size_bytes = parse_size(text)
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}") from None
    if not size_bytes:
        raise WrongUsage(f"{option}: {text} is nothing")
    return size_bytes
