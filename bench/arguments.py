"""Arguments of the commands below ``tiercache bench``: complaints in one line, and before an hour of work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tiercache.errors import ConfigError

PICTURES = frozenset({"html", "png"})


class Parser(argparse.ArgumentParser):
    """Its ``prog`` is the command, such as ``tiercache bench``."""

    def error(self, message: str) -> NoReturn:
        """One line, as every other command."""
        name, _, command = self.prog.partition(" ")
        print(f"{name}: {command}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def positive(kind: type[float] | type[int]) -> Any:
    """The type of an option that is a number above 0."""

    def parse(text: str) -> float | int:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    parse.__name__ = kind.__name__
    return parse


def outputs_of(options: argparse.Namespace, *kinds: str) -> dict[str, Path]:
    """The files to be written, by the option that named them. ConfigError for one that cannot be written."""
    given = {kind: Path(getattr(options, kind)) for kind in kinds if getattr(options, kind)}
    _check_outputs(given)
    return given


def _check_outputs(outputs: Mapping[str, Path]) -> None:
    for path in outputs.values():
        if path.is_dir():
            raise ConfigError(f"{path}: is a directory; give the name of a file")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: there is no directory {path.absolute().parent}")
    if PICTURES & outputs.keys():
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ConfigError("plots need matplotlib: pip install 'tiercache-fs[bench]'") from None
