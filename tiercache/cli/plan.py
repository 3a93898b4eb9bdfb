"""Tell an engine in which order files will be read."""

from __future__ import annotations

import os
import sys

from tiercache.errors import ConfigError
from tiercache.planning import planner_of
from tiercache.units import format_count


def plan(file: str, directory: str) -> None:
    """``file`` names one file a line, ``-`` is the standard input; relative names begin at ``directory``."""
    paths = [os.path.join(directory, name) for name in _names(file)]
    if not paths:
        raise ConfigError(f"{file}: names no file")
    planner_of(paths).begin()
    print(f"{format_count(len(paths), 'file')} planned")


def _names(file: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if file == "-" else _read(file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    return [os.fsdecode(line) for line in data.splitlines() if line]


def _read(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read()
