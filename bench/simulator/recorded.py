"""A trace that an engine recorded, with what is known of its making; other files of reads are taken too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tiercache.bench.simulator.traces import Trace, file_trace
from tiercache.engine.trace import AT, DIRECTORY, HEADER, NAME, OF, OLDER
from tiercache.errors import ConfigError


@dataclass
class Recorded:
    """What is not told is 0 or empty."""

    trace: Trace
    sample: float = 1.0
    """The share of all objects that is in the trace."""
    all_reads: int = 0
    """Those of objects that are not in the sample included."""
    capacity_bytes: int = 0
    """Of the cache that was read from, with this policy."""
    policy: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def weight(self) -> float:
        """How many reads a sample should have for each one that it has."""
        return self.all_reads * self.sample / len(self.trace.reads) if self.all_reads else 1.0

    @property
    def duration_s(self) -> float:
        return max(0.0, self.ended_s - self.began_s)


def recorded_in(cache_dir: Path) -> Recorded:
    """What the engine of a cache directory recorded last. ConfigError when that is nothing."""
    directory = cache_dir / DIRECTORY
    if not (directory / NAME).exists():
        raise ConfigError(f"{directory / NAME}: nothing was recorded; begin with: tiercache trace start")
    older = directory / OLDER
    return recorded([older, directory / NAME] if older.exists() else [directory / NAME])


def recorded(paths: list[Path]) -> Recorded:
    """The reads of files, the oldest first. ConfigError when one cannot be read, naming the line."""
    remarks: list[str] = []
    found = Recorded(file_trace(*paths, on_remark=lambda line: remarks.append(line.decode(errors="replace"))))
    for remark in remarks:
        try:
            if remark.startswith(HEADER):
                _note_header(found, json.loads(remark.removeprefix(HEADER)))
            elif remark.startswith(AT):
                at_s, _, reads = remark.removeprefix(AT).partition(OF)
                found.ended_s = float(at_s)
                found.all_reads += int(reads)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(f"{paths[-1]}: a remark is not as tiercache writes it: {remark}") from None
    return found


def _note_header(found: Recorded, about: dict[str, float | str]) -> None:
    found.sample = float(about["sample"])
    found.capacity_bytes = int(about["capacity_bytes"])
    found.policy = str(about["policy"])
    found.began_s = found.began_s or float(about["began"])
    if not 0 < found.sample <= 1:
        raise ValueError("no share")
